"""Daemons: started, found again, told apart from others with the same number, waited for."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from pykubelet.standalone.daemon import Daemon, load, process_start, spawn

pytestmark = pytest.mark.real_loop


def start(tmp_path: Path, code: str) -> Daemon:
    return spawn(
        [sys.executable, "-c", code],
        environment=dict(os.environ),
        log=tmp_path / "log",
        config_digest="d1",
    )


async def test_is_found_again_by_its_file(tmp_path: Path) -> None:
    daemon = start(tmp_path, "import time; time.sleep(1000)")
    try:
        daemon.save(tmp_path / "pid")
        assert load(tmp_path / "pid") == daemon
        assert os.getsid(daemon.pid) == daemon.pid
        replace(daemon, start_time=daemon.start_time + 1).save(tmp_path / "pid")
        assert load(tmp_path / "pid") is None, "a reused number is another process"
    finally:
        await daemon.end(grace=10)
    assert not daemon.alive()
    assert process_start(daemon.pid) is None


async def test_output_lands_in_the_log(tmp_path: Path) -> None:
    daemon = start(tmp_path, "import sys; print('out', flush=True); print('err', file=sys.stderr)")
    await daemon.ended()
    assert (tmp_path / "log").read_text() == "out\nerr\n"


async def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    code = (
        f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w').close(); time.sleep(1000)"
    )
    daemon = start(tmp_path, code)
    ready.read_text()
    await daemon.end(grace=0.05)
    assert not daemon.alive()


async def test_the_end_of_a_dead_one_is_not_waited_for(tmp_path: Path) -> None:
    daemon = start(tmp_path, "")
    await daemon.ended()
    await daemon.ended()
    daemon.signal(signal.SIGKILL)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": "x"}', '{"pid": 1}', "\x00\xff"])
def test_a_damaged_file_names_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    assert load(tmp_path / "pid") is None
    assert load(tmp_path / "absent") is None
