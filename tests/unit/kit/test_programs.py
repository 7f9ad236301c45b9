"""Programs are run to their end on real processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.kit.programs import run_program

pytestmark = pytest.mark.real_loop


async def test_input_output_and_status() -> None:
    done = await run_program(["sh", "-c", "cat; echo bad >&2; exit 3"], stdin=b"hello", seconds=30)
    assert (done.status, done.out, done.err) == (3, b"hello", b"bad\n")
    assert done.complaint() == "bad"


async def test_without_input_the_program_reads_nothing() -> None:
    assert (await run_program(["cat"], seconds=30)).out == b""


async def test_a_program_that_never_reads_its_input_is_no_fault() -> None:
    for _ in range(5):
        done = await run_program(["sh", "-c", "exec 0<&-; echo done"], stdin=b"x" * 1_000_000, seconds=30)
        assert (done.status, done.out) == (0, b"done\n")


async def test_the_environment_is_the_given_one() -> None:
    done = await run_program(["/bin/sh", "-c", "echo $WHAT"], env={"WHAT": "this"}, seconds=30)
    assert done.out == b"this\n"


async def test_a_late_program_and_its_children_are_killed(tmp_path: Path) -> None:
    note = tmp_path / "child"
    with pytest.raises(TimeoutError):
        await run_program(["sh", "-c", f"sleep 1000 & echo $! > {note}; wait"], seconds=1)
    child = int(note.read_text())
    with pytest.raises(ProcessLookupError):
        # An orphan killed with its group is reaped by the first process of the machine, which may take a moment.
        while not is_zombie(child):
            os.kill(child, 0)
        raise ProcessLookupError


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def test_a_missing_program_is_an_os_error() -> None:
    with pytest.raises(FileNotFoundError):
        await run_program(["/no/such/program"], seconds=30)


async def test_the_complaint_falls_back_to_what_was_printed() -> None:
    assert (await run_program(["sh", "-c", "echo said"], seconds=30)).complaint() == "said"
