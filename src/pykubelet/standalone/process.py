"""Running a short-lived program and keeping what it said, for programs that are not children of a pod."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from pykubelet.standalone.errors import StandaloneError


async def run(
    command: Sequence[str | Path],
    *,
    stdin: bytes | None = None,
    within: float = 60.0,
    check: bool = True,
) -> tuple[int, str]:
    """Run to the end; give the exit status and stdout. With `check` a failure raises with the program's own words."""
    words = [str(word) for word in command]
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        raise StandaloneError(f"{words[0]}: {error.strerror}") from error
    try:
        async with asyncio.timeout(within):
            out, err = await process.communicate(stdin)
    except TimeoutError as error:
        raise StandaloneError(f"{' '.join(words)}: not finished after {within:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    status = process.returncode or 0
    if check and status != 0:
        said = err.decode(errors="replace").strip() or out.decode(errors="replace").strip()
        raise StandaloneError(f"{' '.join(words)}: exit status {status}: {said}")
    return status, out.decode(errors="replace")
