"""A disk of the agent that is full or read-only: pods run on, it is said in plain words, and the rest starts later."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from pykubelet.clients.host.folders import DiskFolders
from tests.builders import a_pod
from tests.harness import NodeHarness


class SickFolders(DiskFolders):
    """No further folder of a pod can be made while `trouble` is set."""

    trouble = 0

    def make_pod(self, uid: str) -> None:
        if self.trouble and not self._paths.pod(uid).exists():
            raise OSError(self.trouble, os.strerror(self.trouble), uid)
        super().make_pod(uid)


@pytest.mark.parametrize("trouble", [errno.EROFS, errno.ENOSPC], ids=["read-only", "full"])
async def test_a_sick_disk_is_said_without_a_traceback_and_pods_start_when_it_is_well(
    tmp_path: Path, trouble: int, caplog: pytest.LogCaptureFixture
) -> None:
    node = NodeHarness(tmp_path)
    node.folders = folders = SickFolders(node.paths)
    await node.start()
    try:
        steady = node.run(a_pod("steady"))
        await node.until_running(steady)
        folders.trouble = trouble
        waits = node.run(a_pod("waits"))
        await node.clock.sleep(120)
        said = [each for each in caplog.records if each.getMessage() == "pod sync failed, will retry"]
        shown = [each for each in said if each.levelno >= logging.WARNING]
        assert len(shown) == 1 and os.strerror(trouble) in str(vars(shown[0])["error"])
        assert not any(each.exc_info for each in caplog.records)
        assert node.running() == ["steady/app"]
        folders.trouble = 0
        await node.until_running(waits)
        assert len(node.cri.called("create_container", "app")) == 2, "the first one was left alone"
    finally:
        await node.kill()
