"""Lines of real kernels, and lines that only look like them."""

from __future__ import annotations

import pytest

from pykubelet.clients.host.kernel import text_of
from pykubelet.node.oom import Kill, KillReader

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
