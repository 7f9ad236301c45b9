"""Every reason other software can see, written once: waiting and event reasons, condition types.

The texts are upstream's and must match to the letter; messages are built where the facts are known.
"""

from __future__ import annotations

from typing import Final

# state.waiting.reason
ERR_IMAGE_PULL: Final = "ErrImagePull"
IMAGE_PULL_BACK_OFF: Final = "ImagePullBackOff"
ERR_IMAGE_NEVER_PULL: Final = "ErrImageNeverPull"
INVALID_IMAGE_NAME: Final = "InvalidImageName"
IMAGE_INSPECT_ERROR: Final = "ImageInspectError"
REGISTRY_UNAVAILABLE: Final = "RegistryUnavailable"
SIGNATURE_VALIDATION_FAILED: Final = "SignatureValidationFailed"
CRASH_LOOP_BACK_OFF: Final = "CrashLoopBackOff"
CREATE_CONTAINER_CONFIG_ERROR: Final = "CreateContainerConfigError"
CREATE_CONTAINER_ERROR: Final = "CreateContainerError"
POST_START_HOOK_ERROR: Final = "PostStartHookError"
RUN_CONTAINER_ERROR: Final = "RunContainerError"
CREATE_POD_SANDBOX_ERROR: Final = "CreatePodSandboxError"
CONTAINER_CREATING: Final = "ContainerCreating"
POD_INITIALIZING: Final = "PodInitializing"

# state.terminated.reason
CONTAINER_STATUS_UNKNOWN: Final = "ContainerStatusUnknown"
COMPLETED: Final = "Completed"
ERROR: Final = "Error"
OOM_KILLED: Final = "OOMKilled"

# pod conditions
POD_READY: Final = "Ready"
POD_INITIALIZED: Final = "Initialized"
POD_SCHEDULED: Final = "PodScheduled"
CONTAINERS_READY: Final = "ContainersReady"
POD_READY_TO_START: Final = "PodReadyToStartContainers"
DISRUPTION_TARGET: Final = "DisruptionTarget"
RESIZE_PENDING: Final = "PodResizePending"
RESIZE_IN_PROGRESS: Final = "PodResizeInProgress"
ALL_CONTAINERS_RESTARTING: Final = "AllContainersRestarting"

# status.reason
PREEMPTING: Final = "Preempting"

# events of our own
UNREADABLE_OBJECT: Final = "UnreadableObject"

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
FAILED_MOUNT = "FailedMount"
VOLUME_RESIZE_FAILED = "VolumeResizeFailed"
