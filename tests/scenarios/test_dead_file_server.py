"""A volume whose file server is dead, on real threads: it has no stats, and eviction goes on."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from pykubelet.api.types import Pod
from pykubelet.eviction.local_storage import StorageLimits
from pykubelet.eviction.manager import EvictionManager, EvictionOrder, EvictionRules
from pykubelet.eviction.stats import NodeSignals, PodUse
from pykubelet.kit.clock import LoopClock, SystemClock
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.pod import name_of, uid_of
from pykubelet.model.pod_resources import limits_disk
from pykubelet.node.conditions import NodeConditions
from pykubelet.stats.volumes import VolumeStatsCalculator
from pykubelet.volumes import usage
from tests.builders import a_context
from tests.unit.eviction.test_local_storage import Used
from tests.unit.volumes.builders import VolumeNode, empty_dir, pod_with

KIB = 1 << 10


class DeadServer:
    """`statvfs` of the volumes of one pod hangs from now on."""

    def __init__(self, pod: Pod) -> None:
        self._uid = uid_of(pod)
        self._answer = threading.Event()
        self._real = os.statvfs
        self.requested = 0

    def statvfs(self, path: Path) -> os.statvfs_result:
        if self._uid in str(path):
            self.requested += 1
            assert self._answer.wait(60)
        return self._real(path)

    def answer(self) -> None:
        self._answer.set()


class Machine:
    """A node with room for everything; counts who is ended."""

    def __init__(self) -> None:
        self.evicted: list[str] = []
        self.active: list[Pod] = []

    async def node(self) -> NodeSignals:
        return NodeSignals(
            memory=None, allocatable_memory=None, node_fs=None, image_fs=None, container_fs=None, tasks=None
        )

    async def pods(self, *, disks: bool) -> Mapping[str, PodUse]:
        return {}

    async def disks(self) -> Mapping[str, PodUse]:
        return {}

    async def files(self, uids: Collection[str], /) -> Mapping[str, PodUse]:
        return {}

    async def evict(self, pod: Pod, order: EvictionOrder) -> None:
        self.evicted.append(name_of(pod))

    async def cleaned_up(self, pod: Pod, *, within: float) -> bool:
        return True

    def candidates(self) -> list[Pod]:
        return [pod for pod in self.active if name_of(pod) not in self.evicted]


class Pods:
    def __init__(self, *pods: Pod) -> None:
        self._pods = pods

    def pods(self) -> list[Pod]:
        return list(self._pods)


@pytest.fixture
def doomed() -> Pod:
    return pod_with(empty_dir("data", size_limit="1Gi"), name="doomed")


@pytest.fixture
def dead(doomed: Pod, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadServer]:
    server = DeadServer(doomed)
    monkeypatch.setattr(usage, "MEASURE_SECONDS", 0.3)
    monkeypatch.setattr(usage.os, "statvfs", server.statvfs)
    yield server
    server.answer()


def a_manager(machine: Machine, volumes: VolumeStatsCalculator, pods: Pods, clock: SystemClock) -> EvictionManager:
    machine.active = pods.pods()
    ctx = a_context(clock=clock)
    return EvictionManager(
        ctx,
        stats=machine,
        storage=StorageLimits(volumes=volumes, stats=machine, clock=clock, period=0.0),
        evictor=machine,
        reclaimers={},
        conditions=NodeConditions(ctx.signals),
        alarms=None,
        rules=EvictionRules(),
    )


class SlowToGive(Machine):
    """Pods over their limits whose volumes are never given back."""

    async def cleaned_up(self, pod: Pod, *, within: float) -> bool:
        await asyncio.sleep(within)
        return False


class Full:
    volumes = (Used(),)


class AllFull:
    def of_pod(self, uid: str, /) -> Full:
        return Full()


async def test_pods_over_a_limit_whose_volumes_hang_do_not_add_up() -> None:
    clock = LoopClock()
    pods = Pods(*(pod_with(empty_dir("tmp", size_limit="1Mi"), name=f"p{number}") for number in range(20)))
    machine = SlowToGive()
    began = clock.monotonic()
    await a_manager(machine, AllFull(), pods, clock).synchronize()
    assert len(machine.evicted) == 20 and clock.monotonic() - began <= 31


@pytest.mark.real_loop
async def test_eviction_goes_on_while_a_pods_volume_hangs(tmp_path: Path, doomed: Pod, dead: DeadServer) -> None:
    clock = SystemClock()
    node = VolumeNode(tmp_path, clock=clock)
    greedy = pod_with(empty_dir("data", size_limit="64Ki"), name="greedy")
    pods, machine = Pods(doomed, greedy), Machine()
    async with node.running() as volumes, asyncio.timeout(30):
        for pod in pods.pods():
            await volumes.wait_mounted(pod)
        Path(volumes.path_of(greedy, "data") or "", "file").write_bytes(b"x" * 256 * KIB)
        stats = VolumeStatsCalculator(
            meter=volumes, table=pods, clock=clock, metrics=Registry(), period=60, is_limited=limits_disk
        )
        eviction = a_manager(machine, stats, pods, clock)
        async with running(stats):
            while not machine.evicted:
                await eviction.synchronize()
                await asyncio.sleep(0.01)
            assert machine.evicted == ["greedy"]
            for _ in range(20):
                await eviction.synchronize()
            while not host_calls.stuck(uid_of(doomed)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            began = clock.monotonic()
            for _ in range(5):
                await stats.renew(within=10)
            assert clock.monotonic() - began < 5, "what is known to hang is not waited for"
            assert dead.requested == 1, "one thread, however often it is looked at"
            assert [str(call) for call in host_calls.stuck(uid_of(doomed))] == [
                f"measuring a volume of {uid_of(doomed)}/data"
            ]
        dead.answer()
        while host_calls.stuck(uid_of(doomed)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert [each.name for each in await volumes.usage(doomed)] == ["data"]
