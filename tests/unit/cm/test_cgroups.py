"""Cgroups of pods, of the QoS classes and of the agent: made, limited, removed."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.cm.cgroups import CgroupRules, OwnGroup, PodCgroups, SystemGroup
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.cgroups import CgroupLimits
from pykubelet.model.errors import PykubeletError
from tests.builders import a_container, a_pod
from tests.fakes.fake_cgroups import FakeCgroups

MIB = 1 << 20


def burstable(name: str, cpu: str = "500m", memory: str = "64Mi") -> Pod:
    held = ResourceRequirements(requests={"cpu": cpu}, limits={"memory": memory})
    return a_pod(name, containers=[a_container("app", resources=held)])


class PodCgroupsFixture:
    def __init__(self, **rules: object) -> None:
        self.host = FakeCgroups()
        self.pods: list[Pod] = []
        self.actual: dict[str, Pod] = {}
        self.cgroups = self.again(**rules)

    def again(self, **rules: object) -> PodCgroups:
        """The agent of a new life, on the same host."""
        self.cgroups = PodCgroups(
            host=self.host,
            rules=CgroupRules(**rules),  # type: ignore[arg-type]
            active=lambda: self.pods,
            in_force=lambda pod: self.actual.get(pod.metadata.uid or "", pod),
            clock=LoopClock(),
        )
        return self.cgroups

    async def add(self, pod: Pod) -> None:
        self.pods.append(pod)
        await self.cgroups.ensure(pod)

    def shares(self) -> int | None:
        return self.host.groups["/kubepods/burstable"].cpu_shares


async def test_the_class_group_follows_its_pods() -> None:
    bench = PodCgroupsFixture()
    await bench.add(burstable("a"))
    await bench.add(burstable("b", cpu="1"))
    assert bench.shares() == 1536
    bench.pods.pop()
    await bench.cgroups.remove("uid-b")
    assert bench.shares() == 512
    bench.pods.clear()
    await bench.cgroups.remove("uid-a")
    assert bench.shares() == 2
    assert bench.cgroups.uids() == set()


async def test_the_class_groups_exist_from_the_start_and_are_put_right_every_minute() -> None:
    bench = PodCgroupsFixture()
    async with running(bench.cgroups):
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert set(bench.host.groups) == {"/kubepods", "/kubepods/burstable", "/kubepods/besteffort"}
        bench.host.groups["/kubepods/besteffort"] = CgroupLimits(cpu_shares=1024)
        await asyncio.sleep(61)
        assert bench.host.groups["/kubepods/besteffort"].cpu_shares == 2


async def test_a_second_ensure_writes_nothing() -> None:
    bench = PodCgroupsFixture()
    pod = burstable("a")
    await bench.add(pod)
    path = "/kubepods/burstable/poduid-a"
    bench.host.groups[path] = CgroupLimits(memory_bytes=1)
    await bench.cgroups.ensure(pod)
    assert bench.host.groups[path].memory_bytes == 1


async def test_a_new_life_writes_the_limits_again() -> None:
    bench = PodCgroupsFixture()
    pod = burstable("a")
    await bench.add(pod)
    path = "/kubepods/burstable/poduid-a"
    # The agent was killed between making the group and writing into it.
    bench.host.groups[path] = CgroupLimits()
    await bench.again().ensure(pod)
    assert bench.host.groups[path].memory_bytes == 64 * MIB


async def test_a_new_life_does_not_take_away_what_is_still_in_force() -> None:
    bench = PodCgroupsFixture()
    bench.actual["uid-a"] = burstable("a", memory="256Mi")
    bench.host.create("/kubepods/burstable/poduid-a", CgroupLimits(memory_bytes=256 * MIB))
    await bench.add(burstable("a", memory="64Mi"))
    assert bench.host.groups["/kubepods/burstable/poduid-a"].memory_bytes == 256 * MIB


async def test_a_group_that_vanished_is_missed_and_made_again() -> None:
    bench = PodCgroupsFixture()
    pod = burstable("a")
    assert bench.cgroups.is_missing(pod)
    await bench.add(pod)
    assert not bench.cgroups.is_missing(pod)
    await bench.host.destroy("/kubepods/burstable/poduid-a")
    assert bench.cgroups.is_missing(pod)
    await bench.cgroups.ensure(pod)
    assert not bench.cgroups.is_missing(pod)


async def test_a_root_of_its_own_must_exist_and_is_above_everything() -> None:
    bench = PodCgroupsFixture(root="/fleet")
    with pytest.raises(ExceptionGroup) as caught:
        async with running(bench.cgroups):
            await asyncio.sleep(1)
    assert caught.group_contains(PykubeletError, match=r"cgroupRoot .*: the cgroup /fleet does not exist")
    bench.host.create("/fleet", CgroupLimits())
    await bench.add(burstable("a"))
    assert "/fleet/kubepods/burstable/poduid-a" in bench.host.groups


async def test_without_cgroups_per_class_nothing_is_made_or_removed() -> None:
    bench = PodCgroupsFixture(enabled=False)
    pod = burstable("a")
    await bench.add(pod)
    assert not bench.cgroups.is_missing(pod) and bench.cgroups.current(pod) is None
    await bench.cgroups.remove("uid-a")
    bench.host.create("/kubepods/podleft", CgroupLimits())
    await bench.cgroups.remove_orphans(set())
    assert set(bench.host.groups) == {"/kubepods", "/kubepods/podleft"}


async def test_groups_of_forgotten_pods_go_and_those_of_known_ones_stay() -> None:
    bench = PodCgroupsFixture()
    for path in ("/kubepods/podgone", "/kubepods/besteffort/podkept", "/kubepods/burstable/podheld"):
        bench.host.create(path, CgroupLimits(cpu_shares=1024))
    await bench.cgroups.remove_orphans({"kept"}, still_held=lambda uid: uid == "held")
    assert bench.cgroups.uids() == {"kept", "held"}
    # Its volumes are still mounted; nothing of it may compete for CPUs meanwhile.
    assert bench.host.groups["/kubepods/burstable/podheld"].cpu_shares == 2


async def test_one_group_that_cannot_go_does_not_keep_the_others() -> None:
    class Stuck(FakeCgroups):
        async def destroy(self, path: str) -> None:
            if path.endswith("podstuck"):
                raise OSError("still has processes in it")
            await super().destroy(path)

    bench = PodCgroupsFixture()
    bench.host = Stuck()
    bench.again()
    for uid in ("a", "stuck", "z"):
        bench.host.create(f"/kubepods/pod{uid}", CgroupLimits())
    await bench.cgroups.remove_orphans(set())
    assert bench.cgroups.uids() == {"stuck"}


async def test_systemd_names_are_used_for_its_driver() -> None:
    bench = PodCgroupsFixture(driver="systemd")
    await bench.add(burstable("a"))
    path = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poduid_a.slice"
    assert bench.host.groups[path].memory_bytes == 64 * MIB
    assert bench.cgroups.uids() == {"uid-a"}


# --- the agent's own group ------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("group", "driver", "path"), [("/system", "cgroupfs", "/system"), ("system.slice", "systemd", "/system.slice")]
)
async def test_processes_of_the_root_group_are_moved(group: str, driver: str, path: str) -> None:
    host = FakeCgroups()
    host.members["/"] = {1, 7, 8}
    async with running(SystemGroup(host=host, group=group, driver=driver, clock=LoopClock())):
        await asyncio.sleep(1)
        assert host.members == {"/": {1}, path: {7, 8}}
        host.members["/"].add(9)
        await asyncio.sleep(61)
        assert host.members == {"/": {1}, path: {7, 8, 9}}


async def test_processes_stay_where_they_are_without_systemcgroups() -> None:
    host = FakeCgroups()
    host.members["/"] = {1, 7}
    async with running(SystemGroup(host=host, group="", driver="cgroupfs", clock=LoopClock())):
        await asyncio.sleep(100)
    assert host.members == {"/": {1, 7}}


async def test_a_host_that_lets_no_process_move_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    host = Stubborn()
    host.members["/"] = {7}
    async with running(SystemGroup(host=host, group="/system", driver="cgroupfs", clock=LoopClock())):
        await asyncio.sleep(600)
    assert caplog.text.count("systemCgroups") == 1


async def test_a_host_that_refuses_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with running(OwnGroup(host=Stubborn(), group="/kube", driver="cgroupfs", clock=LoopClock())):
        await asyncio.sleep(600)
    assert caplog.text.count("kubeletCgroups") == 1
