"""`started` and `ready` of each container, from probe outcomes.

Written into statuses just made by containers.py. After a restart of the agent nothing is known from
probes yet; then what was told before stands until the first outcome, so that traffic is not cut off
(unless gate ChangeContainerStatusOnKubeletRestart is on).
"""

from __future__ import annotations

from pykubelet.api.types import Container, ContainerStatus, PodStatus
from pykubelet.model.pod import is_sidecar
from pykubelet.model.results import ProbeKind, ProbeOutcome
from pykubelet.status.containers import bare_id
from pykubelet.status.inputs import StatusInputs


def set_readiness(inputs: StatusInputs, status: PodStatus) -> None:
    specs = {container.name: container for container in inputs.pod.spec.containers}
    for made in status.container_statuses:
        _set_started_and_ready(inputs, specs[made.name], made)
    specs = {container.name: container for container in inputs.pod.spec.init_containers}
    for made in status.init_container_statuses:
        container = specs[made.name]
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
    outcome = inputs.probes.get(ProbeKind.STARTUP, bare_id(status.container_id))
    if outcome is not None:
        return outcome is ProbeOutcome.SUCCESS
    # containers.py left here what was told about this very run before.
    return bool(status.started) or container.startup_probe is None


def _is_ready(inputs: StatusInputs, container: Container, status: ContainerStatus) -> bool:
    outcome = inputs.probes.get(ProbeKind.READINESS, bare_id(status.container_id))
    if outcome is ProbeOutcome.SUCCESS or container.readiness_probe is None:
        return True
    return outcome is None and _was_ready(inputs.told_of_containers, status)


def _was_ready(old: PodStatus, status: ContainerStatus) -> bool:
    """Whether this very run of the container was told to be ready before. (Going by its age instead would cut off
    what started shortly before the agent was restarted.)"""
    told = (*old.container_statuses, *old.init_container_statuses)
    return any(each.container_id == status.container_id and each.ready for each in told)
