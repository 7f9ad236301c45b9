"""Local storage limits of single pods: only pods that have some, every ten seconds, by the last volume stats."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pykubelet.api.types import EmptyDirVolumeSource, Pod, ResourceRequirements, Volume
from pykubelet.eviction.local_storage import StorageLimits, breach
from pykubelet.eviction.stats import PodUse
from pykubelet.kit.clock import LoopClock
from pykubelet.model.pod import name_of
from pykubelet.model.pod_resources import limits_storage, limits_volumes
from tests.builders import a_container, a_pod
from tests.unit.eviction.making import GIB, MIB, a_use


@dataclass(frozen=True)
class Used:
    name: str = "tmp"
    used_bytes: int = 2 * GIB
    on_node_disk: bool = True


def with_dir(limit: str | None, name: str = "web") -> Pod:
    return a_pod(name, volumes=[Volume(name="tmp", empty_dir=EmptyDirVolumeSource(size_limit=limit))])


def with_limit(amount: str, name: str = "web", *, static: bool = False) -> Pod:
    limited = ResourceRequirements(limits={"ephemeral-storage": amount})
    return a_pod(name, containers=[a_container(resources=limited)], static=static)


@pytest.mark.parametrize(
    ("limit", "used", "over"),
    [("1Gi", GIB, False), ("1Gi", GIB + 1, True), ("0", GIB, False), (None, GIB, False)],
)
def test_empty_dirs(limit: str | None, used: int, over: bool) -> None:
    found = breach(with_dir(limit), [Used("tmp", used)], None, layers_apart=False)
    assert (found is not None) is over
    if found is not None:
        assert found.message == 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". '
        assert found.signal == "emptydirfs.limit" and "1073741825" in found.why


def test_the_pods_total_counts_everything_on_the_nodes_disk() -> None:
    pod = with_limit("1Gi")
    use = a_use(layer=400 * MIB, logs=400 * MIB, other=MIB)
    assert breach(pod, [Used("d", 200 * MIB)], use, layers_apart=False) is None
    assert breach(pod, [Used("d", 300 * MIB, on_node_disk=False)], use, layers_apart=False) is None
    found = breach(pod, [Used("d", 300 * MIB)], use, layers_apart=False)
    assert found is not None and found.signal == "ephemeralpodfs.limit"
    assert found.message == "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
    assert found.why == (
        "the pod's files take 1101Mi (writable layers 400Mi, logs 400Mi, volumes 300Mi, other files 1Mi), its "
        "ephemeral-storage limit is 1Gi"
    )


def test_a_container_among_others() -> None:
    small = a_container(resources=ResourceRequirements(limits={"ephemeral-storage": "100Mi"}))
    big = a_container("side", resources=ResourceRequirements(limits={"ephemeral-storage": "9Gi"}))
    pod = a_pod(containers=[small, big])
    use = a_use(layer=80 * MIB, logs=40 * MIB)
    found = breach(pod, (), use, layers_apart=False)
    assert found is not None
    assert found.message == 'Container app exceeded its local ephemeral storage limit "100Mi". '
    assert found.signal == "ephemeralcontainerfs.limit" and "writable layer 80Mi, logs 40Mi" in found.why
    assert breach(pod, (), use, layers_apart=True) is None


def test_which_pods_have_limits() -> None:
    assert limits_volumes(with_dir("1Gi")) and not limits_volumes(with_dir("0")) and not limits_volumes(with_dir(None))
    assert limits_storage(with_limit("1Gi")) and not limits_storage(a_pod())


@dataclass(frozen=True)
class Volumes:
    volumes: Sequence[Used] = (Used(),)


class Measured:
    def __init__(self) -> None:
        self.known: dict[str, Volumes] = {}
        self.requested: list[Collection[str]] = []

    def of_pod(self, uid: str, /) -> Volumes | None:
        return self.known.get(uid)

    async def files(self, uids: Collection[str], /) -> Mapping[str, PodUse]:
        self.requested.append(uids)
        return {uid: a_use(logs=2 * GIB) for uid in uids}


async def over(limits: StorageLimits, *pods: Pod) -> list[str]:
    return [name_of(pod) for pod, _ in await limits.breaches(pods, layers_apart=False)]


async def test_which_pods_are_checked() -> None:
    clock, measured = LoopClock(), Measured()
    measured.known = {"uid-dirs": Volumes(), "uid-free": Volumes()}
    limits = StorageLimits(volumes=measured, stats=measured, clock=clock)
    free, dirs, files = a_pod("free"), with_dir("1Gi", "dirs"), with_limit("1Gi", "files")
    assert await over(limits, free, dirs, files, with_limit("1Gi", "static", static=True)) == ["dirs", "files"]
    assert measured.requested == [{"uid-files"}]
    assert await over(limits, dirs, files) == [] and 0 < limits.due_in() <= 10
    await clock.sleep(10)
    assert await over(limits, free) == [] and len(measured.requested) == 1


async def test_volumes_that_were_not_measured_yet_exceed_no_limit() -> None:
    clock, measured = LoopClock(), Measured()
    limits = StorageLimits(volumes=measured, stats=measured, clock=clock)
    assert await over(limits, with_dir("1Gi", "dirs")) == []
    measured.known["uid-dirs"] = Volumes()
    await clock.sleep(10)
    assert await over(limits, with_dir("1Gi", "dirs")) == ["dirs"]
