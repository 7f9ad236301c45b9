"""What the agent counts on from a storage driver, asked of the fake, of our test driver and of Kubernetes' mock driver.

The checker that storage vendors use (csi-sanity) is run on our test driver as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.clients.plugins.csi import GrpcCsiNode
from pykubelet.clients.plugins.port import CsiNode, CsiVolume
from pykubelet.model.errors import PluginError
from tests.bed.cluster import go_programs
from tests.bed.parts import REPO
from tests.fakes.fake_csi import FakeCsiDriver
from tests.fakes.fake_mounts import FakeMounts

pytestmark = pytest.mark.real_loop

FAKE, BED, MOCK = "fake", "bed", "mock"
SUBJECTS = [FAKE, pytest.param(BED, marks=pytest.mark.node), pytest.param(MOCK, marks=pytest.mark.node)]
HANDLES = {FAKE: "folder-1", BED: "folder-1", MOCK: "1"}
"""The mock driver is born with volumes 1 to 3."""


@contextlib.asynccontextmanager
async def a_driver(kind: str, folder: Path) -> AsyncIterator[CsiNode]:
    if kind == FAKE:
        yield FakeCsiDriver(FakeMounts())
        return
    socket = folder / "csi.sock"
    if kind == BED:
        words = [sys.executable, "-m", "tests.bed.csi_driver", "--socket", str(socket)]
        words += ["--data", str(folder / "data"), "--log", str(folder / "calls")]
    else:
        words = [str(go_programs("plugins") / "csimock"), str(socket), "mock.example.com"]
    with (folder / "driver.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*words, stdout=log, stderr=log, cwd=REPO)
    try:
        driver = GrpcCsiNode(socket)
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(PluginError):
                    await driver.info()
                    break
                await asyncio.sleep(0.05)
        yield driver
    finally:
        process.kill()
        await process.wait()


def a_volume(kind: str, **fields: Any) -> CsiVolume:
    context = {"device": "/dev/mock"}
    return CsiVolume(
        volume_id=HANDLES[kind], access_mode="SINGLE_NODE_WRITER", fs_type="ext4", publish_context=context, **fields
    )


@pytest.mark.parametrize("kind", SUBJECTS)
async def test_a_driver_says_who_it_is(kind: str, tmp_path: Path) -> None:
    async with a_driver(kind, tmp_path) as driver:
        assert (await driver.info()).node_id
        assert "STAGE_UNSTAGE_VOLUME" in await driver.capabilities()


@pytest.mark.parametrize("kind", SUBJECTS)
async def test_a_volume_comes_and_goes_and_every_step_may_be_repeated(kind: str, tmp_path: Path) -> None:
    staging, target = tmp_path / "staging", tmp_path / "pod" / "mount"
    staging.mkdir()
    target.parent.mkdir()
    async with a_driver(kind, tmp_path) as driver:
        volume = a_volume(kind)
        for _ in range(2):
            await driver.stage(volume, staging)
        for _ in range(2):
            await driver.publish(volume, target, staging=staging, read_only=False)
        assert target.exists()
        for _ in range(2):
            await driver.unpublish(volume.volume_id, target)
        for _ in range(2):
            await driver.unstage(volume.volume_id, staging)
    assert not target.exists() or not list(target.iterdir())


@pytest.mark.parametrize("kind", SUBJECTS[1:])
async def test_a_refusal_has_a_code_and_words(kind: str, tmp_path: Path) -> None:
    async with a_driver(kind, tmp_path) as driver:
        with pytest.raises(PluginError) as caught:
            await driver.unpublish("", tmp_path / "nowhere")
    assert caught.value.code == "INVALID_ARGUMENT"
    assert caught.value.call == "NodeUnpublishVolume"


@pytest.mark.node
async def test_the_vendors_checker_finds_nothing_in_our_test_driver(tmp_path: Path) -> None:
    async with a_driver(BED, tmp_path):
        words = [str(go_programs("plugins") / "csi-sanity"), f"--csi.endpoint={tmp_path}/csi.sock", "--ginkgo.no-color"]
        words += [f"--csi.mountdir={tmp_path}/target", f"--csi.stagingdir={tmp_path}/stage"]
        done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "41 Passed | 0 Failed" in done.stdout
