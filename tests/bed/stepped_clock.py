"""An agent whose wall clock can be set, without setting the machine's: off by the seconds that a file holds.

The whole agent reads wall time from `kit/clock.py`, so that is where the program made here adds the offset. OpenSSL's
checks of certificates, the runtime and the API server keep the machine's time.
"""

from __future__ import annotations

import os
import struct
import sys
from pathlib import Path

from tests.bed.parts import REPO

_OFFSET = struct.Struct("d")


class SteppedClock:
    """The clock of one agent; `program` is what to start it with."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock-offset"
        self.set(0.0)
        self.program = folder / "stepped-pykubelet"
        paths = [str(REPO / "src"), str(REPO)]
        self.program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path[:0] = {paths!r}\n"
            f"from tests.bed.stepped_clock import run\nsys.exit(run({str(self._file)!r}))\n"
        )
        self.program.chmod(0o755)

    def set(self, seconds: float) -> None:
        """From now on the agent's wall time is off by so much, also after its next start."""
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, _OFFSET.pack(seconds), 0)
        finally:
            os.close(descriptor)


def run(file: str) -> int:
    """The agent itself, with the arguments of this process."""
    from pykubelet.__main__ import main
    from pykubelet.kit.clock import SystemClock

    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    now, now_ns = SystemClock.now, SystemClock.now_ns

    def offset() -> float:
        return float(_OFFSET.unpack(os.pread(descriptor, _OFFSET.size, 0))[0])

    SystemClock.now = lambda clock: now(clock) + offset()  # type: ignore[method-assign]
    SystemClock.now_ns = lambda clock: now_ns(clock) + int(offset() * 1e9)  # type: ignore[method-assign]
    return main()
