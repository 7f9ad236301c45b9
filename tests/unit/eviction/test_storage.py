"""Measuring for limits: only who has some, every ten seconds, and slow walks rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pykubelet.api.types import EmptyDirVolumeSource, Pod, ResourceRequirements, Volume
from pykubelet.eviction.limits import VolumeUse
from pykubelet.eviction.storage import StorageLimits
from pykubelet.kit.clock import LoopClock
from pykubelet.model.pod import name_of
from pykubelet.model.signals import PodUse
from tests.builders import a_container, a_pod
from tests.unit.eviction.making import GIB, a_use


@dataclass(frozen=True)
class Used:
    name: str = "tmp"
    used_bytes: int = 2 * GIB
    on_node_disk: bool = True


class Meter:
    def __init__(self, clock: LoopClock) -> None:
        self._clock = clock
        self.took: dict[str, float] = {}
        self.walked: list[str] = []
        self.asked: list[Collection[str]] = []
        self.broken = False

    async def usage(self, pod: Pod, /) -> Sequence[VolumeUse]:
        self.walked.append(name_of(pod))
        await self._clock.sleep(self.took.get(name_of(pod), 0.0))
        if self.broken:
            raise OSError("gone")
        return [Used()]

    async def files(self, uids: Collection[str], /) -> Mapping[str, PodUse]:
        self.asked.append(uids)
        return {uid: a_use(logs=2 * GIB) for uid in uids}


def with_dir(name: str) -> Pod:
    return a_pod(name, volumes=[Volume(name="tmp", empty_dir=EmptyDirVolumeSource(size_limit="1Gi"))])


def with_limit(name: str, *, static: bool = False) -> Pod:
    limited = ResourceRequirements(limits={"ephemeral-storage": "1Gi"})
    return a_pod(name, containers=[a_container(resources=limited)], static=static)


async def over(limits: StorageLimits, *pods: Pod) -> list[str]:
    return [name_of(pod) for pod, _ in await limits.breaches(pods, layers_apart=False)]


async def test_who_is_measured() -> None:
    clock = LoopClock()
    meter = Meter(clock)
    limits = StorageLimits(volumes=meter, uses=meter, clock=clock)
    free, dirs, files = a_pod("free"), with_dir("dirs"), with_limit("files")
    assert await over(limits, free, dirs, files, with_limit("static", static=True)) == ["dirs", "files"]
    assert meter.walked == ["dirs"] and meter.asked == [{"uid-files"}]
    assert await over(limits, dirs, files) == [] and 0 < limits.due_in() <= 10
    await clock.sleep(10)
    assert await over(limits, free) == [] and len(meter.asked) == 1


async def test_a_slow_walk_rests() -> None:
    clock = LoopClock()
    meter = Meter(clock)
    meter.took = {"big": 2.0}
    limits = StorageLimits(volumes=meter, uses=meter, clock=clock)
    for _ in range(30):
        await over(limits, with_dir("big"), with_dir("small"))
        await clock.sleep(10)
    assert meter.walked.count("small") == 30 and meter.walked.count("big") == 2


async def test_volumes_that_cannot_be_measured_break_no_limit() -> None:
    clock = LoopClock()
    meter = Meter(clock)
    meter.broken = True
    limits = StorageLimits(volumes=meter, uses=meter, clock=clock)
    assert await over(limits, with_dir("dirs")) == []
