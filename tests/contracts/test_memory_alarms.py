"""One contract for alarms: the fake, and the kernel of this host on a cgroup of its own (v1 usage, v2 pressure)."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from pykubelet.clients.host.kernel import PRESSURE_TRIGGER, FileAlarm, KernelMemoryAlarms, UsageAlarm
from pykubelet.clients.host.port import AlarmRefused, MemoryAlarms
from tests.fakes.fake_guard import FakeAlarms

pytestmark = pytest.mark.real_loop

MIB = 1 << 20
HIERARCHY = Path("/sys/fs/cgroup/memory")
EAT = "import os, sys\nopen(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\nbytearray(int(sys.argv[2]))"


class Subject(Protocol):
    alarms: MemoryAlarms
    group: str

    async def use(self, size: int) -> None:
        """The group uses that much for a moment."""
        ...


class FakeSubject:
    def __init__(self) -> None:
        self.fake = FakeAlarms()
        self.alarms: MemoryAlarms = self.fake
        self.group = "/pods"

    async def use(self, size: int) -> None:
        self.fake.ring(self.group, size)


class KernelSubject:
    def __init__(self) -> None:
        self.alarms: MemoryAlarms = KernelMemoryAlarms()
        self.group = f"/pkl-alarm-{os.getpid()}"
        self.folder = HIERARCHY / self.group.strip("/")
        self.folder.mkdir()

    async def use(self, size: int) -> None:
        command = [sys.executable, "-c", EAT, str(self.folder), str(size)]
        await asyncio.to_thread(subprocess.run, command, check=True)


@pytest.fixture(params=["fake", pytest.param("kernel", marks=pytest.mark.node)])
def subject(request: pytest.FixtureRequest) -> Iterator[Subject]:
    if request.param == "fake":
        yield FakeSubject()
        return
    if not (HIERARCHY / "cgroup.event_control").exists():
        pytest.skip("this host has no memory hierarchy of cgroup v1")
    made = KernelSubject()
    yield made
    made.folder.rmdir()


async def rings_within(seconds: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def test_an_alarm_rings_when_the_use_is_crossed(subject: Subject) -> None:
    rang = asyncio.Event()
    alarm = subject.alarms.watch(subject.group, 80 * MIB, rang.set)
    await subject.use(150 * MIB)
    assert await rings_within(60, rang)
    alarm.close()


async def test_it_keeps_still_below_and_after_it_was_closed(subject: Subject) -> None:
    rang = asyncio.Event()
    high = subject.alarms.watch(subject.group, 400 * MIB, rang.set)
    closed = subject.alarms.watch(subject.group, 60 * MIB, rang.set)
    closed.close()
    closed.close()
    await subject.use(150 * MIB)
    assert not await rings_within(0.3, rang)
    high.close()


async def test_each_alarm_is_its_own(subject: Subject) -> None:
    low, high = asyncio.Event(), asyncio.Event()
    alarms = [
        subject.alarms.watch(subject.group, 60 * MIB, low.set),
        subject.alarms.watch(subject.group, 400 * MIB, high.set),
    ]
    await subject.use(150 * MIB)
    assert await rings_within(60, low) and not high.is_set()
    for alarm in alarms:
        alarm.close()


def refused(watch: Callable[[], object]) -> str:
    with pytest.raises(AlarmRefused) as caught:
        watch()
    return str(caught.value)


async def test_what_the_kernel_refuses_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "memory" / "g").mkdir(parents=True)
    alarms = KernelMemoryAlarms(root=tmp_path, proc=tmp_path)
    assert "memory/g/memory.usage_in_bytes" in refused(lambda: alarms.watch("/g", 1, lambda: None))
    (tmp_path / "cgroup.controllers").write_text("memory")
    unified = KernelMemoryAlarms(root=tmp_path, proc=tmp_path)
    assert "pressure/memory" in refused(lambda: unified.watch("/", 1, lambda: None))
    assert "memory.events" in refused(lambda: unified.watch("/gone", 1, lambda: None))


async def test_no_descriptor_is_left_after_a_refusal(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    alarms = KernelMemoryAlarms(root=tmp_path, proc=tmp_path)
    for _ in range(5):
        refused(lambda: alarms.watch("/g", 1, lambda: None))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.node
async def test_the_kernel_takes_a_pressure_trigger_without_special_rights() -> None:
    path = Path("/proc/pressure/memory")
    if not path.exists():
        pytest.skip("this kernel does not account for pressure")
    before = len(os.listdir("/proc/self/fd"))
    alarm = FileAlarm({path: PRESSURE_TRIGGER}, lambda: None)
    await asyncio.sleep(0.05)
    alarm.close()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.real_loop
async def test_an_alarm_whose_group_goes_is_over(caplog: pytest.LogCaptureFixture) -> None:
    group = HIERARCHY / f"pkl-alarm-gone-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no memory hierarchy of v1 to make a group in: {error}")
    rung: list[str] = []
    try:
        try:
            alarm = UsageAlarm(group, 1 << 40, lambda: rung.append("rung"))
        except AlarmRefused as refusal:
            pytest.skip(f"this kernel gives no alarms: {refusal}")
        group.rmdir()
        async with asyncio.timeout(10):
            while not alarm.is_over:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert rung == ["rung"] and not caplog.records
        alarm.close()
    finally:
        if group.exists():
            group.rmdir()


@pytest.mark.real_loop
async def test_a_file_that_cannot_be_read_any_more_ends_the_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The same without a kernel that has such groups: urgent data of a socket is what epoll calls priority."""
    listener = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    monkeypatch.setattr(os, "open", lambda path, flags: os.dup(near.fileno()))
    monkeypatch.setattr(os, "read", lambda descriptor, size: b"")

    def gone(descriptor: int, size: int, offset: int) -> bytes:
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(os, "pread", gone)
    rung: list[str] = []
    alarm = FileAlarm({tmp_path / "memory.events": None}, lambda: rung.append("rung"))
    far.send(b"!", socket.MSG_OOB)
    async with asyncio.timeout(10):
        while not rung:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert rung == ["rung"] and alarm.is_over and not caplog.records
    alarm.close()
    for each in (near, far, listener):
        each.close()


@pytest.mark.real_loop
async def test_an_event_that_the_kernel_forgets_once_it_was_polled_for_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Pressure is told to one poll only, and the loop's look at the alarm's own epoll is that one."""
    listener = socket.create_server(("127.0.0.1", 0))
    far = socket.create_connection(listener.getsockname())
    near, _ = listener.accept()
    monkeypatch.setattr(os, "open", lambda *_: os.dup(near.fileno()))
    monkeypatch.setattr(os, "write", lambda *_: 0)
    rung: list[str] = []
    alarm = FileAlarm({tmp_path / "memory.pressure": PRESSURE_TRIGGER}, lambda: rung.append("rung"))
    monkeypatch.undo()
    # The event of a socket stays until it is read: reading it here is what the kernel does with a pressure event.
    rings = alarm._rang
    asyncio.get_running_loop().add_reader(alarm._poll.fileno(), lambda: (near.recv(1, socket.MSG_OOB), rings()))
    far.send(b"!", socket.MSG_OOB)
    async with asyncio.timeout(10):
        while not rung:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert rung == ["rung"] and not alarm.is_over
    alarm.close()
    for each in (near, far, listener):
        each.close()
