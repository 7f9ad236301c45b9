"""Judging limits: only who has some, every ten seconds, by the last figures of the volumes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pykubelet.api.types import EmptyDirVolumeSource, Pod, ResourceRequirements, Volume
from pykubelet.eviction.local_storage import StorageLimits
from pykubelet.eviction.stats import PodUse
from pykubelet.kit.clock import LoopClock
from pykubelet.model.pod import name_of
from tests.builders import a_container, a_pod
from tests.unit.eviction.making import GIB, a_use


@dataclass(frozen=True)
class Used:
    name: str = "tmp"
    used_bytes: int = 2 * GIB
    on_node_disk: bool = True


@dataclass(frozen=True)
class Volumes:
    volumes: Sequence[Used] = (Used(),)


class Figures:
    def __init__(self) -> None:
        self.known: dict[str, Volumes] = {}
        self.asked: list[Collection[str]] = []

    def of_pod(self, uid: str, /) -> Volumes | None:
        return self.known.get(uid)

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


async def test_who_is_judged() -> None:
    clock, figures = LoopClock(), Figures()
    figures.known = {"uid-dirs": Volumes(), "uid-free": Volumes()}
    limits = StorageLimits(volumes=figures, stats=figures, clock=clock)
    free, dirs, files = a_pod("free"), with_dir("dirs"), with_limit("files")
    assert await over(limits, free, dirs, files, with_limit("static", static=True)) == ["dirs", "files"]
    assert figures.asked == [{"uid-files"}]
    assert await over(limits, dirs, files) == [] and 0 < limits.due_in() <= 10
    await clock.sleep(10)
    assert await over(limits, free) == [] and len(figures.asked) == 1


async def test_volumes_nobody_could_measure_yet_break_no_limit() -> None:
    clock, figures = LoopClock(), Figures()
    limits = StorageLimits(volumes=figures, stats=figures, clock=clock)
    assert await over(limits, with_dir("dirs")) == []
    figures.known["uid-dirs"] = Volumes()
    await clock.sleep(10)
    assert await over(limits, with_dir("dirs")) == ["dirs"]
