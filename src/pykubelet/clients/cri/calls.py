"""The gRPC methods of the CRI that are used: path, name in metrics, type of the answer.

The names in `verb` are the operation_type values that kubelet_runtime_operations_* metrics have always had.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from google.protobuf.message import Message
from msgspec import Struct

from pykubelet.wire import cri_pb2 as pb

A = TypeVar("A", bound=Message)


class Rpc(Struct, Generic[A], frozen=True):
    path: str
    verb: str
    answer: type[A]


RUNTIME_SERVICE = "/runtime.v1.RuntimeService"
IMAGE_SERVICE = "/runtime.v1.ImageService"


def _runtime(name: str, verb: str, answer: type[A]) -> Rpc[A]:
    return Rpc(f"{RUNTIME_SERVICE}/{name}", verb, answer)


def _image(name: str, verb: str, answer: type[A]) -> Rpc[A]:
    return Rpc(f"{IMAGE_SERVICE}/{name}", verb, answer)


VERSION = _runtime("Version", "version", pb.VersionResponse)
STATUS = _runtime("Status", "status", pb.StatusResponse)
RUNTIME_CONFIG = _runtime("RuntimeConfig", "runtime_config", pb.RuntimeConfigResponse)
UPDATE_RUNTIME_CONFIG = _runtime("UpdateRuntimeConfig", "update_runtime_config", pb.UpdateRuntimeConfigResponse)
GET_CONTAINER_EVENTS = _runtime("GetContainerEvents", "get_container_events", pb.ContainerEventResponse)

RUN_POD_SANDBOX = _runtime("RunPodSandbox", "run_podsandbox", pb.RunPodSandboxResponse)
STOP_POD_SANDBOX = _runtime("StopPodSandbox", "stop_podsandbox", pb.StopPodSandboxResponse)
REMOVE_POD_SANDBOX = _runtime("RemovePodSandbox", "remove_podsandbox", pb.RemovePodSandboxResponse)
POD_SANDBOX_STATUS = _runtime("PodSandboxStatus", "podsandbox_status", pb.PodSandboxStatusResponse)
LIST_POD_SANDBOX = _runtime("ListPodSandbox", "list_podsandbox", pb.ListPodSandboxResponse)
UPDATE_POD_SANDBOX_RESOURCES = _runtime(
    "UpdatePodSandboxResources", "update_podsandbox_resources", pb.UpdatePodSandboxResourcesResponse
)
PORT_FORWARD = _runtime("PortForward", "port_forward", pb.PortForwardResponse)

CREATE_CONTAINER = _runtime("CreateContainer", "create_container", pb.CreateContainerResponse)
START_CONTAINER = _runtime("StartContainer", "start_container", pb.StartContainerResponse)
STOP_CONTAINER = _runtime("StopContainer", "stop_container", pb.StopContainerResponse)
REMOVE_CONTAINER = _runtime("RemoveContainer", "remove_container", pb.RemoveContainerResponse)
LIST_CONTAINERS = _runtime("ListContainers", "list_containers", pb.ListContainersResponse)
CONTAINER_STATUS = _runtime("ContainerStatus", "container_status", pb.ContainerStatusResponse)
UPDATE_CONTAINER_RESOURCES = _runtime(
    "UpdateContainerResources", "update_container", pb.UpdateContainerResourcesResponse
)
REOPEN_CONTAINER_LOG = _runtime("ReopenContainerLog", "reopen_container_log", pb.ReopenContainerLogResponse)
EXEC_SYNC = _runtime("ExecSync", "exec_sync", pb.ExecSyncResponse)
EXEC = _runtime("Exec", "exec", pb.ExecResponse)
ATTACH = _runtime("Attach", "attach", pb.AttachResponse)
CHECKPOINT_CONTAINER = _runtime("CheckpointContainer", "checkpoint_container", pb.CheckpointContainerResponse)

LIST_CONTAINER_STATS = _runtime("ListContainerStats", "list_container_stats", pb.ListContainerStatsResponse)
LIST_POD_SANDBOX_STATS = _runtime("ListPodSandboxStats", "list_podsandbox_stats", pb.ListPodSandboxStatsResponse)
LIST_METRIC_DESCRIPTORS = _runtime("ListMetricDescriptors", "list_metric_descriptors", pb.ListMetricDescriptorsResponse)
LIST_POD_SANDBOX_METRICS = _runtime(
    "ListPodSandboxMetrics", "list_podsandbox_metrics", pb.ListPodSandboxMetricsResponse
)

STREAM_POD_SANDBOXES = _runtime("StreamPodSandboxes", "list_podsandbox", pb.StreamPodSandboxesResponse)
STREAM_CONTAINERS = _runtime("StreamContainers", "list_containers", pb.StreamContainersResponse)
STREAM_CONTAINER_STATS = _runtime("StreamContainerStats", "list_container_stats", pb.StreamContainerStatsResponse)
STREAM_POD_SANDBOX_STATS = _runtime("StreamPodSandboxStats", "list_podsandbox_stats", pb.StreamPodSandboxStatsResponse)
STREAM_POD_SANDBOX_METRICS = _runtime(
    "StreamPodSandboxMetrics", "list_podsandbox_metrics", pb.StreamPodSandboxMetricsResponse
)
STREAM_IMAGES = _image("StreamImages", "list_images", pb.StreamImagesResponse)

LIST_IMAGES = _image("ListImages", "list_images", pb.ListImagesResponse)
IMAGE_STATUS = _image("ImageStatus", "image_status", pb.ImageStatusResponse)
PULL_IMAGE = _image("PullImage", "pull_image", pb.PullImageResponse)
REMOVE_IMAGE = _image("RemoveImage", "remove_image", pb.RemoveImageResponse)
IMAGE_FS_INFO = _image("ImageFsInfo", "image_fs_info", pb.ImageFsInfoResponse)
