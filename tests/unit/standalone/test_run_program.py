"""Short-lived programs: their output, their failures in their own words, their time limit."""

from __future__ import annotations

import pytest

from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.programs import run

pytestmark = pytest.mark.real_loop


async def test_output_and_input() -> None:
    assert await run(["cat"], stdin=b"words") == (0, "words")
    assert await run(["cat"]) == (0, "")


async def test_failure_is_told_in_the_programs_words() -> None:
    with pytest.raises(StandaloneError, match=r"sh -c .*: exit status 3: broken"):
        await run(["sh", "-c", "echo broken >&2; exit 3"])
    assert await run(["sh", "-c", "echo out; exit 3"], check=False) == (3, "out\n")


async def test_one_that_takes_too_long_is_ended() -> None:
    with pytest.raises(StandaloneError, match=r"sleep 1000: not finished after 0\.05 s"):
        await run(["sleep", "1000"], within=0.05)


async def test_a_program_that_is_not_there_is_named() -> None:
    with pytest.raises(StandaloneError, match="no-such-program"):
        await run(["/no-such-program"])
