"""The agent moves into the group it is told to, and stays there."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from pykubelet.cm.cgroups import OwnGroup
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from tests.fakes.fake_cgroups import FakeCgroups


class Stubborn(FakeCgroups):
    def join(self, path: str, pid: int) -> None:
        raise OSError(errno.EACCES, "Permission denied", path)


@pytest.mark.parametrize(
    ("group", "driver", "path"),
    [("/kube", "cgroupfs", "/kube"), ("kube.slice", "systemd", "/kube.slice"), ("", "cgroupfs", None)],
)
async def test_the_agent_is_kept_in_its_group(group: str, driver: str, path: str | None) -> None:
    host = FakeCgroups()
    async with running(OwnGroup(host=host, group=group, driver=driver, clock=LoopClock())):
        await asyncio.sleep(1)
        assert host.members == ({path: {os.getpid()}} if path else {})
        host.members.clear()
        await asyncio.sleep(61)
        assert host.members == ({path: {os.getpid()}} if path else {})


async def test_a_host_that_refuses_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running(OwnGroup(host=Stubborn(), group="/kube", driver="cgroupfs", clock=LoopClock())):
        await asyncio.sleep(600)
    assert caplog.text.count("kubeletCgroups") == 1
