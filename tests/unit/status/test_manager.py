"""The store of statuses: what it refuses, what it recalls after a restart of the agent."""

from __future__ import annotations

import pytest

from pykubelet.api.types import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodStatus,
)
from pykubelet.model.pod import ProbeKind, ProbeOutcome, uid_of
from pykubelet.pods.table import PodTable
from pykubelet.settings.gates import Gates
from pykubelet.settings.settings import Settings
from pykubelet.status.manager import StatusManager
from tests.builders import NOW, a_context, a_pod, at


def ended(code: int = 0) -> PodStatus:
    state = ContainerState(terminated=ContainerStateTerminated(exit_code=code))
    return PodStatus(container_statuses=[ContainerStatus(name="app", state=state)])


def running(*, started: bool = True, ready: bool = True, id: str = "1") -> PodStatus:
    state = ContainerState(running=ContainerStateRunning())
    each = ContainerStatus(name="app", container_id=f"fake://{id}", state=state, started=started, ready=ready)
    return PodStatus(container_statuses=[each], start_time=at(NOW + 60))


def a_manager(*, recalls: bool = True) -> tuple[StatusManager, PodTable]:
    gates = Gates({"ChangeContainerStatusOnKubeletRestart": not recalls})
    table = PodTable()
    return StatusManager(a_context(settings=Settings(gates=gates)), table), table


def flags(table: PodTable, pod: Pod) -> tuple[bool | None, bool | None]:
    status = table.reported_status(uid_of(pod))
    assert status is not None
    return status.container_statuses[0].started, status.container_statuses[0].ready


@pytest.mark.parametrize(
    ("policy", "code", "static", "refused"),
    [
        ("Never", 0, False, True),
        ("Never", 1, False, True),
        ("OnFailure", 0, False, True),
        ("OnFailure", 1, False, False),
        ("Always", 0, False, False),
        ("Never", 0, True, False),
    ],
)
async def test_what_the_api_server_shows_as_ended_is_not_running_again(
    policy: str, code: int, static: bool, refused: bool
) -> None:
    """The first status after a restart of the agent; a static pod lives again under its UID."""
    manager, table = a_manager()
    manager.status_of = lambda pod: ended(code)
    pod = a_pod(restart_policy=policy, static=static, status=PodStatus() if static else ended(code))
    manager.set_status(pod, running())
    assert (table.reported_status(uid_of(pod)) is None) is refused


async def test_a_mirror_speaks_for_containers_no_probe_has_spoken_of() -> None:
    (manager, table), pod = a_manager(), a_pod(static=True)
    before = running()
    before.start_time = at(NOW)
    manager.status_of = lambda pod: PodStatus()
    manager.set_status(pod, running(started=False, ready=False))
    assert flags(table, pod) == (False, False)
    manager.status_of = lambda pod: before
    manager.mirror_observed(uid_of(pod))
    assert flags(table, pod) == (True, True)
    reported = table.reported_status(uid_of(pod))
    assert reported is not None and reported.start_time == at(NOW)
    manager.probe_changed(pod, ProbeKind.READINESS, "1", ProbeOutcome.FAILURE)
    manager.mirror_observed(uid_of(pod))
    assert flags(table, pod) == (True, False)


@pytest.mark.parametrize("recalls", [True, False])
@pytest.mark.parametrize("id", ["1", "2"])
async def test_only_the_very_container_is_recalled_and_only_if_that_is_wanted(recalls: bool, id: str) -> None:
    (manager, table), pod = a_manager(recalls=recalls), a_pod(static=True)
    manager.status_of = lambda pod: running()
    manager.set_status(pod, running(started=False, ready=False, id=id))
    kept = recalls and id == "1"
    assert flags(table, pod) == (kept, kept)


@pytest.mark.parametrize("static", [True, False])
async def test_probes_of_containers_that_are_gone_are_not_kept(static: bool) -> None:
    (manager, table), pod = a_manager(), a_pod(static=static)
    for number in range(100):
        manager.set_status(pod, running(started=False, ready=False, id=str(number)))
        manager.probe_changed(pod, ProbeKind.STARTUP, str(number), ProbeOutcome.SUCCESS)
        manager.probe_changed(pod, ProbeKind.READINESS, str(number), ProbeOutcome.SUCCESS)
    assert len(table.get(uid_of(pod)).probed or ()) == (2 if static else 0)
