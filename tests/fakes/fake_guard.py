"""A machine to be watched: memory that running pods use, disks, tasks, the kernel's log and its alarms, all by hand.

Memory is the sum over pods whose containers run in the fake runtime, so it falls by itself when one is evicted.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.clients.host.port import AlarmRefused, MemoryAlarm
from pykubelet.edges import GuardEdges
from pykubelet.model.runtime_status import ContainerState
from pykubelet.model.stats import (
    CgroupBounds,
    CgroupDetail,
    CgroupUsage,
    DiskCounters,
    FolderUsage,
    FsUsage,
    MemoryUsage,
    NetworkCounters,
    ProcessCounts,
    TaskCounts,
)
from tests.fakes.fake_cri import FakeCri

MIB = 1 << 20
GIB = 1 << 30


class FakeAlarm:
    def __init__(self, alarms: FakeAlarms, group: str, usage: int, wake: Callable[[], None]) -> None:
        self.group, self.usage, self.wake = group, usage, wake
        self.is_over = False
        self._alarms = alarms

    def close(self) -> None:
        if self in self._alarms.set:
            self._alarms.set.remove(self)


class FakeAlarms:
    """`ring` says that a group uses so much now; alarms set at or below that go off."""

    def __init__(self) -> None:
        self.set: list[FakeAlarm] = []
        self.by_usage = True
        self.refuses = ""
        self.requested = 0

    def watch(self, group: str, usage_bytes: int, wake: Callable[[], None]) -> MemoryAlarm:
        self.requested += 1
        if self.refuses:
            raise AlarmRefused(self.refuses)
        alarm = FakeAlarm(self, group, usage_bytes, wake)
        self.set.append(alarm)
        return alarm

    def ring(self, group: str, usage_bytes: int) -> int:
        """How many went off."""
        gone_off = [alarm for alarm in self.set if alarm.group == group and alarm.usage <= usage_bytes]
        for alarm in gone_off:
            alarm.wake()
        return len(gone_off)


class FakeKernelLog:
    def __init__(self) -> None:
        self.refuses = ""
        self._listeners: list[Callable[[str], None]] = []

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        if self.refuses:
            raise AlarmRefused(self.refuses)
        self._listeners.append(on_line)
        return lambda: self._listeners.remove(on_line)

    def say(self, *lines: str) -> None:
        for line in lines:
            for tell in list(self._listeners):
                tell(line)


class FakeMachine:
    """What is there, and its cgroups."""

    def __init__(self, cri: FakeCri, *, memory: int = 8 * GIB) -> None:
        self._cri = cri
        self.memory_bytes = memory
        self.system = 1 * GIB
        """What runs beside the pods."""
        self.uses: dict[str, int] = {}
        """Pod name to memory."""
        self.filesystems: dict[str, FsUsage] = {}
        """By beginning of a path; the longest counts."""
        self.set_disk("/", free=50 * GIB)
        self.logs: dict[str, int] = {}
        """Beginning of a log folder's name to bytes."""
        self.tasks_used = 500
        self.kills: dict[str, int] = {}
        """Container id to processes the kernel killed."""
        self.looks = 0
        self.alarms = FakeAlarms()
        self.kernel_log = FakeKernelLog()
        self.scores: list[int] = []

    def edges(self) -> GuardEdges:
        return GuardEdges(
            cgroups=self,
            host=FakeHost(self),
            kernel_log=self.kernel_log,
            alarms=self.alarms,
            set_oom_score=self.scores.append,
        )

    def set_disk(
        self, path: str, *, free: int, size: int = 100 * GIB, device: int = 1, inodes_free: int = 1000
    ) -> None:
        self.filesystems[path] = FsUsage(
            time_ns=0,
            device=device,
            device_name=f"/dev/d{device}",
            capacity=size,
            available=free,
            used=size - free,
            inodes=2000,
            inodes_free=inodes_free,
        )

    def used(self) -> int:
        return self.system + sum(self.uses.get(name, 0) for name in self._running())

    def _running(self) -> set[str]:
        live = (c for c in self._cri.containers.values() if c.state is ContainerState.RUNNING)
        return {c.sandbox.config.metadata.name for c in live}

    def _of(self, path: str) -> int:
        for box in self._cri.sandboxes.values():
            if box.config.metadata.uid in path:
                return self.uses.get(box.config.metadata.name, 0)
        return 0

    # -- cgroups

    def usage(self, path: str, now_ns: int) -> CgroupUsage | None:
        self.looks += path == "/"
        amount = self.used() if path == "/" else self._of(path)
        return CgroupUsage(time_ns=now_ns, cpu_ns=0, memory=MemoryUsage(usage=amount, working_set=amount))

    def detail(self, path: str, bounds: CgroupBounds, *, leaf: bool, counters: bool) -> CgroupDetail:
        return CgroupDetail(processes=1)

    def bounds(self, path: str) -> CgroupBounds:
        return CgroupBounds()

    def locate(self, parent: str, container_id: str) -> str | None:
        return f"{parent}/{container_id}"

    def processes(self, path: str) -> tuple[int, ...]:
        return (1,)

    def created_ns(self, path: str) -> int:
        return 0

    def exists(self, path: str) -> bool:
        return True

    def oom_kills(self, path: str) -> int | None:
        return self.kills.get(path.rpartition("/")[2], 0)


class FakeHost:
    def __init__(self, machine: FakeMachine) -> None:
        self._machine = machine

    def boot_seconds(self) -> int:
        return 0

    def tasks(self, now_ns: int) -> TaskCounts | None:
        return TaskCounts(time_ns=now_ns, limit=32_000, tasks=self._machine.tasks_used, running=1, blocked=0)

    def network(self, now_ns: int, pid: int | None = None) -> NetworkCounters | None:
        return None

    def disks(self) -> tuple[DiskCounters, ...]:
        return ()

    def filesystem(self, path: str, now_ns: int) -> FsUsage | None:
        found = max((each for each in self._machine.filesystems if path.startswith(each)), key=len)
        known = self._machine.filesystems[found]
        return FsUsage(**{**{f: getattr(known, f) for f in known.__struct_fields__}, "time_ns": now_ns})

    def folder(self, path: str, now_ns: int, *, deep: bool = True) -> FolderUsage | None:
        size = next((size for part, size in self._machine.logs.items() if f"_{part}_" in path), 0) if deep else 0
        return FolderUsage(time_ns=now_ns, bytes=size, inodes=1)

    def processes(self, pids: tuple[int, ...]) -> ProcessCounts:
        return ProcessCounts(descriptors=0, sockets=0)

    def file(self, path: str, now_ns: int) -> FolderUsage | None:
        return None
