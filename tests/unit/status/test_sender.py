from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pykubelet.api.types import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStateWaiting,
    ContainerStatus,
    Pod,
    PodCondition,
    PodStatus,
)
from pykubelet.clients.kube.patch import pod_status_patch
from pykubelet.clients.kube.reflector import Query, Reflector
from pykubelet.kit.clock import LoopClock, utc
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiDown, ApiServerError, Expired, Invalid, TooManyRequests
from pykubelet.model.pod import MIRROR_ANNOTATION, uid_of
from pykubelet.pods.table import PodTable
from pykubelet.signals import PodStatusChanged
from pykubelet.status.manager import StatusManager
from pykubelet.status.sender import StatusSender
from tests.builders import a_context, a_pod
from tests.fakes.fake_kube import FakeKube


class SlowKube(FakeKube):
    """A server that takes its time for patches, and counts how many it works on at once."""

    patch_takes = 0.0
    working = 0
    most = 0

    async def patch(self, *args: Any, **fields: Any) -> Any:
        self.working += 1
        self.most = max(self.most, self.working)
        try:
            if self.patch_takes:
                await asyncio.sleep(self.patch_takes)
            return await super().patch(*args, **fields)
        finally:
            self.working -= 1


class SenderFixture:
    def __init__(self, make_patch: Callable[[Pod, PodStatus], dict[str, Any] | None] = pod_status_patch) -> None:
        self.clock = LoopClock()
        self.kube = SlowKube(self.clock)
        self.metrics = Registry()
        ctx = a_context(clock=self.clock, metrics=self.metrics)
        self.table = PodTable()
        self.statuses = StatusManager(ctx, self.table)
        self.could_run = False
        self.pods = Reflector(
            client=self.kube,
            query=Query(kind=Pod, field_selector="spec.nodeName=box"),
            clock=self.clock,
            on_change=lambda change: self.sender.observed(change),
        )
        self.sender = StatusSender(
            ctx,
            self.table,
            client=self.kube,
            api_pod=self.pods.get,
            make_patch=make_patch,
            could_run=lambda uid: self.could_run,
        )
        ctx.signals.subscribe(PodStatusChanged, lambda changed: self.sender.changed(changed.uid))

    def running(self) -> Any:
        return running(self.pods, self.sender)

    def bound(self, name: str = "web", **fields: Any) -> Pod:
        return self.kube.add(a_pod(name, node_name="box", **fields))

    def report(self, pod: Pod, phase: str, **fields: Any) -> None:
        self.statuses.set_status(pod, PodStatus(phase=phase, **fields))

    def shown(self, name: str = "web") -> PodStatus:
        pod = self.kube.find(Pod, name, "default")
        assert pod is not None
        return pod.status

    @property
    def patches(self) -> list[Any]:
        return [call.body for call in self.kube.calls_of("patch", Pod)]


def running_container(name: str = "app") -> ContainerStatus:
    state = ContainerState(running=ContainerStateRunning(started_at=utc(1_700_000_000)))
    return ContainerStatus(name=name, state=state, ready=True, restart_count=0)


async def test_a_change_is_sent_at_once_without_reading_the_pod_first() -> None:
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Running", container_statuses=[running_container()])
        await bed.clock.sleep(0.001)
        assert bed.shown().phase == "Running"
    assert bed.kube.calls_of("get", Pod) == []
    assert bed.patches[0]["metadata"] == {"uid": uid_of(pod)}
    assert bed.kube.calls_of("patch", Pod)[0].subresource == "status"
    assert bed.metrics.histogram("kubelet_pod_status_sync_duration_seconds", "").count() == 1


async def test_a_status_the_server_has_already_is_not_sent() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Running"))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Running")
        await bed.clock.sleep(60)
    assert bed.patches == []


async def test_what_changes_while_a_request_runs_is_sent_next_and_only_the_newest() -> None:
    bed = SenderFixture()
    bed.kube.patch_takes = 1.0
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Pending", reason="one")
        await bed.clock.sleep(0.5)
        for reason in ("two", "three", "four"):
            bed.report(pod, "Pending", reason=reason)
        await bed.clock.sleep(2)
        assert bed.shown().reason == "four"
    assert [patch["status"].get("reason") for patch in bed.patches] == ["one", "four"]


async def test_a_few_pods_are_sent_at_once_and_never_more() -> None:
    bed = SenderFixture()
    bed.kube.patch_takes = 0.1
    pods = [bed.bound(f"p{number}") for number in range(30)]
    async with bed.running():
        await bed.clock.sleep(1)
        for pod in pods:
            bed.report(pod, "Running")
        await bed.clock.sleep(0.5)
        assert all(bed.shown(f"p{number}").phase == "Running" for number in range(30))
    assert bed.kube.most == 8


async def test_nothing_is_lost_while_the_server_is_away() -> None:
    bed = SenderFixture()
    pods = [bed.bound(f"p{number}") for number in range(5)]
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.stop()
        for pod in pods:
            bed.report(pod, "Pending")
        await bed.clock.sleep(30)
        for pod in pods:
            bed.report(pod, "Running")
        await bed.clock.sleep(30)
        assert len(bed.kube.calls_of("patch", Pod)) < 100
        bed.kube.start()
        await bed.clock.sleep(6)
        assert all(bed.shown(f"p{number}").phase == "Running" for number in range(5))


async def test_a_pod_created_anew_under_the_same_name_keeps_its_own_status() -> None:
    bed = SenderFixture()
    old = bed.bound(uid="old")
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.remove(Pod, "web", "default")
        bed.kube.add(a_pod("web", node_name="box", uid="new"))
        bed.report(old, "Failed")
        await bed.clock.sleep(30)
        assert bed.shown().phase is None


async def test_a_pod_that_is_gone_is_not_asked_for_again_and_again() -> None:
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.remove(Pod, "web", "default")
        await bed.clock.sleep(1)
        bed.report(pod, "Failed")
        await bed.clock.sleep(60)
    assert bed.patches == []


async def test_a_status_that_somebody_else_overwrote_is_put_right() -> None:
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Running")
        await bed.clock.sleep(1)
        shown = bed.kube.find(Pod, "web", "default")
        assert shown is not None
        bed.kube.change(msgspec.structs.replace(shown, status=PodStatus(phase="Pending")))
        await bed.clock.sleep(0.01)
        assert bed.shown().phase == "Running"
    assert len(bed.patches) == 2


async def test_what_somebody_else_wrote_while_the_watch_was_away_is_put_right_too() -> None:
    """Our patch says only what changed since we looked; when the watch is back it shows nothing but our own answer."""
    bed = SenderFixture()
    before = [PodCondition(type="Ready", status="True", last_transition_time=utc(1_700_000_000))]
    pod = bed.bound(status=PodStatus(phase="Running", conditions=before))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.fail_next("watch", Expired("too old"))
        bed.kube.break_watches(ApiDown("connection reset"))
        await bed.clock.sleep(0.01)
        theirs = [PodCondition(type="Ready", status="False", last_transition_time=utc(1_700_000_050))]
        bed.kube.change(msgspec.structs.replace(pod, status=PodStatus(phase="Running", conditions=theirs)))
        later = [PodCondition(type="Ready", status="True", last_transition_time=utc(1_700_000_100))]
        bed.report(pod, "Running", conditions=later)
        await bed.clock.sleep(60)
        assert [condition.status for condition in bed.shown().conditions] == ["True"]
    assert len(bed.patches) == 2


async def test_an_end_is_held_back_until_nothing_runs() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Running"))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.could_run = True
        bed.report(pod, "Failed", reason="Evicted")
        await bed.clock.sleep(60)
        assert (bed.shown().phase, bed.shown().reason) == ("Running", None)
        bed.could_run = False
        bed.statuses.terminate(pod, PodStatus(phase="Failed", reason="Evicted"))
        await bed.clock.sleep(0.01)
        assert (bed.shown().phase, bed.shown().reason) == ("Failed", "Evicted")


async def test_an_end_held_back_is_found_even_if_nobody_says_that_it_may_go() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Running"))
    async with bed.running():
        bed.could_run = True
        bed.report(pod, "Failed")
        await bed.clock.sleep(5)
        bed.could_run = False
        await bed.clock.sleep(10)
        assert bed.shown().phase == "Failed"


async def test_a_finished_pod_that_was_to_go_is_deleted_for_good() -> None:
    bed = SenderFixture()
    pod = bed.bound(deleted=True)
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Failed")
        await bed.clock.sleep(30)
        assert bed.shown().phase == "Failed"
        bed.statuses.terminate(pod, PodStatus(phase="Failed"))
        await bed.clock.sleep(0.01)
        assert bed.kube.find(Pod, "web", "default") is None
    assert bed.kube.calls_of("delete", Pod)[0].body == {"grace": 0, "uid": uid_of(pod)}
    assert bed.table.reported(uid_of(pod)) is None


async def test_a_finished_pod_is_deleted_at_once_when_it_is_asked_to_go_later() -> None:
    bed = SenderFixture()
    pod = bed.bound(grace=30)
    async with bed.running():
        await bed.clock.sleep(1)
        bed.statuses.terminate(pod, PodStatus(phase="Succeeded"))
        await bed.clock.sleep(60)
        shown = bed.kube.find(Pod, "web", "default")
        assert shown is not None
        going = msgspec.structs.replace(shown.metadata, deletion_timestamp=utc(bed.clock.now()))
        bed.kube.change(msgspec.structs.replace(shown, metadata=going))
        await bed.clock.sleep(0.01)
        assert bed.kube.find(Pod, "web", "default") is None


async def test_deletion_is_retried_while_the_server_is_away() -> None:
    bed = SenderFixture()
    pod = bed.bound(deleted=True)
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.fail_next("delete", ApiServerError("etcd", code=500), times=3)
        bed.statuses.terminate(pod, PodStatus(phase="Failed"))
        await bed.clock.sleep(10)
        assert bed.kube.find(Pod, "web", "default") is None
    assert len(bed.kube.calls_of("delete", Pod)) == 4


async def test_the_status_of_a_static_pod_goes_to_its_mirror_once_there_is_one() -> None:
    bed = SenderFixture()
    static = a_pod("web", static=True, uid="hash-1")
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(static, "Running")
        await bed.clock.sleep(5)
        assert bed.patches == []
        bed.kube.add(a_pod("web", node_name="box", uid="mirror-1", annotations={MIRROR_ANNOTATION: "hash-1"}))
        await bed.clock.sleep(0.01)
        assert bed.shown().phase == "Running"
        assert bed.patches[0]["metadata"]["uid"] == "mirror-1"
        bed.kube.remove(Pod, "web", "default")
        bed.kube.add(a_pod("web", node_name="box", uid="mirror-2", annotations={MIRROR_ANNOTATION: "hash-1"}))
        await bed.clock.sleep(0.01)
        assert bed.shown().phase == "Running"


async def test_a_mirror_of_another_version_gets_no_status_and_no_deletion() -> None:
    bed = SenderFixture()
    static = a_pod("web", static=True, uid="hash-2")
    bed.kube.add(a_pod("web", node_name="box", uid="m", deleted=True, annotations={MIRROR_ANNOTATION: "hash-1"}))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.statuses.terminate(static, PodStatus(phase="Running"))
        await bed.clock.sleep(30)
    assert bed.patches == [] and bed.kube.calls_of("delete", Pod) == []


async def test_a_refused_status_is_sent_again_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """Webhooks and policies say no with the codes of a bad request, and may think otherwise a moment later."""
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.fail_next("patch", Invalid("no", code=422), times=3)
        bed.report(pod, "Running")
        await bed.clock.sleep(25)
        assert len(bed.patches) == 3
        assert bed.sender.unsent([uid_of(pod)]) == [uid_of(pod)]
        await bed.clock.sleep(10)
        assert bed.shown().phase == "Running"
        await bed.clock.sleep(60)
    assert len(bed.patches) == 4
    assert sum("refuses a status" in record.message for record in caplog.records if record.levelname == "ERROR") == 1


async def test_another_status_than_the_refused_one_is_sent_at_once() -> None:
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.fail_next("patch", Invalid("no", code=400))
        bed.report(pod, "Pending", reason="one")
        await bed.clock.sleep(1)
        bed.report(pod, "Running")
        await bed.clock.sleep(0.01)
        assert bed.shown().phase == "Running"


async def test_a_pod_whose_last_status_was_refused_once_is_deleted_all_the_same() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Running"))
    await bed.kube.delete(Pod, "web", "default", grace_seconds=30)
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.fail_next("patch", Invalid("no", code=400))
        bed.statuses.terminate(pod, PodStatus(phase="Failed"))
        await bed.clock.sleep(12)
        assert bed.kube.find(Pod, "web", "default") is None


async def test_a_server_restored_from_a_backup_learns_what_it_lost() -> None:
    """Its versions are lower than those it answered with before."""
    bed = SenderFixture()
    bed.kube.store.version = 5000
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Running")
        await bed.clock.sleep(1)
        bed.kube.store.version = 100
        bed.kube.store.compact()
        bed.kube.fail_next("watch", Expired("too old"))
        bed.kube.change(msgspec.structs.replace(pod, status=PodStatus(phase="Pending")))
        bed.kube.break_watches(ApiDown("connection reset"))
        await bed.clock.sleep(80)
        assert bed.shown().phase == "Running"
        count = len(bed.patches)
        await bed.clock.sleep(300)
        assert len(bed.patches) == count


async def test_a_busy_server_is_left_alone_for_as_long_as_it_asks() -> None:
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.fail_next("patch", TooManyRequests("later", code=429, retry_after=3.0))
        bed.report(pod, "Running")
        await bed.clock.sleep(2.9)
        assert len(bed.patches) == 1
        await bed.clock.sleep(0.2)
        assert bed.shown().phase == "Running"


async def test_last_statuses_leave_before_the_agent_does() -> None:
    bed = SenderFixture()
    bed.kube.patch_takes = 1.0
    pods = [bed.bound(f"p{number}") for number in range(20)]
    async with bed.running():
        await bed.clock.sleep(1)
        for pod in pods:
            bed.report(pod, "Running")
        await bed.clock.sleep(0.1)
    assert all(bed.shown(f"p{number}").phase == "Running" for number in range(20))


async def test_leaving_does_not_wait_for_a_server_that_is_away() -> None:
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.kube.patch_takes = 3600.0
        bed.report(pod, "Running")
        began = bed.clock.monotonic()
    assert bed.clock.monotonic() - began <= 5.1


async def test_records_of_forgotten_pods_are_dropped() -> None:
    bed = SenderFixture()
    pod = bed.bound()
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Running")
        await bed.clock.sleep(1)
        bed.sender.keep_only([])
        bed.report(pod, "Pending")
        await bed.clock.sleep(1)
        assert bed.shown().phase == "Pending"


async def test_a_status_that_cannot_even_be_made_is_that_pod_s_trouble_alone() -> None:
    broken = True

    def make_patch(pod: Pod, status: PodStatus) -> dict[str, Any] | None:
        if broken and pod.metadata.name == "odd":
            raise ValueError("a condition of nobody's")
        return pod_status_patch(pod, status)

    bed = SenderFixture(make_patch)
    odd, good = bed.bound("odd"), bed.bound("good")
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(odd, "Running")
        bed.report(good, "Running")
        await bed.clock.sleep(1)
        assert bed.shown("good").phase == "Running" and bed.shown("odd").phase != "Running"
        broken = False
        await bed.clock.sleep(120)
        assert bed.shown("odd").phase == "Running"
        broken = True
        bed.report(odd, "Failed")


def being_made(*names: str) -> list[ContainerStatus]:
    waiting = ContainerStateWaiting(reason="ContainerCreating")
    return [ContainerStatus(name=name, state=ContainerState(waiting=waiting), ready=False) for name in names]


async def test_a_pod_that_starts_quickly_needs_one_request() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Pending"))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Pending", container_statuses=being_made("app"))
        await bed.clock.sleep(0.3)
        bed.report(pod, "Running", container_statuses=[running_container()])
        await bed.clock.sleep(0.001)
        assert bed.shown().phase == "Running", "this one does not wait"
        await bed.clock.sleep(60)
    assert len(bed.patches) == 1


async def test_a_pod_that_starts_slowly_is_shown_after_half_a_second() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Pending"))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Pending", container_statuses=being_made("app", "other"))
        await bed.clock.sleep(0.45)
        bed.report(pod, "Pending", container_statuses=being_made("app", "other"), pod_ip="10.0.0.1")
        assert bed.shown().container_statuses == []
        await bed.clock.sleep(0.06)
        assert [each.name for each in bed.shown().container_statuses] == ["app", "other"]
    assert len(bed.patches) == 1


async def test_a_pod_that_cannot_start_is_shown_at_once() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Pending"))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Pending", container_statuses=being_made("app"))
        await bed.clock.sleep(0.1)
        pulling = ContainerState(waiting=ContainerStateWaiting(reason="ErrImagePull", message="no such image"))
        bed.report(pod, "Pending", container_statuses=[ContainerStatus(name="app", state=pulling)])
        await bed.clock.sleep(0.001)
        assert [each.state for each in bed.shown().container_statuses] == [pulling]


async def test_what_waits_leaves_with_the_agent() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Pending"))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.report(pod, "Pending", container_statuses=being_made("app"))
        await bed.clock.sleep(0.1)
    assert [each.name for each in bed.shown().container_statuses] == ["app"]


async def test_what_controllers_wait_for_is_sent_first() -> None:
    """Ends, then readiness and phases, then the rest, however they came; what is under way is not interrupted."""
    bed = SenderFixture()
    bed.kube.patch_takes = 1.0
    ready = [PodCondition(type="Ready", status="True")]
    before = PodStatus(phase="Running", conditions=ready)
    pods = [bed.bound(f"p{number:02}", status=before) for number in range(40)]
    async with bed.running():
        await bed.clock.sleep(1)
        for number, pod in enumerate(pods):
            bed.report(pod, "Running", conditions=ready, message=f"told {number}")
        await bed.clock.sleep(0.1)
        for pod in pods[24:32]:
            bed.report(pod, "Running", conditions=[PodCondition(type="Ready", status="False")])
        for pod in pods[32:]:
            bed.report(pod, "Succeeded", conditions=ready)
        await bed.clock.sleep(6)
    order = [call.name for call in bed.kube.calls_of("patch", Pod)]
    names = [f"p{number:02}" for number in range(40)]
    assert [sorted(order[at : at + 8]) for at in (0, 8, 16)] == [names[:8], names[32:], names[24:32]]
    assert sorted(order[24:]) == names[8:24]


async def test_an_end_that_is_certain_in_a_moment_takes_one_request() -> None:
    """First its containers have ended, then nothing of it can run any more."""
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Running", container_statuses=[running_container()]))
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=0))
    last = [ContainerStatus(name="app", state=ended, ready=False, restart_count=0)]
    async with bed.running():
        await bed.clock.sleep(1)
        bed.could_run = True
        bed.report(pod, "Succeeded", container_statuses=last)
        await bed.clock.sleep(0.1)
        assert bed.patches == []
        bed.could_run = False
        stopped = [PodCondition(type="PodReadyToStartContainers", status="False")]
        bed.report(pod, "Succeeded", container_statuses=last, conditions=stopped)
        await bed.clock.sleep(0.001)
        assert bed.shown().phase == "Succeeded"
        await bed.clock.sleep(60)
    assert len(bed.patches) == 1


async def test_an_end_that_takes_long_shows_its_containers_soon() -> None:
    bed = SenderFixture()
    pod = bed.bound(status=PodStatus(phase="Running", container_statuses=[running_container()]))
    ended = ContainerState(terminated=ContainerStateTerminated(exit_code=0))
    async with bed.running():
        await bed.clock.sleep(1)
        bed.could_run = True
        last = ContainerStatus(name="app", state=ended, ready=False, restart_count=0)
        bed.report(pod, "Succeeded", container_statuses=[last])
        await bed.clock.sleep(0.25)
        assert bed.shown().phase == "Running"
        assert [each.state for each in bed.shown().container_statuses] == [ended]
