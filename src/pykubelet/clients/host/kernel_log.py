"""New lines of the kernel's log, as they are written, from /dev/kmsg.

The device gives one record a read and says "broken pipe" when records were overwritten before they were read; then
reading goes on with what is left. What programs write there is left out: nobody but the kernel may say whom it killed.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path

from pykubelet.clients.host.port import AlarmRefused

RECORD = 8192
AT_ONCE = 200
"""Records read before others get their turn."""
KERNEL = 0
"""The facility of what the kernel itself says."""


class DeviceKernelLog:
    def __init__(self, device: Path = Path("/dev/kmsg")) -> None:
        self._device = device

    def follow(self, tell: Callable[[str], None]) -> Callable[[], None]:
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
                    tell(text)

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
