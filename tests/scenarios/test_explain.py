"""Pods whose trouble cannot be made on a real machine in a test: cgroups, mounts, unmounts and pulls that go wrong.

Troubles that can be made for real are in tests/node/test_explain.py and tests/cluster/test_explain.py.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from pykubelet.api.types import EmptyDirVolumeSource, Pod, Volume, VolumeMount
from pykubelet.explain.explain import explain
from pykubelet.explain.view import Explanation
from pykubelet.model.cgroups import CgroupLimits
from pykubelet.model.pod import uid_of
from tests.builders import a_container, a_pod
from tests.fakes.fake_cgroups import FakeCgroups
from tests.fakes.fake_mounts import FakeMounts
from tests.harness import NodeHarness

IN_MEMORY = EmptyDirVolumeSource(medium="Memory")


class FullCgroups(FakeCgroups):
    """No group of a pod can be made."""

    def create(self, path: str, limits: CgroupLimits) -> None:
        if "/pod" in path:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().create(path, limits)


class HangingMounts(FakeMounts):
    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.reached = threading.Event()

    def tmpfs(self, target: Path, *, size_bytes: int | None) -> None:
        self.reached.set()
        assert self.gate.wait(timeout=30)
        super().tmpfs(target, size_bytes=size_bytes)


@pytest.fixture
def hanging() -> Iterator[HangingMounts]:
    mounts = HangingMounts()
    yield mounts
    mounts.gate.set()


def with_cache() -> Pod:
    container = a_container(volume_mounts=[VolumeMount(name="cache", mount_path="/cache")])
    return a_pod("web", containers=[container], volumes=[Volume(name="cache", empty_dir=IN_MEMORY)])


async def explained(node: NodeHarness, pod: Pod, cause: str) -> Explanation:
    """What is said once this is the cause."""
    last: list[Explanation] = []

    def asked() -> bool:
        last[:] = [node.node.explainer.explain(pod)]
        return any(view.id == cause for view in last[0].causes)

    try:
        await node.until(asked)
    except AssertionError as error:
        raise AssertionError(last[0].to_text()) from error
    assert not last[0].healthy
    return last[0]


def ready_message(node: NodeHarness, pod: Pod) -> str:
    return next(each.message or "" for each in node.status(pod).conditions if each.type == "Ready")


async def test_a_cgroup_that_cannot_be_made(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    node.cgroups = FullCgroups()
    await node.start()
    pod = node.run(a_pod("web"))
    found = await explained(node, pod, "cgroup-failed")
    assert "No space left on device" in found.to_text()
    await node.until(lambda: "its cgroup cannot be made" in ready_message(node, pod))
    assert ready_message(node, pod).startswith("containers with unready status: [app]: ")
    await node.kill()


@pytest.mark.real_loop
async def test_a_mount_that_does_not_come_back(tmp_path: Path, hanging: HangingMounts) -> None:
    node = NodeHarness(tmp_path)
    node.mounts = hanging
    await node.start()
    pod = node.run(with_cache())
    await node.until(hanging.reached.is_set, within=20)
    # A thread that hangs needs the ordinary loop, where half a minute is half a minute: it is only said to be over.
    facts = node.node.explainer.facts(pod)
    found = explain(replace(facts, now=facts.now + 31))
    assert [view.id for view in found.causes] == ["mount-stuck"]
    assert found.state == "stuck"
    hanging.gate.set()
    await node.until_running_only("web/app")
    await node.kill()


async def test_a_pull_without_an_end(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    node.cri.add_to_registry("slow:1", takes=10_000)
    await node.start()
    pod = node.run(a_pod("web", containers=[a_container("app", image="slow:1")]))
    assert (await explained(node, pod, "image-pulling")).state == "starting"
    found = await explained(node, pod, "image-slow")
    assert "without an end" in found.to_text()
    await node.kill()


async def test_an_end_that_waits_for_a_volume(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    await node.start()
    pod = node.run(with_cache())
    await node.until_running(pod)
    node.mounts.fail("unmount", "cache", "target is busy", times=1000)
    node.remove("web")
    found = await explained(node, pod, "stopping-volumes")
    assert (found.state, "target is busy" in found.to_text()) == ("ending", True)
    node.mounts.mend()
    await node.until(lambda: not (node.paths.root / "pods" / uid_of(pod)).exists())
    await node.kill()


async def test_a_crash_is_told_in_the_status_and_once_as_an_event(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    await node.start()
    pod = node.run(a_pod("web"))
    for _ in range(3):
        await node.until_running_only("web/app")
        node.cri.exit("app", code=3)
    await node.until(lambda: "keeps ending (exit code 3)" in ready_message(node, pod))
    assert ready_message(node, pod).startswith("containers with unready status: [app]: the program of container app")
    (told,) = node.events("Explained")
    assert "(crash-loop). You can: see what it said: `pykubelet logs web -c app" in told
    assert node.events("MissingClusterDNS") == [], "nobody expects cluster DNS without a cluster"
    await node.kill()
