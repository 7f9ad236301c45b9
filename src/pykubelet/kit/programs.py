"""Running a short-lived program to its end and keeping what it printed.

The program gets its input as a file in memory rather than through a pipe: one that ends without reading it
then breaks nothing on our side. It runs in a session of its own, so that nothing it started outlives the time
limit. What a status other than 0 means is for the caller to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from msgspec import Struct

DIES_WITHIN = 5.0


class Finished(Struct, frozen=True, kw_only=True):
    status: int
    out: bytes
    err: bytes

    def complaint(self, limit: int = 500) -> str:
        """The end of stderr, or of stdout when stderr is empty."""
        return (self.err.strip() or self.out.strip()).decode(errors="replace")[-limit:]


async def run_program(
    command: Sequence[str], *, seconds: float, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> Finished:
    """Raises OSError when it cannot be started and TimeoutError when it is not done in time."""
    source = os.memfd_create("stdin", os.MFD_CLOEXEC)
    try:
        if stdin:
            view = memoryview(stdin)
            while view:
                view = view[os.write(source, view) :]
            os.lseek(source, 0, os.SEEK_SET)
        process = await asyncio.create_subprocess_exec(
            *command,
            env=env,
            stdin=source,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    finally:
        os.close(source)
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # One that hangs in the kernel dies when its call returns; that is not waited for.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DIES_WITHIN):
                    await process.wait()
    return Finished(status=process.returncode or 0, out=out, err=err)
