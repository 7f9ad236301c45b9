"""Short ways to say "a pod like this" and "the runtime reports that" in tests.

Every builder gives a complete, valid value; arguments change only what a test is about. Fields not
named here are passed on by keyword to the value itself: `a_pod(host_network=True)`,
`a_container("app", liveness_probe=Probe())`. Nothing is random; ids are made from names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from pykubelet.api.types import Container, EphemeralContainer, ObjectMeta, Pod, PodSpec, PodStatus
from pykubelet.context import Context
from pykubelet.kit.clock import Clock, LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.container_keys import container_annotations, container_labels, pod_labels
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import (
    HASH_ANNOTATION,
    SOURCE_ANNOTATION,
    AnyContainer,
    uid_of,
    uses_host_network,
)
from pykubelet.model.runtime_status import (
    ContainerState,
    ContainerStatus,
    NamespaceMode,
    PodRuntimeStatus,
    SandboxState,
    SandboxStatus,
)
from pykubelet.recorder import LifeRecorder
from pykubelet.settings.settings import Settings
from pykubelet.signals import Signals
from tests.fakes.recorded_events import RecordedEvents

NOW = 1_700_000_000.0
"""Wall time tests take as the present."""
SECOND = 1_000_000_000


def a_context(
    *,
    settings: Settings | None = None,
    node_name: str = "node-1",
    clock: Clock | None = None,
    events: EventRecorder | None = None,
    recorder: LifeRecorder | None = None,
    metrics: Registry | None = None,
    signals: Signals | None = None,
    started: float = 0.0,
) -> Context:
    clock = clock or LoopClock()
    return Context(
        settings=settings or Settings(),
        node_name=node_name,
        clock=clock,
        events=events or RecordedEvents(),
        recorder=recorder or LifeRecorder(clock),
        metrics=metrics or Registry(),
        signals=signals or Signals(),
        started=started,
    )


def ns(seconds: float) -> int:
    """Wall seconds as the runtime's nanoseconds."""
    return int(seconds * SECOND)


def at(seconds: float) -> datetime:
    """Wall seconds as the API's time."""
    return datetime.fromtimestamp(int(seconds), UTC)


def a_container(name: str = "app", image: str = "busybox:1", **fields: Any) -> Container:
    return Container(name=name, image=image, **fields)


def a_sidecar(name: str = "side", **fields: Any) -> Container:
    """An init container that is restarted for ever."""
    return a_container(name, restart_policy="Always", **fields)


def an_ephemeral_container(name: str = "debug", image: str = "busybox:1", **fields: Any) -> EphemeralContainer:
    return EphemeralContainer(name=name, image=image, **fields)


def a_pod(
    name: str = "web",
    *,
    namespace: str = "default",
    uid: str | None = None,
    containers: Sequence[Container] | None = None,
    init: Sequence[Container] = (),
    ephemeral: Sequence[EphemeralContainer] = (),
    restart_policy: str = "Always",
    static: bool = False,
    deleted: bool = False,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    generation: int | None = None,
    status: PodStatus | None = None,
    grace: int | None = 30,
    deletion_grace: int | None = None,
    **spec: Any,
) -> Pod:
    """A pod of one container `app`. `static` marks it as read from a file, `deleted` as being deleted.

    `deletion_grace` deletes it with another grace than its spec has.
    """
    uid = uid or f"uid-{name}"
    marks = {SOURCE_ANNOTATION: "file", HASH_ANNOTATION: uid} if static else {SOURCE_ANNOTATION: "api"}
    metadata = ObjectMeta(
        name=name,
        namespace=namespace,
        uid=uid,
        labels=labels or {},
        annotations={**marks, **(annotations or {})},
        generation=generation,
        deletion_timestamp=at(NOW) if deleted or deletion_grace is not None else None,
        deletion_grace_period_seconds=grace if deleted and deletion_grace is None else deletion_grace,
    )
    pod_spec = PodSpec(
        containers=[a_container()] if containers is None else list(containers),
        init_containers=list(init),
        ephemeral_containers=list(ephemeral),
        restart_policy=restart_policy,
        termination_grace_period_seconds=grace,
        **spec,
    )
    return Pod(api_version="v1", kind="Pod", metadata=metadata, spec=pod_spec, status=status or PodStatus())


def a_decoded_pod(
    name: str = "web",
    *,
    uid: str = "",
    metadata: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Pod:
    """A pod as it is decoded from a manifest, all in wire names: nothing in it but what is given, and one container."""
    identity = {"name": name, "namespace": "default", "uid": uid or f"uid-{name}"}
    spec.setdefault("containers", [{"name": "c", "image": "i"}])
    return msgspec.convert({"metadata": {**identity, **(metadata or {})}, "spec": spec, "status": status or {}}, Pod)


def a_sandbox_status(
    pod: Pod,
    id: str | None = None,
    *,
    attempt: int = 0,
    ready: bool = True,
    ips: tuple[str, ...] | None = None,
    **fields: Any,
) -> SandboxStatus:
    """The sandbox the pod should have, with one address unless it uses the host's network."""
    on_host = uses_host_network(pod)
    values: dict[str, Any] = {
        "id": id or f"{pod.metadata.name}-box{attempt}",
        "pod_uid": uid_of(pod),
        "pod_name": pod.metadata.name or "",
        "pod_namespace": pod.metadata.namespace or "",
        "attempt": attempt,
        "state": SandboxState.READY if ready else SandboxState.NOT_READY,
        "created_at": ns(NOW - 100 + attempt),
        "ips": ips if ips is not None else (() if on_host else ("10.0.0.5",)),
        "network_mode": NamespaceMode.NODE if on_host else NamespaceMode.POD,
        "labels": {**pod.metadata.labels, **pod_labels(pod)},
        "annotations": dict(pod.metadata.annotations),
    }
    return SandboxStatus(**{**values, **fields})


def a_container_status(
    pod: Pod,
    container: AnyContainer | str = "app",
    state: ContainerState = ContainerState.RUNNING,
    *,
    id: str | None = None,
    restarts: int = 0,
    exit_code: int = 0,
    sandbox_id: str | None = None,
    **fields: Any,
) -> ContainerStatus:
    """What the runtime says of a container made from the pod as it is, so its hash fits.

    It was created 60 s ago, started at once and, if exited, ended 10 s ago.
    """
    name = container if isinstance(container, str) else container.name or ""
    spec = _spec_of(pod, name) if isinstance(container, str) else container
    ended = state is ContainerState.EXITED
    values: dict[str, Any] = {
        "id": id or f"{name}-{restarts}",
        "sandbox_id": sandbox_id or f"{pod.metadata.name}-box0",
        "name": name,
        "attempt": restarts,
        "state": state,
        "created_at": ns(NOW - 60 + restarts),
        "started_at": 0 if state is ContainerState.CREATED else ns(NOW - 60 + restarts),
        "finished_at": ns(NOW - 10) if ended else 0,
        "exit_code": exit_code,
        "reason": ("Error" if exit_code else "Completed") if ended else "",
        "image": spec.image or "",
        "image_ref": f"sha256:{spec.image}",
        "labels": container_labels(pod, spec),
        "annotations": container_annotations(pod, spec, restarts),
    }
    return ContainerStatus(**{**values, **fields})


def a_runtime_status(
    pod: Pod, *containers: ContainerStatus, sandboxes: Sequence[SandboxStatus] | None = None, **fields: Any
) -> PodRuntimeStatus:
    """The pod in the runtime: these containers, newest first, in one good sandbox unless told otherwise."""
    boxes = (a_sandbox_status(pod),) if sandboxes is None else tuple(sandboxes)
    newest_ready = bool(boxes) and boxes[0].state is SandboxState.READY
    values: dict[str, Any] = {
        "uid": uid_of(pod),
        "name": pod.metadata.name or "",
        "namespace": pod.metadata.namespace or "",
        "ips": boxes[0].ips if newest_ready else (),
        "sandboxes": boxes,
        "containers": containers,
    }
    return PodRuntimeStatus(**{**values, **fields})


def _spec_of(pod: Pod, name: str) -> AnyContainer:
    known: list[AnyContainer] = [*pod.spec.init_containers, *pod.spec.containers, *pod.spec.ephemeral_containers]
    found = next((container for container in known if container.name == name), None)
    return found or a_container(name)
