"""What the measured pods are: manifests for agents, CRI messages for the bare runtime, both of the same shape.

A pod's only act is a line on stdout. The runtime stamps the line with the time it arrived (RFC 3339 with
nanoseconds, in the container's log), so the pod's own deed is the measurement and no agent is asked.
Each pod mounts one host folder: a pod of a real cluster has at least one volume (its token), and waiting for
volumes is a good part of a Go kubelet's start time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pykubelet.standalone.images import BUSYBOX
from pykubelet.wire import cri_pb2 as cri

NAMESPACE = "bench"
CONTAINER = "main"
GRACE = 1
MOUNT_PATH = "/data"
# A shell that waits would leave on SIGTERM; sleep as a first process does not, and so takes its whole grace.
STAY = ("sh", "-c", "echo up; exec sleep 1000000")
CRASH = ("sh", "-c", "echo up; sleep 1; echo down; exit 1")


@dataclass(frozen=True, slots=True)
class Shape:
    """What all pods of a run have in common."""

    host_folder: Path | None
    """Mounted into each container; None for pods without volumes."""

    def manifest(self, name: str, command: tuple[str, ...]) -> bytes:
        container: dict[str, Any] = {
            "name": CONTAINER,
            "image": BUSYBOX,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
        }
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": GRACE, "containers": [container]}
        if self.host_folder is not None:
            container["volumeMounts"] = [{"name": "data", "mountPath": MOUNT_PATH}]
            spec["volumes"] = [{"name": "data", "hostPath": {"path": str(self.host_folder), "type": "Directory"}}]
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {"app": "bench"}}
        return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}).encode()

    def sandbox(self, name: str, pod_logs: Path, cgroup_parent: str) -> cri.PodSandboxConfig:
        """The sandbox as an agent would ask for it."""
        uid = f"uid-{name}"
        return cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=name, namespace=NAMESPACE, uid=uid),
            hostname=name,
            log_directory=str(pod_logs / f"{NAMESPACE}_{name}_{uid}"),
            labels={"io.kubernetes.pod.uid": uid, "io.kubernetes.pod.name": name},
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=cgroup_parent,
                security_context=cri.LinuxSandboxSecurityContext(namespace_options=_own_processes()),
            ),
        )

    def container(self, command: tuple[str, ...]) -> cri.ContainerConfig:
        mounts = []
        if self.host_folder is not None:
            mounts = [cri.Mount(host_path=str(self.host_folder), container_path=MOUNT_PATH)]
        return cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=CONTAINER),
            image=cri.ImageSpec(image=BUSYBOX),
            command=command,
            mounts=mounts,
            log_path=f"{CONTAINER}/0.log",
            linux=cri.LinuxContainerConfig(
                security_context=cri.LinuxContainerSecurityContext(namespace_options=_own_processes())
            ),
        )


def _own_processes() -> cri.NamespaceOption:
    return cri.NamespaceOption(pid=cri.NamespaceMode.CONTAINER)
