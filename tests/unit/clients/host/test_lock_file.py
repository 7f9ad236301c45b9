"""Two agents and one lock file, with real locks and inotify."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pykubelet.clients.host.process import LockFailed, LockFile

HOLD = """
import sys
from pathlib import Path
from pykubelet.clients.host.process import LockFile
LockFile(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


def another(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.real_loop
async def test_a_second_agent_waits_and_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = another(path)
    assert first.stdin and first.stdout
    assert first.stdout.readline() == "held\n"
    second = LockFile(path)
    waiting = asyncio.create_task(asyncio.to_thread(second.acquire, watch=True))
    assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
    first.communicate("")
    await asyncio.wait_for(waiting, 10)

    noticed = asyncio.create_task(second.contended())
    assert not (await asyncio.wait({noticed}, timeout=0.2))[0]
    third = another(path)
    await asyncio.wait_for(noticed, 10)
    third.kill()
    third.communicate()


def test_a_lock_file_that_cannot_be_had_names_its_flag(tmp_path: Path) -> None:
    with pytest.raises(LockFailed, match=f"--lock-file: {tmp_path}: Is a directory"):
        LockFile(tmp_path).acquire()
