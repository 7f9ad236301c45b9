"""A real kill in a cgroup of our own: the kernel's line arrives and is understood."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.clients.host.cgroup_stats import CgroupStats
from pykubelet.clients.host.kernel import DeviceKernelLog
from pykubelet.node.oom import Kill, KillReader
from tests.bed.parts import need_root

pytestmark = [pytest.mark.node, pytest.mark.real_loop]

EAT = "import os, sys\nopen(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\nx = bytearray(200 << 20)"


@pytest.fixture
def group() -> Iterator[Path]:
    """A group of 32 MiB, in the memory hierarchy or in v2."""
    need_root()
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    folder = (v1 if v1.is_dir() else v2) / f"pkl-oom-{os.getpid()}"
    folder.mkdir()
    (folder / ("memory.limit_in_bytes" if v1.is_dir() else "memory.max")).write_text(str(32 << 20))
    yield folder
    folder.rmdir()


async def test_a_kill_is_read_from_the_kernels_log_and_counted(group: Path) -> None:
    reader, kills, told = KillReader(), [], asyncio.Event()

    def line(text: str) -> None:
        kill = reader.read(text)
        if kill is not None and kill.group.endswith(group.name):
            kills.append(kill)
            told.set()

    end = DeviceKernelLog().follow(line)
    try:
        command = [sys.executable, "-c", EAT, str(group)]
        done = await asyncio.to_thread(subprocess.run, command, check=False)
        assert done.returncode == -9
        async with asyncio.timeout(60):
            await told.wait()
    finally:
        end()
        end()
    name = f"/{group.name}"
    assert [(each.group, each.limit) for each in kills] == [(name, name)]
    assert isinstance(kills[0], Kill) and kills[0].process.startswith("python") and kills[0].pid > 1
    assert CgroupStats().oom_kills(name) == 1
