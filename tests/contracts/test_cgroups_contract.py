"""One contract for cgroups: the fake, and the kernel below a group of its own, v1 or v2 as the machine has it.

The kernel of this host has v1; with v2 the same tests run in a guest (hosts/checks/test_contracts.py).
"""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from pykubelet.clients.host.cgroups import CgroupTree
from pykubelet.clients.host.port import CgroupHost
from pykubelet.kit.clock import SystemClock
from pykubelet.model.cgroups import CgroupLimits, shares_to_weight
from tests.bed.cgroups import CgroupTree as OwnCgroups
from tests.bed.parts import need_root
from tests.fakes.fake_cgroups import FakeCgroups

pytestmark = pytest.mark.real_loop

MIB = 1 << 20
EAT = "import sys\nheld = bytearray(int(sys.argv[1]))\nprint('ready', flush=True)\nsys.stdin.read()"


class Subject(Protocol):
    host: CgroupHost
    root: str
    """Below it all groups of a test are."""

    def process(self, memory: int = 0) -> int:
        """A process that waits; it uses that much memory as soon as it is in a group."""
        ...

    def use(self, pid: int) -> None: ...

    def ended(self, pid: int) -> bool: ...

    def members(self, path: str) -> set[int]: ...

    def pids_limit(self, path: str) -> int: ...


class FakeSubject:
    def __init__(self) -> None:
        self.fake = FakeCgroups()
        self.host: CgroupHost = self.fake
        self.root = "/contract"
        self.fake.create(self.root, CgroupLimits())
        self._pids = itertools.count(1000)
        self._memory: dict[int, int] = {}

    def process(self, memory: int = 0) -> int:
        pid = next(self._pids)
        self._memory[pid] = memory
        return pid

    def use(self, pid: int) -> None:
        for path, members in self.fake.members.items():
            if pid in members:
                self.fake.usage[path] = self._memory[pid]

    def ended(self, pid: int) -> bool:
        return pid in self.fake.killed

    def members(self, path: str) -> set[int]:
        return self.fake.members.get(path, set())

    def pids_limit(self, path: str) -> int:
        limit = self.fake.groups[path].pids
        return -1 if limit is None else limit


class KernelSubject:
    def __init__(self) -> None:
        need_root()
        self.own = OwnCgroups(f"/pkl-contract-{os.getpid()}")
        self.own.make()
        self.host: CgroupHost = CgroupTree(clock=SystemClock())
        self.root = self.own.name
        self._unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def process(self, memory: int = 0) -> int:
        # The program is started by the first line it gets, when it is in its group: memory is charged where it is made.
        words = ["sh", "-c", 'read go; exec "$@"', "sh", sys.executable, "-c", EAT, str(memory)]
        started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._processes[started.pid] = started
        return started.pid

    def use(self, pid: int) -> None:
        process = self._processes[pid]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready\n"

    def ended(self, pid: int) -> bool:
        return self._processes[pid].wait(30) == -9

    def members(self, path: str) -> set[int]:
        return {int(pid) for pid in self._file("pids", path, "cgroup.procs").read_text().split()}

    def pids_limit(self, path: str) -> int:
        text = self._file("pids", path, "pids.max").read_text().strip()
        return -1 if text == "max" else int(text)

    def _file(self, hierarchy: str, path: str, name: str) -> Path:
        base = Path("/sys/fs/cgroup") if self._unified else Path("/sys/fs/cgroup", hierarchy)
        return base / path.lstrip("/") / name

    def end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()
        self.own.remove()


@pytest.fixture(params=["fake", pytest.param("kernel", marks=pytest.mark.node)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "fake":
        yield FakeSubject()
        return
    made = KernelSubject()
    try:
        yield made
    finally:
        made.end()


def test_a_group_is_made_with_its_parents(subject: Subject) -> None:
    host, path = subject.host, f"{subject.root}/a/b"
    assert host.exists("/") and not host.exists(path)
    assert host.read(path) is None and host.memory_usage(path) is None and list(host.children(path)) == []
    host.create(path, CgroupLimits())
    assert host.exists(path) and host.exists(f"{subject.root}/a")
    assert list(host.children(subject.root)) == ["a"] and list(host.children(f"{subject.root}/a")) == ["b"]
    assert subject.root.strip("/") in host.children("/")
    assert host.memory_usage(path) == 0, "nothing is in it"


def test_a_new_group_is_without_limits(subject: Subject) -> None:
    path = f"{subject.root}/a"
    subject.host.create(path, CgroupLimits())
    found = subject.host.read(path)
    assert found is not None
    assert (found.cpu_quota_us, found.cpu_period_us, found.memory_bytes) == (-1, 100_000, -1)
    assert found.cpu_shares is not None


def test_limits_are_in_force_as_the_kernel_has_them(subject: Subject) -> None:
    host, path = subject.host, f"{subject.root}/a"
    limits = CgroupLimits(cpu_shares=512, cpu_quota_us=50_000, memory_bytes=64 * MIB + 5, pids=100)
    host.create(path, limits)
    found = host.read(path)
    assert found is not None and found.cpu_shares is not None
    # A weight is coarser than shares, and memory is limited by whole pages.
    assert shares_to_weight(found.cpu_shares) in (shares_to_weight(512), shares_to_weight(512) - 1)
    assert (found.cpu_quota_us, found.memory_bytes) == (50_000, 64 * MIB)
    assert found.pids is None, "only CPU and memory are read back"
    assert subject.pids_limit(path) == 100


def test_what_a_change_does_not_name_stays(subject: Subject) -> None:
    host, path = subject.host, f"{subject.root}/a"
    host.create(path, CgroupLimits(cpu_quota_us=50_000, memory_bytes=64 * MIB))
    host.create(path, CgroupLimits(cpu_shares=512))
    host.apply(path, CgroupLimits(memory_bytes=128 * MIB))
    found = host.read(path)
    assert found is not None and (found.cpu_quota_us, found.memory_bytes) == (50_000, 128 * MIB)


@pytest.mark.parametrize("none", [-1, 0])
def test_limits_are_lifted(subject: Subject, none: int) -> None:
    host, path = subject.host, f"{subject.root}/a"
    host.create(path, CgroupLimits(cpu_quota_us=50_000, memory_bytes=64 * MIB, pids=10))
    host.apply(path, CgroupLimits(cpu_quota_us=none, memory_bytes=none, pids=none))
    found = host.read(path)
    assert found is not None and (found.cpu_quota_us, found.memory_bytes) == (-1, -1)
    assert subject.pids_limit(path) in (-1, none)


def test_a_change_of_a_group_that_is_not_there_fails(subject: Subject) -> None:
    with pytest.raises(FileNotFoundError):
        subject.host.apply(f"{subject.root}/none", CgroupLimits(memory_bytes=MIB))


def test_a_change_that_the_kernel_does_not_know_fails(subject: Subject) -> None:
    host, path = subject.host, f"{subject.root}/a"
    host.create(path, CgroupLimits())
    with pytest.raises(OSError) as caught:
        host.apply(path, CgroupLimits(cpu_quota_us=100))
    assert caught.value.errno == errno.EINVAL
    found = host.read(path)
    assert found is not None and found.cpu_quota_us == -1


def test_a_group_is_made_although_the_kernel_refuses_a_limit(subject: Subject) -> None:
    path = f"{subject.root}/a"
    subject.host.create(path, CgroupLimits(cpu_quota_us=100, memory_bytes=64 * MIB))
    found = subject.host.read(path)
    assert found is not None and (found.cpu_quota_us, found.memory_bytes) == (-1, 64 * MIB)


def test_a_process_is_in_one_group(subject: Subject) -> None:
    first, second = f"{subject.root}/a", f"{subject.root}/b"
    pid = subject.process()
    subject.host.join(first, pid)
    subject.host.join(first, pid)
    assert pid in subject.members(first)
    subject.host.join(second, pid)
    assert pid in subject.members(second) and pid not in subject.members(first)


def test_the_programs_of_a_group_are_known(subject: Subject) -> None:
    path = f"{subject.root}/a"
    assert list(subject.host.programs(path)) == []
    first, second = subject.process(), subject.process()
    subject.host.join(path, first)
    subject.host.join(f"{path}/below", second)
    assert list(subject.host.programs(path)) == [first]


def test_memory_in_use_is_known_and_never_taken_silently(subject: Subject) -> None:
    """v1 refuses a limit below what is in use; v2 takes it and makes room, if need be by ending processes."""
    host, path = subject.host, f"{subject.root}/a"
    pid = subject.process(memory=96 * MIB)
    host.join(path, pid)
    subject.use(pid)
    used = host.memory_usage(path)
    assert used is not None and used >= 96 * MIB
    above = host.memory_usage(subject.root)
    assert above is not None and above >= used, "a group's use counts for those above it"
    try:
        host.apply(path, CgroupLimits(memory_bytes=32 * MIB))
    except OSError as error:
        assert error.errno == errno.EBUSY
        found = host.read(path)
        assert found is not None and found.memory_bytes == -1
    else:
        found = host.read(path)
        assert found is not None and found.memory_bytes == 32 * MIB


async def test_removing_a_group_ends_what_is_in_it_and_below(subject: Subject) -> None:
    host, path = subject.host, f"{subject.root}/a"
    pid = subject.process()
    host.join(f"{path}/b/c", pid)
    host.create(f"{subject.root}/other", CgroupLimits())
    await host.destroy(path)
    assert subject.ended(pid)
    assert not host.exists(path) and not host.exists(f"{path}/b") and host.read(path) is None
    assert host.memory_usage(path) is None and list(host.children(subject.root)) == ["other"]
    await host.destroy(path)


async def test_a_group_of_the_same_name_is_a_new_one(subject: Subject) -> None:
    host, path = subject.host, f"{subject.root}/a"
    host.create(path, CgroupLimits(memory_bytes=64 * MIB))
    await host.destroy(path)
    host.create(path, CgroupLimits())
    found = host.read(path)
    assert found is not None and found.memory_bytes == -1
    assert host.memory_usage(path) == 0 and subject.members(path) == set()
