"""The kernel: lines of its log, the settings a node relies on, and memory alarms.

/dev/kmsg gives one record a read and says "broken pipe" when records were overwritten before they were read; reading
then goes on with what is left. Records written by programs are left out: only the kernel may say which process it
killed. Kernel settings are set at the start, or only checked (`protectKernelDefaults`). Alarms are usage thresholds of
cgroup v1, pressure triggers and group events of v2: each is a descriptor the event loop waits for, nothing is polled.
What the kernel refuses (no right, no such file, no pressure accounting) is AlarmRefused with the file's name.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
from collections.abc import Callable, Mapping
from pathlib import Path

from pykubelet.clients.host.cgroups import find_hierarchies
from pykubelet.clients.host.port import AlarmRefused, MemoryAlarm

RECORD = 8192
AT_ONCE = 200
"""Records read before others get their turn."""
KERNEL = 0
"""The facility of what the kernel itself says."""


class DeviceKernelLog:
    def __init__(self, device: Path = Path("/dev/kmsg")) -> None:
        self._device = device

    def follow(self, on_line: Callable[[str], None]) -> Callable[[], None]:
        loop = asyncio.get_running_loop()
        try:
            descriptor = os.open(self._device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(descriptor, 0, os.SEEK_END)
        except OSError as error:
            raise AlarmRefused(f"{self._device}: {error.strerror}") from error

        def ready() -> None:
            for _ in range(AT_ONCE):
                try:
                    record = os.read(descriptor, RECORD)
                except BlockingIOError:
                    return
                except OSError as error:
                    if error.errno == errno.EPIPE:
                        continue
                    end()
                    return
                if not record:
                    return
                text = text_of(record)
                if text:
                    on_line(text)

        def end() -> None:
            nonlocal descriptor
            if descriptor >= 0:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                descriptor = -1

        loop.add_reader(descriptor, ready)
        return end


def text_of(record: bytes) -> str:
    """The message of `<priority>,<sequence>,<microseconds>,<flags>[,...];<message>`; '' for one not by the kernel."""
    head, _, rest = record.partition(b";")
    priority = head.partition(b",")[0]
    if not priority.isdigit() or int(priority) >> 3 != KERNEL:
        return ""
    return rest.partition(b"\n")[0].decode("utf-8", "replace")


PROC_SYS = Path("/proc/sys")

WANTED: Mapping[str, int] = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Memory is given on trust, since limits bound it; no panic for one process, a reboot after a real one; and a key for
each of many containers."""


def check_tunables(root: Path = PROC_SYS) -> list[str]:
    """One line for each setting that is not as wanted."""
    return [problem for name, value in WANTED.items() if (problem := _difference(root, name, value))]


def set_tunables(root: Path = PROC_SYS) -> list[str]:
    """Set what differs; one line for each that the host did not let us set."""
    problems = []
    for name, value in WANTED.items():
        if not _difference(root, name, value):
            continue
        try:
            (root / name).write_text(f"{value}\n")
        except OSError as error:
            problems.append(f"{name} cannot be set to {value}: {error.strerror}")
    return problems


def _difference(root: Path, name: str, wanted: int) -> str:
    try:
        found = (root / name).read_text().strip()
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return "" if found == str(wanted) else f"{name} is {found}, expected {wanted}"


PRESSURE_TRIGGER = b"some 50000 2000000\0"
"""50 ms of stalls within two seconds; shorter windows need CAP_SYS_RESOURCE, which agents in containers lack."""


class KernelMemoryAlarms:
    def __init__(self, *, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> None:
        self._root = root
        self._proc = proc
        self._unified = (root / "cgroup.controllers").exists()
        self._memory = find_hierarchies(root).get("memory", Path()) if not self._unified else root

    @property
    def by_usage(self) -> bool:
        return not self._unified

    def watch(self, group: str, usage_bytes: int, wake: Callable[[], None]) -> MemoryAlarm:
        if self._unified:
            return self._watch_v2(group, wake)
        return UsageAlarm(self._memory / group.strip("/"), usage_bytes, wake)

    def _watch_v2(self, group: str, wake: Callable[[], None]) -> MemoryAlarm:
        folder = self._root / group.strip("/")
        if group.strip("/"):
            # memory.events changes when the group is throttled or hits its limit.
            return FileAlarm({folder / "memory.pressure": PRESSURE_TRIGGER, folder / "memory.events": None}, wake)
        return FileAlarm({self._proc / "pressure" / "memory": PRESSURE_TRIGGER}, wake)


class UsageAlarm:
    """cgroup v1: an eventfd that counts crossings of one usage, in both directions."""

    def __init__(self, folder: Path, usage_bytes: int, wake: Callable[[], None]) -> None:
        self._folder = folder
        self._wake = wake
        self.is_over = False
        self._event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        usage = -1
        try:
            usage = os.open(folder / "memory.usage_in_bytes", os.O_RDONLY | os.O_CLOEXEC)
            control = os.open(folder / "cgroup.event_control", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(control, f"{self._event} {usage} {usage_bytes}".encode())
            finally:
                os.close(control)
        except OSError as error:
            os.close(self._event)
            raise AlarmRefused(f"{error.filename or folder / 'cgroup.event_control'}: {error.strerror}") from error
        finally:
            if usage >= 0:
                os.close(usage)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._event, self._rang)

    def _rang(self) -> None:
        try:
            os.eventfd_read(self._event)
        except BlockingIOError:
            return
        self.is_over = not self._folder.exists()  # the kernel also rings when the group goes
        self._wake()

    def close(self) -> None:
        if self._event >= 0:
            self._loop.remove_reader(self._event)
            os.close(self._event)
            self._event = -1


class FileAlarm:
    """Files that say "priority data" when something happened: pressure with a trigger, and memory.events.

    Event loops wait for readable descriptors only, so the files are put into an epoll of their own, which is one.
    """

    def __init__(self, files: dict[Path, bytes | None], wake: Callable[[], None]) -> None:
        """Written into each file first; None = nothing."""
        self._wake = wake
        self.is_over = False
        self._poll = select.epoll()
        self._files: list[int] = []
        refused: OSError | None = None
        for path, trigger in files.items():
            try:
                self._open(path, trigger)
            except OSError as error:
                refused = error
                refused.filename = refused.filename or str(path)
        if not self._files:
            self._poll.close()
            assert refused is not None
            raise AlarmRefused(f"{refused.filename}: {refused.strerror}") from refused
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._poll.fileno(), self._rang)

    def _open(self, path: Path, trigger: bytes | None) -> None:
        descriptor = os.open(path, (os.O_RDWR if trigger else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if trigger:
                os.write(descriptor, trigger)
            else:
                os.read(descriptor, 4096)  # from here on a change counts
            self._poll.register(descriptor, select.EPOLLPRI)
        except OSError:
            os.close(descriptor)
            raise
        self._files.append(descriptor)

    def _rang(self) -> None:
        """Something happened, even if no file says so any more: the kernel tells pressure to one poll only, and the
        loop's own look at our epoll was that one."""
        for descriptor, _ in self._poll.poll(0):
            try:
                os.pread(descriptor, 4096, 0)  # reading makes the kernel ready to notify the next change
            except OSError:
                # The group was removed (ENODEV), which the kernel would signal without end.
                self._poll.unregister(descriptor)
                self.is_over = True
        self._wake()

    def close(self) -> None:
        files, self._files = self._files, []
        if files:
            self._loop.remove_reader(self._poll.fileno())
            self._poll.close()
            for descriptor in files:
                os.close(descriptor)
