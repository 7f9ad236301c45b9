"""The statuses of a pod's containers, from what the runtime reports and what was reported before.

For each container: a waiting state to begin with, what can be inferred when the runtime has lost it,
the newest two runs the runtime knows (state and last state), the reason why it cannot start, whether it has started
and is ready, and the resources in force. See the tables in docs/states.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import (
    Container,
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    ContainerUser,
    ImageVolumeStatus,
    LinuxContainerUser,
    PodStatus,
    QuantityValue,
    ResourceRequirements,
    VolumeMount,
    VolumeMountStatus,
    VolumeStatus,
)
from pykubelet.kit.clock import utc_from_ns
from pykubelet.model import runtime_status as rt
from pykubelet.model.container_keys import restart_count_of
from pykubelet.model.lifecycle import (
    RESTARTING_ALL_CONTAINERS,
    any_regular_created,
    should_start,
    wants_restart_all,
)
from pykubelet.model.pod import AnyContainer, ProbeKind, ProbeOutcome, deletion_requested, is_sidecar
from pykubelet.model.reasons import COMPLETED, CONTAINER_CREATING, CONTAINER_STATUS_UNKNOWN, POD_INITIALIZING
from pykubelet.status.inputs import StatusInputs

GONE_EXIT_CODE = 137
GONE_AT_END = "The container could not be located when the pod was terminated"
_GONE_WHILE_RUNNING = "The container could not be located when the pod was deleted.  The container used to be Running"
_LOST_INIT = (
    "Unable to get init container status from container runtime and pod has been initialized, "
    "treat it as exited normally"
)
_REMOVED_FOR_RESTART = "The container is removed because RestartAllContainers in place"
MESSAGE_BYTES_PER_POD = 12288
_SMALLEST_CPU_REQUEST = 2
_SMALLEST_CPU_LIMIT = 10
_SHARES_PER_CPU = 1024


def container_id(runtime_name: str, bare: str) -> str:
    """`containerd://<id>`, as the API has it."""
    return f"{runtime_name}://{bare}"


def bare_id(full: str | None) -> str:
    """The runtime's own id from the API's."""
    return (full or "").rpartition("://")[2]


def container_statuses(
    inputs: StatusInputs, containers: Sequence[AnyContainer], old: Iterable[ContainerStatus], *, init: bool = False
) -> list[ContainerStatus]:
    """Statuses of one kind of container: init ones in the order of the spec, others by name."""
    return _Conversion(inputs, old, init=init).run(containers)


class _Conversion:
    def __init__(self, inputs: StatusInputs, old: Iterable[ContainerStatus], *, init: bool) -> None:
        self._inputs = inputs
        self._old = {status.name or "": status for status in old}
        self._init = init
        self._restarting = wants_restart_all(inputs.pod, inputs.runtime, inputs.old)
        self._default_reason = POD_INITIALIZING if inputs.pod.spec.init_containers else CONTAINER_CREATING
        spec = inputs.pod.spec
        count = len(spec.containers) + len(spec.init_containers) + len(spec.ephemeral_containers)
        self._message_bytes = MESSAGE_BYTES_PER_POD // max(1, count)

    def run(self, containers: Sequence[AnyContainer]) -> list[ContainerStatus]:
        made = [self._one(container) for container in containers]
        return made if self._init else sorted(made, key=lambda status: status.name or "")

    def _one(self, container: AnyContainer) -> ContainerStatus:
        name = container.name
        default = self._default(container)
        runs = self._inputs.runtime.runs_of(name)[:2]
        if runs:
            status = self._from_run(container, runs[0], default)
            if len(runs) > 1:
                status.last_state = self._state_of(runs[1], self._old.get(name))
        else:
            status = self._without_run(container, default)
        return self._show_start_failure(container, status)

    def _default(self, container: AnyContainer) -> ContainerStatus:
        """What holds for a container nothing is known about: it waits."""
        return ContainerStatus(
            name=container.name,
            image=container.image or "",
            image_id="",
            ready=False,
            restart_count=0,
            state=ContainerState(waiting=ContainerStateWaiting(reason=self._default_reason)),
            last_state=ContainerState(),
            volume_mounts=[_mount_status(m, self._inputs.recursive_read_only) for m in container.volume_mounts],
        )

    def _without_run(self, container: AnyContainer, status: ContainerStatus) -> ContainerStatus:
        """The runtime has no trace of the container: go by what was reported before."""
        old = self._old.get(container.name)
        if old is not None:
            status = self._carry_over(old, status)
        waiting = status.state is not None and status.state.waiting is not None
        if (
            self._init
            and waiting
            and not is_sidecar(container)
            and any_regular_created(self._inputs.pod, self._inputs.runtime)
        ):
            ended = ContainerStateTerminated(reason=COMPLETED, message=_LOST_INIT, exit_code=0)
            status.state = ContainerState(terminated=ended)
        return status

    def _carry_over(self, old: ContainerStatus, status: ContainerStatus) -> ContainerStatus:
        state = old.state or ContainerState()
        if state.terminated is not None:
            status = msgspec.structs.replace(old)
        else:
            status.restart_count = old.restart_count or 0
            status.last_state = old.last_state or ContainerState()
        if self._restarting and state.waiting is None:
            reason, message = RESTARTING_ALL_CONTAINERS, _REMOVED_FOR_RESTART
            status.state = ContainerState(waiting=ContainerStateWaiting(reason=reason, message=message))
            status.last_state = ContainerState(terminated=_gone(reason, message))
            status.restart_count = (old.restart_count or 0) + 1
        elif state.running is not None and not (status.last_state and status.last_state.terminated):
            # It ran and vanished: say that it ended, or the pod would look as if it had never started.
            gone = _gone(CONTAINER_STATUS_UNKNOWN, _GONE_WHILE_RUNNING)
            status.last_state = ContainerState(terminated=gone)
            if not deletion_requested(self._inputs.pod):
                status.restart_count = (status.restart_count or 0) + 1
        return status

    def _from_run(self, container: AnyContainer, run: rt.ContainerStatus, default: ContainerStatus) -> ContainerStatus:
        old = self._old.get(run.name)
        status = ContainerStatus(
            name=run.name,
            image=run.image,
            image_id=run.image_ref,
            container_id=container_id(self._inputs.runtime_name, run.id),
            ready=False,
            restart_count=self._restart_count(run, old),
            state=self._state_of(run, old),
            last_state=_kept_last_state(run, old),
            volume_mounts=(old.volume_mounts if old is not None else []) or default.volume_mounts,
        )
        if self._inputs.shows_image_refs:
            status.volume_mounts = self._with_image_refs(run, status.volume_mounts)
        keeps = self._inputs.keeps_reported or self._inputs.previous is not None
        if run.state is rt.ContainerState.RUNNING and _same_container(run, old) and old is not None and keeps:
            status.started = old.started
        status.resources = container_resources(container, run, old, self._inputs.actuated.get(run.name))
        status.allocated_resources = dict(container.resources.requests) if container.resources else {}
        if run.user is not None:
            groups = list(run.user.supplemental_groups)
            linux = LinuxContainerUser(uid=run.user.uid, gid=run.user.gid, supplemental_groups=groups)
            status.user = ContainerUser(linux=linux)
        return status

    def _with_image_refs(self, run: rt.ContainerStatus, mounts: Sequence[VolumeMountStatus]) -> list[VolumeMountStatus]:
        images = {volume.name for volume in self._inputs.pod.spec.volumes if volume.image is not None}
        mounted = {mount.container_path: mount.image for mount in run.mounts if mount.image}
        return [
            msgspec.structs.replace(mount, volume_status=VolumeStatus(image=ImageVolumeStatus(image_ref=found)))
            if mount.name in images and (found := mounted.get(mount.mount_path or ""))
            else mount
            for mount in mounts
        ]

    def _restart_count(self, run: rt.ContainerStatus, old: ContainerStatus | None) -> int:
        counted = restart_count_of(run)
        if old is None:
            return counted
        reported = old.restart_count or 0
        state = old.state or ContainerState()
        if run.state is rt.ContainerState.UNKNOWN and state.running is not None:
            return reported + 1
        if run.state is rt.ContainerState.RUNNING and state.terminated is not None and reported >= counted:
            # Containers removed by a restart of all take their count with them.
            return reported + 1
        return max(counted, reported)

    def _state_of(self, run: rt.ContainerStatus, old: ContainerStatus | None) -> ContainerState:
        if run.state is rt.ContainerState.RUNNING:
            return ContainerState(running=ContainerStateRunning(started_at=utc_from_ns(run.started_at)))
        if run.state is rt.ContainerState.EXITED:
            return ContainerState(terminated=self._ended(run))
        was_running = old is not None and old.state is not None and old.state.running is not None
        if run.state is rt.ContainerState.UNKNOWN and was_running:
            reason = RESTARTING_ALL_CONTAINERS if self._restarting else CONTAINER_STATUS_UNKNOWN
            return ContainerState(terminated=_gone(reason, GONE_AT_END))
        # Created and not started yet. A status may be reported at that moment, and readers expect a reason in it.
        return ContainerState(waiting=ContainerStateWaiting(reason=self._default_reason))

    def _ended(self, run: rt.ContainerStatus) -> ContainerStateTerminated:
        parts = (run.message, self._inputs.messages.get(run.id, ""))
        message = ": ".join(part for part in parts if part)
        return ContainerStateTerminated(
            exit_code=run.exit_code,
            reason=run.reason or None,
            message=_cut(message, self._message_bytes) or None,
            started_at=utc_from_ns(run.started_at),
            finished_at=utc_from_ns(run.finished_at),
            container_id=container_id(self._inputs.runtime_name, run.id),
        )

    def _show_start_failure(self, container: AnyContainer, status: ContainerStatus) -> ContainerStatus:
        """A container that ought to run and cannot waits, and its waiting reason says why."""
        runtime = self._inputs.runtime
        run = runtime.container(container.name)
        if self._init:
            if run is not None and run.state is rt.ContainerState.EXITED and run.exit_code == 0:
                return status
            if run is None and not is_sidecar(container) and _is_lost_init(status):
                return status
        failure = self._inputs.failures.get(container.name)
        if failure is None or not should_start(self._inputs.pod, container, runtime):
            return status
        if status.state is not None and status.state.terminated is not None:
            status.last_state = status.state
        status.state = ContainerState(
            waiting=ContainerStateWaiting(reason=failure.reason, message=failure.message or None)
        )
        return status


def _kept_last_state(run: rt.ContainerStatus, old: ContainerStatus | None) -> ContainerState:
    """The end of the run before, as reported earlier; used when the runtime no longer has that run."""
    if old is None:
        return ContainerState()
    if not _same_container(run, old) and old.state is not None and old.state.terminated is not None:
        return ContainerState(terminated=old.state.terminated)
    ended = old.last_state.terminated if old.last_state is not None else None
    return ContainerState(terminated=ended)


def _same_container(run: rt.ContainerStatus, old: ContainerStatus | None) -> bool:
    return old is not None and bare_id(old.container_id) == run.id


def _is_lost_init(status: ContainerStatus) -> bool:
    ended = status.state.terminated if status.state is not None else None
    return ended is not None and ended.message == _LOST_INIT


def _gone(reason: str, message: str) -> ContainerStateTerminated:
    return ContainerStateTerminated(reason=reason, message=message, exit_code=GONE_EXIT_CODE)


def gone_at_end() -> ContainerState:
    """The state of a container that should have ended and left no trace of how."""
    return ContainerState(terminated=_gone(CONTAINER_STATUS_UNKNOWN, GONE_AT_END))


def _mount_status(mount: VolumeMount, supported: bool) -> VolumeMountStatus:
    status = VolumeMountStatus(name=mount.name, mount_path=mount.mount_path, read_only=mount.read_only or None)
    if mount.read_only:
        wanted = mount.recursive_read_only in ("Enabled", "IfPossible")
        propagates = mount.mount_propagation not in (None, "None")
        status.recursive_read_only = "Enabled" if wanted and supported and not propagates else "Disabled"
    return status


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8; a character cut in two is dropped."""
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[:limit].decode(errors="ignore")


# --- started and ready ----------------------------------------------------------------------------


def set_readiness(inputs: StatusInputs, status: PodStatus) -> None:
    """Set `started` and `ready` of each container from probe outcomes.

    After a restart of the agent nothing is known from probes yet; then what was reported before stands until the
    first outcome, so that traffic is not cut off (unless gate ChangeContainerStatusOnKubeletRestart is on).
    """
    specs = {container.name: container for container in inputs.pod.spec.containers}
    for made in status.container_statuses:
        _set_started_and_ready(inputs, specs[made.name or ""], made)
    specs = {container.name: container for container in inputs.pod.spec.init_containers}
    for made in status.init_container_statuses:
        container = specs[made.name or ""]
        if is_sidecar(container):
            _set_started_and_ready(inputs, container, made)
            continue
        made.started = _is_started(inputs, container, made)
        ended = made.state.terminated if made.state is not None else None
        made.ready = ended is not None and not ended.exit_code


def _set_started_and_ready(inputs: StatusInputs, container: Container, status: ContainerStatus) -> None:
    status.started = _is_started(inputs, container, status)
    status.ready = status.started and _is_ready(inputs, container, status)


def _is_started(inputs: StatusInputs, container: Container, status: ContainerStatus) -> bool:
    if status.state is None or status.state.running is None:
        return False
    outcome = inputs.probes.get((ProbeKind.STARTUP, bare_id(status.container_id)))
    if outcome is not None:
        return outcome is ProbeOutcome.SUCCESS
    # Has what was reported about this very run before (`_from_run`).
    return bool(status.started) or container.startup_probe is None


def _is_ready(inputs: StatusInputs, container: Container, status: ContainerStatus) -> bool:
    outcome = inputs.probes.get((ProbeKind.READINESS, bare_id(status.container_id)))
    if outcome is ProbeOutcome.SUCCESS or container.readiness_probe is None:
        return True
    return outcome is None and _was_ready(inputs.reported_containers, status)


def _was_ready(old: PodStatus, status: ContainerStatus) -> bool:
    """Whether this very run of the container was reported ready before. (Going by its age instead would cut off
    what started shortly before the agent was restarted.)"""
    reported = (*old.container_statuses, *old.init_container_statuses)
    return any(each.container_id == status.container_id and each.ready for each in reported)


# --- resources in force ---------------------------------------------------------------------------


def container_resources(
    container: AnyContainer,
    run: rt.ContainerStatus,
    old: ContainerStatus | None,
    actuated: ResourceRequirements | None,
) -> ResourceRequirements:
    """The allocated spec and, for a running container, what the runtime reports in its place.

    Values at or below what the kernel can express keep the spec's figure, so that 1m is not shown as 2m.
    """
    spec = container.resources or ResourceRequirements()
    requests, limits = dict(spec.requests), dict(spec.limits)
    if run.state is rt.ContainerState.RUNNING:
        before = _reported_resources(run, old)
        in_force = run.resources or rt.ContainerResources()
        if limits:
            _put_cpu(limits, before.limits, _cpu_limit(in_force), _SMALLEST_CPU_LIMIT)
            _put(limits, before.limits, "memory", _bytes(in_force.memory_limit_bytes))
        if requests:
            _put_cpu(requests, before.requests, _cpu_request(in_force), _SMALLEST_CPU_REQUEST)
            memory = actuated.requests.get("memory") if actuated is not None else None
            _put(requests, before.requests, "memory", Quantity.parse(memory) if memory is not None else None)
    return ResourceRequirements(requests=requests, limits=limits, claims=list(spec.claims))


def _reported_resources(run: rt.ContainerStatus, old: ContainerStatus | None) -> ResourceRequirements:
    """What the status said about this very run; stands in for what the runtime does not report."""
    if old is None or old.resources is None or old.state is None or old.state.running is None:
        return ResourceRequirements()
    same = bare_id(old.container_id) == run.id
    return old.resources if same else ResourceRequirements()


def _put_cpu(
    values: dict[str, QuantityValue], before: dict[str, QuantityValue], cpu: Quantity | None, smallest: int
) -> None:
    spec = Quantity.parse(values.get("cpu", 0)).milli_value()
    if cpu is not None and cpu.milli_value() <= smallest and spec <= smallest:
        return
    _put(values, before, "cpu", cpu)


def _put(
    values: dict[str, QuantityValue], before: dict[str, QuantityValue], name: str, amount: Quantity | None
) -> None:
    if amount is None:
        if name in before:
            values[name] = before[name]
    elif name not in values or Quantity.parse(values[name]) != amount:
        # Equal amounts keep the author's spelling.
        values[name] = str(amount)


def _cpu_limit(in_force: rt.ContainerResources) -> Quantity | None:
    if not in_force.cpu_period or not in_force.cpu_quota or in_force.cpu_quota < 0:
        return None
    milli = in_force.cpu_quota * 1000 // in_force.cpu_period
    return Quantity.of_milli(milli) if milli else None


def _cpu_request(in_force: rt.ContainerResources) -> Quantity | None:
    if not in_force.cpu_shares:
        return None
    return Quantity.of_milli(-(-in_force.cpu_shares * 1000 // _SHARES_PER_CPU))


def _bytes(amount: int | None) -> Quantity | None:
    return Quantity.of_bytes(amount) if amount else None
