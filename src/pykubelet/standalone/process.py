"""Running a short-lived program and keeping what it said, for programs that are not children of a pod."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pykubelet.kit.programs import run_program
from pykubelet.standalone.errors import StandaloneError


async def run(
    command: Sequence[str | Path],
    *,
    stdin: bytes = b"",
    within: float = 60.0,
    check: bool = True,
) -> tuple[int, str]:
    """Run to the end; give the exit status and stdout. With `check` a failure raises with the program's own words."""
    words = [str(word) for word in command]
    try:
        finished = await run_program(words, stdin=stdin, seconds=within)
    except TimeoutError as error:
        raise StandaloneError(f"{' '.join(words)}: not finished after {within:g} s") from error
    except OSError as error:
        raise StandaloneError(f"{words[0]}: {error.strerror}") from error
    if check and finished.status != 0:
        raise StandaloneError(f"{' '.join(words)}: exit status {finished.status}: {finished.complaint()}")
    return finished.status, finished.out.decode(errors="replace")
