"""Allocations and waiting resizes: order, conditions, preemption, and upstream's files."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pykubelet.api.types import Pod, PodCondition, PodStatus, ResourceRequirements
from pykubelet.cm.allocation import POD_UPDATED, AllocationManager, AllocationState, checksum, decode, encode
from pykubelet.cm.resize import ResizeRules
from pykubelet.kit.tasks import running
from pykubelet.model.pod import uid_of
from pykubelet.model.pod_resources import PodResourceInfo, effect_of
from pykubelet.signals import PodPreempted, ResizeChanged
from tests.builders import a_container, a_container_status, a_context, a_pod, a_runtime_status, at
from tests.fakes.recorded_events import RecordedEvents


@dataclass(frozen=True)
class Said:
    rejection: Said | None = None
    victims: tuple[Pod, ...] = ()
    short_of: str = "cpu"
    message: str = ""


def asking(name: str, cpu: str, *, priority: int = 0, generation: int = 1, status: PodStatus | None = None) -> Pod:
    resources = ResourceRequirements(requests={"cpu": cpu})
    container = a_container("app", resources=resources)
    return a_pod(name, containers=[container], priority=priority, generation=generation, status=status)


class AllocationFixture:
    """`room` is how much cpu one pod may ask for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.room = 1
        self.victims: tuple[Pod, ...] = ()
        self.judged: list[str] = []
        self.ready = True
        self.pods: dict[str, Pod] = {}
        self.events = RecordedEvents()
        self.woken: list[str] = []
        self.gone: list[tuple[str, str]] = []
        self.again()

    def again(self) -> None:
        ctx = a_context(events=self.events)
        self.metrics = ctx.metrics
        self.allocations = AllocationManager(
            ctx,
            root=self.folder,
            admission=self,
            table=self,
            sources_ready=lambda: self.ready,
            rules=ResizeRules(),
        )
        self.actuated = self.allocations.actuation
        ctx.signals.subscribe(ResizeChanged, lambda changed: self.woken.append(changed.uid))
        ctx.signals.subscribe(
            PodPreempted, lambda preempted: self.gone.append((uid_of(preempted.pod), preempted.resource))
        )

    def active_pods(self) -> list[Pod]:
        return list(self.pods.values())

    def pod(self, uid: str) -> Pod | None:
        return self.pods.get(uid)

    def decide(self, pod: Pod, others: Sequence[Pod]) -> Said:
        assert all(uid_of(other) != uid_of(pod) for other in others)
        self.judged.append(uid_of(pod).removeprefix("uid-"))
        assert pod.spec.containers[0].resources is not None
        fits = int(pod.spec.containers[0].resources.requests["cpu"]) <= self.room
        return Said(victims=self.victims) if fits else Said(rejection=Said(message="too big"))

    def run(self, pod: Pod) -> None:
        self.pods[uid_of(pod)] = pod
        self.allocations.admitted(pod)
        self.actuated.put(uid_of(pod), effect_of(pod))

    def request(self, pod: Pod) -> None:
        old = self.pods.get(uid_of(pod))
        self.pods[uid_of(pod)] = pod
        self.allocations.updated(old, pod)

    def allocated_cpu(self, name: str) -> str:
        resources = self.allocations.allocated(self.pods[f"uid-{name}"]).spec.containers[0].resources
        assert resources is not None
        return str(resources.requests["cpu"])

    def reasons(self, name: str) -> list[str | None]:
        return [each.reason for each in self.allocations.conditions(f"uid-{name}", terminal=False)]


async def test_a_request_that_fits_becomes_the_allocation_on_disk(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    bench.room = 4
    bench.run(asking("a", "1"))
    bench.request(asking("a", "2", generation=2))
    assert bench.allocated_cpu("a") == "2"
    assert bench.events.about == [("a", "ResizeStarted")] and bench.woken == ["uid-a"]
    bench.again()
    assert bench.allocated_cpu("a") == "2"


async def test_a_pod_is_merged_with_its_allocation_once(tmp_path: Path) -> None:
    fixture = AllocationFixture(tmp_path)
    fixture.allocations.admitted(asking("a", "500m"))
    larger = asking("a", "900m")
    merged = fixture.allocations.allocated(larger)
    assert merged.spec.containers[0].resources == ResourceRequirements(requests={"cpu": "500m"})
    assert fixture.allocations.allocated(larger) is merged
    fixture.allocations.admitted(larger)
    assert fixture.allocations.allocated(larger) is larger


async def test_waiting_requests_are_judged_in_their_order(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    for name in ("low", "high", "down"):
        bench.run(asking(name, "2"))
    bench.request(asking("low", "3"))
    bench.request(asking("high", "3", priority=10))
    bench.room = 0
    bench.request(asking("down", "1"))
    bench.judged.clear()
    bench.allocations.retry(POD_UPDATED)
    assert bench.judged == ["down", "high", "low"]
    assert bench.reasons("low") == ["Deferred"]
    # The same answer again is no news for anybody.
    count = len(bench.woken)
    bench.allocations.retry(POD_UPDATED)
    assert len(bench.woken) == count
    assert bench.events.about.count(("low", "ResizeDeferred")) == 1


async def test_nothing_is_judged_before_every_source_was_heard(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    bench.room = 4
    bench.run(asking("a", "1"))
    bench.ready = False
    bench.request(asking("a", "2"))
    assert bench.judged == []
    async with running(bench.allocations):
        await asyncio.sleep(29)
        bench.ready = True
        await asyncio.sleep(2)
        assert bench.allocated_cpu("a") == "2"


async def test_waiting_requests_are_judged_again_every_three_minutes(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    bench.run(asking("a", "1"))
    async with running(bench.allocations):
        bench.request(asking("a", "2"))
        bench.room = 2
        await asyncio.sleep(25)
        assert bench.allocated_cpu("a") == "1"
        await asyncio.sleep(10)
        assert bench.allocated_cpu("a") == "2"
        exposed = bench.metrics.expose()
        assert 'kubelet_pod_deferred_accepted_resizes_total{retry_trigger="periodic_retry"} 1' in exposed


async def test_an_allocation_that_cannot_be_written_does_not_count(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path / "not-there")
    bench.room = 4
    bench.run(asking("a", "1"))
    bench.request(asking("a", "2"))
    assert bench.allocated_cpu("a") == "1" and bench.events.all == []
    (tmp_path / "not-there").mkdir()
    bench.allocations.retry(POD_UPDATED)
    assert bench.allocated_cpu("a") == "2"


async def test_victims_of_a_critical_pod_are_handed_on(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    bench.room = 4
    other = asking("b", "1")
    bench.run(other)
    bench.run(asking("a", "1"))
    bench.victims = (other,)
    bench.request(asking("a", "2"))
    assert bench.gone == [("uid-b", "cpu")]


async def test_conditions_from_before_a_restart_are_kept(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    bench.run(asking("a", "1"))
    async with running(bench.allocations):
        await asyncio.sleep(0)
    bench.again()
    told = PodCondition(
        type="PodResizePending", status="True", reason="Deferred", message="too big", last_transition_time=at(5)
    )
    request = asking("a", "2", status=PodStatus(conditions=[told]))
    bench.pods["uid-a"] = request
    bench.allocations.added([request])
    (condition,) = bench.allocations.conditions("uid-a", terminal=False)
    assert condition.last_transition_time == at(5) and bench.allocated_cpu("a") == "1"
    assert bench.allocations.conditions("uid-a", terminal=True) == ()


async def test_an_unfinished_resize_shows_until_the_record_says_it_is_done(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    bench.room = 4
    bench.run(asking("a", "1"))
    request = asking("a", "2", generation=2)
    bench.request(request)
    status = a_runtime_status(request, a_container_status(request))
    bench.allocations.review(request, status)
    assert bench.reasons("a") == [None]
    bench.allocations.failed(request, "busy")
    bench.allocations.failed(request, "busy")
    bench.allocations.review(request, status)
    assert bench.reasons("a") == ["Error"]
    bench.actuated.put("uid-a", effect_of(request))
    bench.allocations.review(request, status)
    assert bench.reasons("a") == []
    assert bench.events.reasons() == ["ResizeStarted", "ResizeError", "ResizeCompleted"]


async def test_what_belongs_to_no_pod_is_forgotten(tmp_path: Path) -> None:
    bench = AllocationFixture(tmp_path)
    bench.run(asking("a", "1"))
    bench.request(asking("a", "2"))
    bench.allocations.keep_only([])
    assert bench.actuated.get("uid-a") is None and bench.allocations.conditions("uid-a", terminal=False) == ()
    bench.judged.clear()
    bench.allocations.retry(POD_UPDATED)
    assert bench.judged == []


# --- state on disk --------------------------------------------------------------------------------------------


INFO = PodResourceInfo(
    containers={"app": ResourceRequirements(requests={"cpu": "100m"}, limits={"cpu": "1", "memory": "64Mi"})},
    pod=ResourceRequirements(requests={"cpu": "1"}),
)
UPSTREAM = (
    r'{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",'
    r'\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}'
)


def test_a_file_of_upstreams_kubelet_is_read() -> None:
    entries = decode(UPSTREAM.encode())
    assert entries["pod1"].containers["container1"].requests == {"cpu": "1Ki", "memory": "1Ki"}
    assert entries["pod1"].pod is None


def test_ours_has_upstreams_shape() -> None:
    envelope = json.loads(encode({"u": INFO}))
    assert envelope["checksum"] == checksum(envelope["data"])
    assert json.loads(envelope["data"]) == {
        "entries": {
            "u": {
                "ContainerResources": {"app": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "64Mi"}}},
                "PodLevelResources": {"requests": {"cpu": "1"}},
            }
        }
    }
    assert decode(encode({"u": INFO})) == {"u": INFO}
    assert decode(encode({})) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{torn",
        b"[]",
        b'{"data":"{}"}',
        UPSTREAM.replace("1178570812", "1").encode(),
        UPSTREAM.replace("100m", "200m").replace("1Ki", "2Ki").encode(),
        json.dumps({"data": "[1]", "checksum": checksum("[1]")}).encode(),
        json.dumps({"data": '{"entries":{"u":3}}', "checksum": checksum('{"entries":{"u":3}}')}).encode(),
    ],
)
def test_a_damaged_file_is_noticed_and_set_aside(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "allocated_pods_state"
    path.write_bytes(raw)
    assert AllocationState(path).get("pod1") is None
    assert path.with_name("allocated_pods_state.damaged").read_bytes() == raw


def test_what_was_put_survives_and_what_was_dropped_does_not(tmp_path: Path) -> None:
    path = tmp_path / "allocated_pods_state"
    told: list[str] = []
    state = AllocationState(path, on_change=lambda: told.append("changed"))
    state.flush()
    assert not path.exists()
    state.put("u", INFO)
    state.put("v", INFO)
    state.put("v", INFO)
    state.put_container("v", "side", ResourceRequirements())
    state.put_pod_level("v", None)
    state.drop("u")
    state.drop("u")
    assert told == ["changed"] * 5
    state.flush()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    after = AllocationState(path)
    assert after.get("u") is None
    kept = after.get("v")
    assert kept is not None and set(kept.containers) == {"app", "side"} and kept.pod is None
    after.keep_only(["w"])
    assert after.get("v") is None


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "actuated_pods_state"
    path.write_bytes(b"{torn")
    state = AllocationState(path)
    assert state.get("u") is None
    assert path.with_name("actuated_pods_state.damaged").read_bytes() == b"{torn"
    state.put("u", INFO)
    state.flush()
    assert AllocationState(path).get("u") == INFO


def test_a_disk_that_refuses_is_an_error_and_the_change_is_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    state = AllocationState(path)
    state.put("u", INFO)
    with pytest.raises(OSError):
        state.flush()
    (tmp_path / "missing").mkdir()
    state.flush()
    assert AllocationState(path).get("u") == INFO
