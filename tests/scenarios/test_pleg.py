"""The event generator on the fake runtime: streams, relists, hangs, restarts of the runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from pykubelet.clients.cri.port import EventSource
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CallTimedOut, CriError, NotFound, RuntimeDown
from pykubelet.model.runtime_status import ContainerEvent, EventKind
from pykubelet.pleg.pleg import EXIT_PAUSES, Pleg, PlegSettings
from pykubelet.pods.table import PodTable
from pykubelet.settings.gates import Gates
from pykubelet.settings.settings import Settings
from pykubelet.signals import ContainerDied, ContainerRemoved, ContainerStarted, InspectionRecovered, PodSignal, Signals
from tests.builders import a_context
from tests.fakes.fake_cri import FakeCri
from tests.unit.pleg.pods import IMAGE, start_container, start_pod, start_sandbox


class Node:
    """A PLEG on a fake runtime; remembers when which signal was published."""

    def __init__(
        self,
        *,
        events: bool = True,
        anonymous: bool = False,
        settings: PlegSettings | None = None,
        gates: dict[str, bool] | None = None,
    ) -> None:
        self.clock = LoopClock()
        self.cri = FakeCri(self.clock, images=[IMAGE])
        self.cri.events_supported = events
        self.table, signals = PodTable(), Signals()
        opened = self._anonymous if anonymous else self.cri.container_events
        self.pleg = Pleg(
            a_context(clock=self.clock, signals=signals, settings=Settings(gates=Gates(gates or {}))),
            self.cri,
            self.table,
            source=EventSource(name="stream", open=opened),
            settings=settings,
        )
        self.published: list[tuple[float, PodSignal]] = []
        for kind in (ContainerStarted, ContainerDied, ContainerRemoved, InspectionRecovered):
            signals.subscribe(kind, lambda event: self.published.append((self.clock.monotonic(), event)))

    async def _anonymous(self) -> AsyncIterator[ContainerEvent]:
        """containerd's own stream: ids only."""
        async for event in self.cri.container_events():
            yield ContainerEvent(container_id=event.container_id, kind=event.kind)

    @asynccontextmanager
    async def up(self, *pods: str) -> AsyncIterator[None]:
        """Running with these pods, everything about them published already."""
        for pod in pods:
            await start_pod(self.cri, pod)
        async with running(self.pleg):
            await self.clock.sleep(5)
            self.published.clear()
            self.cri.calls.clear()
            yield

    def events(self, kind: type[PodSignal], pod: str | None = None) -> list[PodSignal]:
        return [e for _, e in self.published if isinstance(e, kind) and (pod is None or e.uid == f"uid-{pod}")]

    def delay(self, kind: type[PodSignal], pod: str, since: float) -> float:
        return round(next(at for at, e in self.published if isinstance(e, kind) and e.uid == f"uid-{pod}") - since, 3)

    def relists(self) -> list[float]:
        return [round(c.at, 3) for c in self.cri.called("list_containers") if not c.pod_uid]


async def test_first_relist_tells_of_what_is_there() -> None:
    node = Node()
    await start_pod(node.cri, "web")
    async with running(node.pleg):
        status = await node.pleg.status_newer_than("uid-web", 0.0)
        assert [c.name for c in status.running()] == ["app"]
        assert (await node.pleg.status_newer_than("uid-none", 0.0)).sandboxes == ()
        assert len(node.events(ContainerStarted, "web")) == 2


@pytest.mark.parametrize("anonymous", [False, True])
async def test_a_crash_is_told_at_once(anonymous: bool) -> None:
    node = Node(anonymous=anonymous)
    async with node.up("web", "other"):
        before = node.clock.monotonic()
        node.cri.exit("app", 1, pod="web")
        await node.clock.sleep(1)
        assert node.delay(ContainerDied, "web", before) == 0.0
        assert node.table.runtime_status("uid-web").container("app").exit_code == 1  # type: ignore[union-attr]
        assert len(node.published) == 1 and node.relists() == []


async def test_a_runtime_that_still_says_running_is_asked_again() -> None:
    """containerd's CRI part may lag behind the stream it shares with us."""
    node = Node(anonymous=True)
    async with node.up("web"):
        app = node.cri.container("app", "web")
        before = node.clock.monotonic()
        node.pleg.hint(ContainerEvent(container_id=app.id, kind=EventKind.STOPPED))
        with node.cri.lost_events():
            node.cri.end_later(app, 0.05, 1, "")
            await node.clock.sleep(1)
        assert node.delay(ContainerDied, "web", before) == 0.075
        assert node.relists() == []


async def test_a_wrong_hint_of_an_end_is_given_up() -> None:
    node = Node()
    async with node.up("web"):
        app = node.cri.container("app", "web")
        node.pleg.hint(ContainerEvent(container_id=app.id, kind=EventKind.STOPPED))
        await node.clock.sleep(5)
        assert len(node.cri.called("container_status")) == 1 + len(EXIT_PAUSES)
        assert node.published == [] and node.pleg.snapshot().due == 0


async def test_own_actions_echo_nothing() -> None:
    node = Node(anonymous=True)
    async with node.up():
        await start_sandbox(node.cri, "web")
        await node.pleg.inspect("uid-web")
        await start_container(node.cri, "web")
        await node.pleg.inspect("uid-web")
        calls, published = len(node.cri.calls), len(node.published)
        assert all(e.requested for _, e in node.published if isinstance(e, ContainerStarted))
        await node.clock.sleep(1)
        assert len(node.published) == published == 2
        assert len(node.cri.calls) == calls, "the stream's echo of our own actions costs no calls"


async def test_without_refresh_a_start_is_told_after_settling() -> None:
    node = Node()
    async with node.up():
        before = node.clock.monotonic()
        await start_pod(node.cri, "web")
        await node.clock.sleep(1)
        assert node.delay(ContainerStarted, "web", before) == 0.2


async def test_unknown_ids_lead_to_a_relist() -> None:
    node = Node(anonymous=True)
    async with node.up():
        before = node.clock.monotonic()
        await start_pod(node.cri, "web")
        await node.clock.sleep(4)
        assert node.delay(ContainerStarted, "web", before) == 3.0
        assert len(node.relists()) == 1


async def test_a_pod_that_takes_long_to_start_costs_no_relist() -> None:
    node = Node(anonymous=True)
    async with node.up():
        await start_pod(node.cri, "web")
        await node.clock.sleep(2)
        await node.pleg.inspect("uid-web")  # its worker looks when the containers are started
        await node.clock.sleep(4)
        assert len(node.relists()) == 0


async def test_foreign_containers_cause_at_most_a_relist_a_second() -> None:
    node = Node(anonymous=True)
    async with node.up():
        for number in range(100):
            node.pleg.hint(ContainerEvent(container_id=f"x{number}", kind=EventKind.STARTED))
            await node.clock.sleep(0.05)
        assert len(node.relists()) <= 6


async def test_without_a_stream_the_relist_finds_everything() -> None:
    node = Node(events=False)
    async with node.up("web"):
        node.cri.exit("app", 1, pod="web")
        await node.clock.sleep(1.01)
        assert len(node.events(ContainerDied, "web")) == 1
        await node.cri.remove_pod_sandbox(node.cri.sandbox("web").id)
        await node.clock.sleep(1.01)
        removed = node.events(ContainerRemoved, "web")
        assert len(removed) == 2
        assert [status.uid for status in node.table.runtime_statuses()] == ["uid-web"]
        await node.clock.sleep(1.01)
        assert node.table.runtime_statuses() == []


@pytest.mark.parametrize(
    ("gates", "used"), [({}, True), ({"EventedPLEG": True}, True), ({"EventedPLEG": False}, False)]
)
async def test_events_are_used_unless_the_gate_is_set_to_false(gates: dict[str, bool], used: bool) -> None:
    node = Node(gates=gates)
    async with node.up("web"):
        await node.clock.sleep(30.5)
        assert (len(node.relists()) < 5) is used
        before = node.clock.monotonic()
        node.cri.exit("app", 1, pod="web")
        await node.clock.sleep(2)
        assert (node.delay(ContainerDied, "web", before) == 0.0) is used


async def test_relist_is_an_audit_while_the_stream_works() -> None:
    node = Node()
    async with node.up("web"):
        await node.clock.sleep(60)
        assert len(node.relists()) == 4
        assert {c.verb for c in node.cri.calls} == {"list_containers", "list_pod_sandboxes"}


async def test_the_audit_finds_what_the_stream_missed() -> None:
    node = Node()
    async with node.up("web"):
        with node.cri.lost_events():
            node.cri.exit("app", 1, pod="web")
        await node.clock.sleep(15)
        assert len(node.events(ContainerDied, "web")) == 1


async def test_a_hanging_inspection_delays_nobody_else() -> None:
    node = Node()
    async with node.up("stuck", "web"):
        fault = node.cri.hang("container_status", "uid-stuck")
        node.cri.exit("app", 1, pod="stuck")
        await node.clock.sleep(1)
        before = node.clock.monotonic()
        node.cri.exit("app", 1, pod="web")
        await node.clock.sleep(1)
        assert node.delay(ContainerDied, "web", before) == 0.0
        await node.clock.sleep(600)
        assert node.pleg.healthy() == (True, "")
        assert node.events(ContainerDied, "stuck") == []
        assert isinstance(node.table.observed("uid-stuck").error, CallTimedOut)
        assert node.table.runtime_status("uid-stuck").sandboxes
        fault.release()
        await node.clock.sleep(100)
        assert len(node.events(ContainerDied, "stuck")) == 1
        assert node.table.runtime_status("uid-stuck").running() == ()


async def test_a_hanging_pod_is_not_asked_without_pause() -> None:
    node = Node(events=False)
    async with node.up("stuck"):
        node.cri.hang("container_status", "uid-stuck")
        node.cri.exit("app", 1, pod="stuck")
        await node.clock.sleep(600)
        assert len(node.cri.called("container_status", "uid-stuck")) <= 12


async def test_a_waiting_worker_hears_of_the_failed_inspection() -> None:
    node = Node()
    async with node.up("stuck"):
        node.cri.fail_next("container_status", CriError("broken shim"), "uid-stuck")
        with pytest.raises(CriError, match="broken shim"):
            await node.pleg.status_newer_than("uid-stuck", node.clock.monotonic() + 0.001)
        await node.clock.sleep(1.5)
        assert node.table.runtime_status("uid-stuck").running()
        assert node.events(InspectionRecovered, "stuck") != []


async def test_status_newer_than_uses_the_cache_when_it_can() -> None:
    node = Node()
    async with node.up("web"):
        await node.pleg.status_newer_than("uid-web", 0.0)
        assert node.cri.calls == []
        assert (await node.pleg.status_newer_than("uid-web", node.clock.monotonic())).running()
        assert len(node.cri.called("list_containers")) == 1


async def test_the_runtime_restarts() -> None:
    node = Node()
    async with node.up("web", "other"):
        node.cri.crash()
        node.cri.exit("app", 1, pod="web")  # while no stream is open
        await node.clock.sleep(30)
        assert node.published == []
        with pytest.raises(RuntimeDown):
            await node.pleg.inspect("uid-other")
        node.cri.restore()
        back = node.clock.monotonic()
        await node.clock.sleep(10)
        assert node.delay(ContainerDied, "web", back) <= 1.0
        assert node.table.runtime_status("uid-other").running()
        assert node.pleg.snapshot().source == "stream"
        before = node.clock.monotonic()
        node.cri.exit("app", 1, pod="other")
        await node.clock.sleep(1)
        assert node.delay(ContainerDied, "other", before) == 0.0
        node.cri.calls.clear()
        await node.clock.sleep(60)
        assert len(node.relists()) == 4


async def test_a_stream_that_comes_back_is_followed_by_a_relist() -> None:
    node = Node()
    async with node.up("web"):
        node.cri.drop_subscribers()
        await node.clock.sleep(5)
        # one second after the loss, then each second until the new stream is believed, then once more
        assert len(node.relists()) >= 2
        node.cri.calls.clear()
        await node.clock.sleep(30)
        assert len(node.relists()) == 2


async def test_health_blames_the_runtime_only_when_it_is_gone() -> None:
    node = Node()
    assert node.pleg.healthy() == (False, "pleg has yet to be successful")
    async with node.up("web"):
        assert node.pleg.healthy() == (True, "")
        node.cri.hang("list_containers")
        node.cri.hang("list_pod_sandboxes")
        await node.clock.sleep(170)
        assert node.pleg.healthy() == (True, "")
        await node.clock.sleep(30)
        healthy, message = node.pleg.healthy()
        assert not healthy
        assert message.startswith("pleg was last seen active 3m") and message.endswith("; threshold is 3m0s")


async def test_a_relist_overtaken_by_a_refresh_tells_nothing_wrong() -> None:
    """A slow listing shows the past; what an inspection found since must not be published backwards."""
    node = Node(events=False)
    async with node.up("web"):
        slow = node.cri.slow("list_pod_sandboxes", 5.0, times=1)
        await node.clock.sleep(1.5)
        assert slow.hits == 1
        node.cri.exit("app", 1, pod="web")
        await node.pleg.inspect("uid-web")
        await node.clock.sleep(10)
        assert [type(e) for _, e in node.published] == [ContainerDied]


async def test_a_relist_overtaken_by_the_removal_of_a_pod_leaves_no_record() -> None:
    """The slow listing still shows the pod, an inspection since then shows nothing: the newer one counts."""
    node = Node(events=False)
    async with node.up("web"):
        slow = node.cri.slow("list_pod_sandboxes", 5.0, times=1)
        await node.clock.sleep(1.5)
        assert slow.hits == 1
        sandbox = node.cri.sandbox("web").id
        await node.cri.stop_pod_sandbox(sandbox)
        await node.cri.remove_pod_sandbox(sandbox)
        assert not (await node.pleg.inspect("uid-web")).containers
        await node.clock.sleep(10)
        assert node.table.get("uid-web") is None


async def test_what_is_listed_without_a_status_is_inspected_once() -> None:
    node = Node(events=False)
    async with node.up():
        for verb in ("pod_sandbox_status", "container_status"):
            node.cri.fail_next(verb, NotFound("no such thing"), times=None)
        await start_pod(node.cri, "odd")
        await node.clock.sleep(30)
        assert len(node.cri.called("container_status")) <= 2
        assert not node.table.is_down("uid-odd")
        sandbox = node.cri.sandbox("odd").id
        await node.cri.stop_pod_sandbox(sandbox)
        await node.cri.remove_pod_sandbox(sandbox)
        await node.clock.sleep(5)
        assert node.table.get("uid-odd") is None


async def test_leaving_cancels_everything() -> None:
    node = Node()
    async with node.up("stuck"):
        node.cri.hang("container_status", "uid-stuck")
        node.cri.exit("app", 1, pod="stuck")
        await node.clock.sleep(1)
    # the harness fails the test if a task is left


@pytest.mark.parametrize("requested", [True, False])
async def test_who_looks_for_another_reason_keeps_nothing_from_the_worker(requested: bool) -> None:
    """Without a stream an end that such an inspection finds first causes no other event."""
    node = Node(events=False)
    async with node.up("web"):
        node.cri.exit("app", 1, pod="web")
        await node.pleg.inspect("uid-web", requested=requested)
        await node.clock.sleep(60)
        assert [event.requested for event in node.events(ContainerDied, "web") if isinstance(event, ContainerDied)] == [
            requested
        ]
