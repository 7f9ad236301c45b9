"""Labels and annotations that tie a container in the runtime to its pod, and readers for them.

They are upstream's, to the letter: whichever kubelet runs next adopts, counts and kills the containers
by them, even when the pod itself is gone. Covers their names, writing them, and reading them back.
Does not cover the rest of a container's configuration (runtime/spec/).
"""

from __future__ import annotations

import functools
import json
from typing import Final

import msgspec

from pykubelet.api.types import Pod
from pykubelet.kit.text import fnv1a_32
from pykubelet.model.pod import AnyContainer, name_of, namespace_of, uid_of
from pykubelet.model.runtime_status import ContainerRecord, ContainerStatus

POD_NAME_LABEL: Final = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL: Final = "io.kubernetes.pod.namespace"
POD_UID_LABEL: Final = "io.kubernetes.pod.uid"
CONTAINER_NAME_LABEL: Final = "io.kubernetes.container.name"

HASH_KEY: Final = "io.kubernetes.container.hash"
RESTART_COUNT_KEY: Final = "io.kubernetes.container.restartCount"
TERMINATION_MESSAGE_PATH_KEY: Final = "io.kubernetes.container.terminationMessagePath"
TERMINATION_MESSAGE_POLICY_KEY: Final = "io.kubernetes.container.terminationMessagePolicy"
PRE_STOP_KEY: Final = "io.kubernetes.container.preStopHandler"
PORTS_KEY: Final = "io.kubernetes.container.ports"
DELETION_GRACE_KEY: Final = "io.kubernetes.pod.deletionGracePeriod"
TERMINATION_GRACE_KEY: Final = "io.kubernetes.pod.terminationGracePeriod"


def container_hash(container: AnyContainer) -> str:
    """The mark of a container's definition (name and image); when it changes the container is replaced."""
    return _hash(container.name, container.image or "")


@functools.lru_cache(maxsize=4096)
def _hash(name: str, image: str) -> str:
    # Go's JSON encoder escapes these three and the two line separators, which json.dumps does not.
    text = json.dumps({"image": image, "name": name}, ensure_ascii=False, separators=(",", ":"))
    for char in "&<>\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    dumped = "([]uint8)[" + " ".join(str(byte) for byte in text.encode()) + "]"
    return f"{fnv1a_32(dumped):x}"


def pod_labels(pod: Pod) -> dict[str, str]:
    """Labels that name the pod, on its sandboxes and containers alike."""
    return {POD_NAME_LABEL: name_of(pod), POD_NAMESPACE_LABEL: namespace_of(pod), POD_UID_LABEL: uid_of(pod)}


def container_labels(pod: Pod, container: AnyContainer) -> dict[str, str]:
    return {**pod_labels(pod), CONTAINER_NAME_LABEL: container.name}


def container_annotations(pod: Pod, container: AnyContainer, restart_count: int) -> dict[str, str]:
    """Everything needed later to compare, count and kill the container without its pod."""
    found = {
        HASH_KEY: container_hash(container),
        RESTART_COUNT_KEY: str(restart_count),
        TERMINATION_MESSAGE_PATH_KEY: container.termination_message_path or "",
        TERMINATION_MESSAGE_POLICY_KEY: container.termination_message_policy or "",
    }
    if pod.metadata.deletion_grace_period_seconds is not None:
        found[DELETION_GRACE_KEY] = str(pod.metadata.deletion_grace_period_seconds)
    if pod.spec.termination_grace_period_seconds is not None:
        found[TERMINATION_GRACE_KEY] = str(pod.spec.termination_grace_period_seconds)
    if container.lifecycle is not None and container.lifecycle.pre_stop is not None:
        found[PRE_STOP_KEY] = msgspec.json.encode(container.lifecycle.pre_stop).decode()
    if container.ports:
        found[PORTS_KEY] = msgspec.json.encode(container.ports).decode()
    return found


def hash_of(status: ContainerStatus) -> str:
    """The definition the container was made from; '' when it does not say."""
    return status.annotations.get(HASH_KEY, "")


def definition_changed(container: AnyContainer, status: ContainerStatus) -> bool:
    """Whether the container was made from another definition than the pod has now."""
    return hash_of(status) != container_hash(container)


def restart_count_of(status: ContainerStatus | ContainerRecord) -> int:
    return _number(status, RESTART_COUNT_KEY) or 0


def falls_back_to_logs(status: ContainerStatus) -> bool:
    """Whether the end of the log serves as termination message of this ended container."""
    policy = status.annotations.get(TERMINATION_MESSAGE_POLICY_KEY, "")
    return policy == "FallbackToLogsOnError" and status.exit_code != 0 and status.reason != "ContainerCannotRun"


def deletion_grace_of(status: ContainerStatus | ContainerRecord) -> int | None:
    return _number(status, DELETION_GRACE_KEY)


def termination_grace_of(status: ContainerStatus | ContainerRecord) -> int | None:
    return _number(status, TERMINATION_GRACE_KEY)


def _number(status: ContainerStatus | ContainerRecord, key: str) -> int | None:
    # Annotations written by something else must not stop the agent: what is no number counts as absent.
    text = status.annotations.get(key, "")
    return int(text) if text.lstrip("-").isdecimal() else None
