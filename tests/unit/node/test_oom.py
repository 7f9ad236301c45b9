"""Lines of real kernels, which container a killed process was in, whose limit it was, and floods of kills."""

from __future__ import annotations

import pytest

from pykubelet.clients.host.kernel import text_of
from pykubelet.clients.host.port import AlarmRefused
from pykubelet.edges import GuardEdges
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.node.oom import Kill, KillReader, OomWatcher, Victim, find_victim, whose_limit
from pykubelet.pods.table import PodTable
from pykubelet.stats.snapshot import CgroupNames
from tests.builders import a_container_status, a_context, a_pod, a_runtime_status
from tests.fakes.fake_guard import FakeKernelLog

ID = "f" * 64


class Groups:
    def __init__(self) -> None:
        self.alive = True

    def exists(self, path: str) -> bool:
        return self.alive

    def processes(self, path: str) -> tuple[int, ...]:
        return (1,) if self.alive else ()

    def locate(self, parent: str, container_id: str) -> str | None:
        return None

    def oom_kills(self, path: str) -> int | None:
        return None


class OomWatcherFixture:
    def __init__(self) -> None:
        self.clock, self.log, self.groups = LoopClock(), FakeKernelLog(), Groups()
        pod = a_pod("web")
        self.table = PodTable()
        self.table.put(pod)
        self.show(a_runtime_status(pod, containers=[a_container_status(pod, "app", id=ID)]))
        self.events = EventBroadcaster(clock=self.clock, node_name="n1")
        self.scores: list[int] = []
        guard = GuardEdges(cgroups=self.groups, host=None, kernel_log=self.log, set_oom_score=self.score)
        ctx = a_context(clock=self.clock, events=self.events)
        self.watcher = OomWatcher(ctx, guard, cgroups=CgroupNames(), table=self.table)
        self.refuses = False

    def show(self, status: PodRuntimeStatus) -> None:
        self.table.observe(status, {})

    def score(self, value: int) -> None:
        if self.refuses:
            raise AlarmRefused("/proc/self/oom_score_adj: Permission denied")
        self.scores.append(value)

    def kill(self, pid: int, name: str = "tail") -> None:
        group = f"/kubepods/poduid-web/{ID}"
        self.log.say(
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg={group},"
            f"task_memcg={group},task={name},pid={pid},uid=0"
        )

    def reported(self) -> list[str]:
        return [event.message for event in self.events.all() if event.reason == "OOMKilling"]


async def test_floods_are_counted() -> None:
    bed = OomWatcherFixture()
    async with running(bed.watcher):
        await bed.clock.sleep(0.1)
        for pid in range(100, 150):
            bed.kill(pid)
        await bed.clock.sleep(1)
        assert len(bed.reported()) == 1 and "pid 100" in bed.reported()[0]
        await bed.clock.sleep(6)
        bed.kill(200)
        await bed.clock.sleep(1)
        assert len(bed.reported()) == 2 and bed.reported()[1].endswith("; 49 more were killed since the last event")


async def test_a_container_that_ends_with_it() -> None:
    bed = OomWatcherFixture()
    async with running(bed.watcher):
        await bed.clock.sleep(0.1)
        bed.groups.alive = False
        bed.kill(1)
        await bed.clock.sleep(1)
    assert "which ends with it" in bed.reported()[0]


async def test_an_agent_that_may_not_protect_itself_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    bed = OomWatcherFixture()
    bed.refuses = True
    async with running(bed.watcher):
        await bed.clock.sleep(0.1)
        bed.kill(1)
        await bed.clock.sleep(1)
    assert len([r for r in caplog.records if "oomScoreAdj" in r.message]) == 1 and bed.reported()


async def test_a_container_that_is_killed_before_the_agent_has_seen_it_run() -> None:
    bed = OomWatcherFixture()
    pod = a_pod("web")
    bed.show(a_runtime_status(pod))
    async with running(bed.watcher):
        await bed.clock.sleep(0.1)
        bed.groups.alive = False
        bed.kill(1)
        await bed.clock.sleep(3)
        assert not bed.reported()
        bed.show(a_runtime_status(pod, containers=[a_container_status(pod, "app", id=ID)]))
        await bed.clock.sleep(2)
        assert len(bed.reported()) == 1 and "of container app, which ends with it" in bed.reported()[0]


async def test_a_container_that_is_never_seen_is_given_up() -> None:
    bed = OomWatcherFixture()
    bed.show(a_runtime_status(a_pod("web")))
    async with running(bed.watcher):
        await bed.clock.sleep(0.1)
        bed.kill(1)
        await bed.clock.sleep(60)
        assert not bed.reported()


async def test_others_processes_are_no_pods_business() -> None:
    bed = OomWatcherFixture()
    async with running(bed.watcher):
        await bed.clock.sleep(0.1)
        bed.log.say(
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/s,"
            "task_memcg=/s,task=db,pid=1,uid=0"
        )
        await bed.clock.sleep(1)
    assert bed.events.all() == []


@pytest.mark.parametrize(
    "group",
    [
        f"/kubepods/burstable/poduid-web/{ID}",
        f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope",
        f"/kubepods/pod1/{ID}/inner/deep",
    ],
)
def test_the_container_is_found_by_its_id(group: str) -> None:
    assert find_victim(group, OomWatcherFixture().table) == Victim(uid="uid-web", container="app", id=ID)
    assert find_victim("/system.slice", OomWatcherFixture().table) is None


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        ("/", "the machine was out of memory"),
        (f"/kubepods/poduid-web/{ID}", "it hit its memory limit"),
        ("/kubepods/poduid-web", "the pod hit its memory limit"),
        ("/kubepods.slice/kubepods-poduid_web.slice", "the pod hit its memory limit"),
        ("/kubepods", "all pods together hit their memory limit"),
    ],
)
def test_whose_limit(limit: str, text: str) -> None:
    victim = Victim(uid="uid-web", container="app", id=ID)
    assert whose_limit(Kill(process="p", pid=1, group="/g", limit=limit), victim) == text


GROUP = "/kubepods/burstable/pod1/abc"
MODERN = (
    f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=abc,mems_allowed=0,oom_memcg={GROUP},"
    f"task_memcg={GROUP},task=tail,pid=4711,uid=0"
)
KILLED = "Memory cgroup out of memory: Killed process 4711 (tail) total-vm:33000kB, anon-rss:31000kB, file-rss:4kB"


def kills(*lines: str) -> list[Kill]:
    reader = KillReader()
    return [kill for line in lines if (kill := reader.read(line)) is not None]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((MODERN, KILLED), Kill(process="tail", pid=4711, group=GROUP, limit=GROUP)),
        (
            (
                "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,"
                "task_memcg=/user.slice,task=fire,fox,pid=12,uid=1000",
                "Out of memory: Killed process 12 (fire,fox) total-vm:1kB",
            ),
            Kill(process="fire,fox", pid=12, group="/user.slice", limit="/"),
        ),
        (
            (
                "Task in /kubepods/pod2/def killed as a result of limit of /kubepods/pod2",
                "memory: usage 1kB, limit 1kB, failcnt 3",
                "Memory cgroup out of memory: Kill process 99 (java) score 1000 or sacrifice child",
                "Killed process 99 (java) total-vm:1kB, anon-rss:1kB",
            ),
            Kill(process="java", pid=99, group="/kubepods/pod2/def", limit="/kubepods/pod2"),
        ),
        (
            ("Out of memory: Killed process 5 (a (b) c) total-vm:1kB",),
            Kill(process="a (b", pid=5, group="/", limit="/"),
        ),
    ],
)
def test_one_kill_each(lines: tuple[str, ...], expected: Kill) -> None:
    assert kills(*lines) == [expected]


def test_two_in_a_row() -> None:
    other = MODERN.replace("pid=4711", "pid=4712")
    assert [kill.pid for kill in kills(MODERN, KILLED, other, KILLED.replace("4711", "4712"))] == [4711, 4712]


@pytest.mark.parametrize(
    "line",
    ["", "eth0: link up", "oom_reaper: reaped process 4711 (tail), now anon-rss:0kB", "oom-kill:", "Task in / killed"],
)
def test_nothing(line: str) -> None:
    assert kills(line) == []


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"6,339,5140900,-;NET: Registered protocol\n SUBSYSTEM=x\n", "NET: Registered protocol"),
        (b"3,1,2,-,caller=T1;a;b\n", "a;b"),
        (b"12,1,2,-;oom-kill: a program wrote this\n", ""),
        (b"nonsense", ""),
        (b"", ""),
        (b"4,1,2,-;\xff\n", "\ufffd"),
    ],
)
def test_records(record: bytes, text: str) -> None:
    assert text_of(record) == text
