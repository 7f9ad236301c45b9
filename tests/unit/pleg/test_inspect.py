"""Reading one pod: order, addresses, races, and how few calls a repeat costs."""

from __future__ import annotations

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import CriNotFound, RuntimeDown
from pykubelet.model.runtime_status import (
    NamespaceMode,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
    SandboxStatus,
)
from pykubelet.pleg.inspect import inspect_pod, is_settled_sandbox, pod_ips
from tests.fakes.fake_cri import FakeCri
from tests.unit.pleg.pods import IMAGE, start_container, start_pod, start_sandbox


def a_cri() -> FakeCri:
    return FakeCri(LoopClock(), images=[IMAGE])


async def test_everything_of_one_pod_newest_first() -> None:
    cri = a_cri()
    await start_pod(cri, "web", "app")
    await start_pod(cri, "other", "app")
    cri.exit("app", 1, pod="web")
    newer = await start_container(cri, "web", "app", attempt=1)
    found = await inspect_pod(cri, "uid-web", started=7.0)
    status = found.status
    assert (status.uid, status.name, status.namespace, status.observed_at) == ("uid-web", "web", "default", 7.0)
    assert [(c.name, c.attempt) for c in status.containers] == [("app", 1), ("app", 0)]
    assert status.container("app").id == newer  # type: ignore[union-attr]
    assert {c.sandbox_id for c in status.containers} == {cri.sandbox("web").id}
    assert status.ips == cri.sandbox("web").ips


async def test_a_pod_the_runtime_does_not_know_is_empty() -> None:
    found = await inspect_pod(a_cri(), "uid-web", started=1.0)
    assert found.status == PodRuntimeStatus(uid="uid-web", observed_at=1.0)


async def test_a_repeat_asks_only_for_what_can_change() -> None:
    cri = a_cri()
    await start_pod(cri, "web", "app", "side")
    cri.exit("side", pod="web")
    first = await inspect_pod(cri, "uid-web", started=1.0)
    cri.calls.clear()
    second = await inspect_pod(cri, "uid-web", started=2.0, before=first.status)
    assert [c.verb for c in cri.calls] == ["list_pod_sandboxes", "list_containers", "container_status"]
    assert cri.calls[-1].name == "app"
    assert second.status.containers == first.status.containers


async def test_a_listing_at_hand_saves_the_lists() -> None:
    cri = a_cri()
    await start_pod(cri, "web", "app")
    first = await inspect_pod(cri, "uid-web", started=1.0)
    cri.calls.clear()
    second = await inspect_pod(cri, "uid-web", started=9.0, listing=first.listing)
    assert {c.verb for c in cri.calls} == {"pod_sandbox_status", "container_status"}
    assert second.status == first.status  # it is as new as its listing


async def test_what_vanishes_after_the_listing_is_left_out() -> None:
    cri = a_cri()
    await start_pod(cri, "web", "app", "side")
    cri.fail_next("container_status", CriNotFound("gone"), "side")
    found = await inspect_pod(cri, "uid-web", started=1.0)
    assert [c.name for c in found.status.containers] == ["app"]
    assert len(found.listing.containers) == 2


async def test_other_errors_pass() -> None:
    cri = a_cri()
    await start_pod(cri, "web", "app")
    cri.fail_next("pod_sandbox_status", RuntimeDown("gone"))
    with pytest.raises(RuntimeDown):
        await inspect_pod(cri, "uid-web", started=1.0)


async def test_a_pod_without_ready_sandbox_keeps_its_addresses() -> None:
    cri = a_cri()
    await start_sandbox(cri, "web")
    first = await inspect_pod(cri, "uid-web", started=1.0)
    await cri.stop_pod_sandbox(cri.sandbox("web").id)
    cri.sandbox("web").ips = ()
    second = await inspect_pod(cri, "uid-web", started=2.0, before=first.status)
    assert second.status.ips == first.status.ips != ()


def a_box(state: SandboxState, *ips: str, mode: NamespaceMode = NamespaceMode.POD) -> SandboxStatus:
    return SandboxStatus(id="s", pod_uid="u", pod_name="p", pod_namespace="n", state=state, ips=ips, network_mode=mode)


READY, DOWN = SandboxState.READY, SandboxState.NOT_READY
BEFORE = PodRuntimeStatus(uid="u", ips=("10.0.0.9",))


@pytest.mark.parametrize(
    ("boxes", "before", "expected"),
    [
        ([], None, ()),
        ([a_box(READY, "10.0.0.1")], None, ("10.0.0.1",)),
        ([a_box(READY, "10.0.0.1")], BEFORE, ("10.0.0.1",)),
        ([a_box(READY)], BEFORE, ()),
        ([a_box(DOWN, "10.0.0.1")], None, ()),
        ([a_box(DOWN)], BEFORE, ("10.0.0.9",)),
        ([], BEFORE, ("10.0.0.9",)),
        ([a_box(DOWN), a_box(READY, "10.0.0.1")], BEFORE, ()),
    ],
)
def test_addresses(boxes: list[SandboxStatus], before: PodRuntimeStatus | None, expected: tuple[str, ...]) -> None:
    assert pod_ips(boxes, before) == expected


@pytest.mark.parametrize(
    ("known", "now", "settled"),
    [
        (a_box(READY, "10.0.0.1"), READY, True),
        (a_box(READY), READY, False),
        (a_box(READY, mode=NamespaceMode.NODE), READY, True),
        (a_box(READY, "10.0.0.1"), DOWN, False),
        (a_box(DOWN), DOWN, True),
    ],
)
def test_settled_sandboxes(known: SandboxStatus, now: SandboxState, settled: bool) -> None:
    record = SandboxRecord(id="s", pod_uid="u", pod_name="p", pod_namespace="n", state=now)
    assert is_settled_sandbox(known, record) is settled
