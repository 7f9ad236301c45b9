"""The node guards itself on a real host: limits above all pods, slices of systemd, and the end before a shutdown.

systemd and logind are stand-ins on a private bus (Debian's dbus-daemon); kernel, runtime and pods are real.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pykubelet.api.types import ResourceRequirements
from pykubelet.cli.local_socket import local_socket
from pykubelet.clients.dbus.systemd import DbusSystemd, SystemdSlices
from pykubelet.clients.host.cgroups import CgroupTree
from pykubelet.clients.host.machine import read_machine
from pykubelet.cm.cgroups import CgroupRules, PodCgroups
from pykubelet.kit.clock import SystemClock
from pykubelet.model.cgroups import CgroupLimits
from tests.bed.agent import BedAgent, bed_agent
from tests.bed.parts import blocking
from tests.bed.runtime import BedContainerd
from tests.builders import a_container, a_pod
from tests.fakes.private_bus import PrivateBus, needs_bus
from tests.fakes.stand_in_logind import StandInLogind
from tests.fakes.stand_in_systemd import StandInSystemd
from tests.node.test_cgroups import ROOT, V2, View, a_manifest, wait_for

pytestmark = pytest.mark.node

MIB = 1 << 20
T = TypeVar("T")
STORY = "/story/lines"
SLOW_END = (
    f"say() {{ echo $(cut -d' ' -f1 /proc/uptime) $1 >> {STORY}; }}; "
    "trap 'say ending; sleep 1; say ended; exit 0' TERM; say up; while :; do sleep 0.1; done"
)


# --- what all pods together get -------------------------------------------------------------------------------


@pytest.fixture
def reserved_group() -> Iterator[str]:
    tree, name = CgroupTree(clock=SystemClock()), f"/pkl-reserved-{os.getpid()}"
    tree.create(name, CgroupLimits())
    yield name
    blocking(tree.destroy(name))


def own_groups(agent: BedAgent) -> str:
    return Path(f"/proc/{agent.pid}/cgroup").read_text()


def test_pods_get_what_is_not_reserved_and_the_reserved_group_its_part(
    tmp_path: Path, containerd: BedContainerd, reserved_group: str
) -> None:
    machine, tree = read_machine(), CgroupTree(clock=SystemClock())
    with bed_agent(
        tmp_path,
        containerd,
        enforceNodeAllocatable=["pods", "system-reserved"],
        systemReserved={"cpu": "500m", "memory": "256Mi", "pid": "100"},
        kubeReserved={"memory": "64Mi"},
        systemReservedCgroup=reserved_group,
        kubeletCgroups=f"{reserved_group}/agent",
    ) as agent:
        wait_for(lambda: tree.exists(f"{agent.cgroups.name}/kubepods/besteffort"), agent.tail)
        view = View(agent)
        wait_for(lambda: view.memory("kubepods") == machine.memory_bytes - 320 * MIB, agent.tail)
        # One after the other is written.
        wait_for(lambda: view.pids("kubepods") == str(machine.pids - 100), agent.tail)
        wait_for(lambda: (held := tree.read(reserved_group)) and held.memory_bytes == 256 * MIB, agent.tail)
        wait_for(lambda: (held := tree.read(reserved_group)) and held.cpu_shares in range(500, 513), agent.tail)
        wait_for(lambda: f"{reserved_group}/agent\n" in own_groups(agent), agent.tail)
        assert "Traceback" not in agent.log()


def test_a_reserved_group_that_is_not_there_ends_the_agent_with_a_sentence(
    tmp_path: Path, containerd: BedContainerd
) -> None:
    with bed_agent(
        tmp_path, containerd, enforceNodeAllocatable=["kube-reserved"], kubeReservedCgroup="/no-such-group"
    ) as agent:
        wait_for(lambda: agent.status is not None, agent.tail)
        assert "kubeReservedCgroup: the cgroup /no-such-group does not exist" in agent.log()
        assert "Traceback" not in agent.log()


# --- systemd --------------------------------------------------------------------------------------------------


def hierarchies() -> list[Path]:
    if V2:
        return [ROOT]
    return [ROOT / name for name in ("cpu", "memory", "pids", "systemd") if (ROOT / name).is_dir()]


@needs_bus
async def test_slices_of_systemd_are_real_groups_with_real_limits(tmp_path: Path) -> None:
    root, tree = f"/pklslice{os.getpid()}", CgroupTree(clock=SystemClock())
    held = ResourceRequirements(requests={"cpu": "500m"}, limits={"cpu": "1", "memory": "64Mi"})
    pod = a_pod("web", uid="1-2", containers=[a_container(resources=held)])
    with PrivateBus(tmp_path) as bus:
        systemd, client = StandInSystemd(folders=hierarchies()), DbusSystemd(connect=bus.connect)
        await systemd.start(bus.address)
        await client.start_unit(f"{root[1:]}.slice", {})
        groups = PodCgroups(
            host=tree,
            rules=CgroupRules(root=root, driver="systemd"),
            active=lambda: [pod],
            in_force=lambda each: each,
            clock=SystemClock(),
            slices=SystemdSlices(systemd=client, unified=V2),
        )
        name = f"{root[1:]}-kubepods-burstable-pod1_2.slice"
        path = f"{root}.slice/{root[1:]}-kubepods.slice/{root[1:]}-kubepods-burstable.slice/{name}"
        try:
            await groups.ensure(pod)
            limits = tree.read(path)
            assert limits is not None and limits.memory_bytes == 64 * MIB
            assert systemd.units[name]["MemoryMax" if V2 else "MemoryLimit"] == 64 * MIB
            assert groups.uids() == {"1-2"}
            await groups.change(pod, CgroupLimits(memory_bytes=128 * MIB))
            limits = tree.read(path)
            assert limits is not None and limits.memory_bytes == 128 * MIB
            assert systemd.units[name]["MemoryMax" if V2 else "MemoryLimit"] == 128 * MIB
            await groups.remove("1-2")
            assert not tree.exists(path) and name not in systemd.units
        finally:
            await tree.destroy(f"{root}.slice")
            await client.close()
            systemd.stop()


@needs_bus
def test_systemd_for_cgroups_without_a_bus_is_a_sentence(
    tmp_path: Path, containerd: BedContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")
    with bed_agent(tmp_path, containerd, cgroupDriver="systemd") as agent:
        wait_for(lambda: agent.status is not None, agent.tail)
        assert "cgroupDriver (--cgroup-driver): " in agent.log()
        assert "the D-Bus system bus cannot be reached" in agent.log()
        assert "Traceback" not in agent.log()


# --- the machine goes down ------------------------------------------------------------------------------------


class LoopThread:
    """An event loop in a thread, for a stand-in that must answer while the test blocks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def do(self, action: Callable[[], T]) -> T:
        async def doing() -> T:
            return action()

        return self.run(doing())

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def logind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[StandInLogind, LoopThread]]:
    thread, stand_in = LoopThread(), StandInLogind(max_delay=60)
    folder = tmp_path / "bus"
    folder.mkdir()
    with PrivateBus(folder) as bus:
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
        thread.run(stand_in.start(bus.address))
        yield stand_in, thread
        thread.do(stand_in.stop)
        thread.do(lambda: None)
    thread.stop()


def a_teller(folder: Path, name: str, **spec: Any) -> dict[str, Any]:
    """A pod that writes down when it begins and ends; its own log goes with it."""
    (folder / name).mkdir()
    manifest = a_manifest(name, script=SLOW_END, terminationGracePeriodSeconds=30, **spec)
    manifest["spec"]["volumes"] = [{"name": "story", "hostPath": {"path": str(folder / name)}}]
    manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "story", "mountPath": "/story"}]
    return manifest


def story(folder: Path, name: str) -> list[tuple[str, float]]:
    """What the pod wrote, and when in seconds since the boot; all its lives."""
    file = folder / name / "lines"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(word, float(time)) for time, _, word in (line.partition(" ") for line in lines)]


def shutdown_command(agent: BedAgent, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("pykubelet")), "shutdown", *words]
    return subprocess.run(
        [*command, "--socket", str(local_socket(agent.root))], capture_output=True, text=True, timeout=120
    )


def groups_left(agent: BedAgent) -> list[str]:
    return [path for path in agent.cgroups.groups() if "/pod" in path]


@needs_bus
def test_pods_end_in_order_before_the_machine_goes_down_and_come_back_after(
    tmp_path: Path, containerd: BedContainerd, logind: tuple[StandInLogind, LoopThread]
) -> None:
    stand_in, thread = logind
    stories = tmp_path / "stories"
    stories.mkdir()
    periods: dict[str, Any] = {"shutdownGracePeriod": "40s", "shutdownGracePeriodCriticalPods": "20s"}
    with bed_agent(tmp_path, containerd, **periods) as agent:
        agent.put("web", a_teller(stories, "web"))
        critical: dict[str, Any] = {"priorityClassName": "system-node-critical", "priority": 2_000_001_000}
        agent.put("core", a_teller(stories, "core", **critical))
        both = ("web", "core")

        def lives() -> list[int]:
            return [sum(word == "up" for word, _ in story(stories, name)) for name in both]

        wait_for(lambda: lives() == [1, 1], agent.tail, within=60)
        wait_for(lambda: thread.do(stand_in.locks) == 1, agent.tail)
        thread.do(lambda: stand_in.announce(True))
        wait_for(lambda: thread.do(stand_in.locks) == 0, agent.tail, within=60)
        told = {name: dict(story(stories, name)) for name in both}
        assert all("ended" in told[name] for name in both), f"{told}\n{agent.tail()}"
        assert told["web"]["ended"] < told["core"]["ending"] < told["core"]["ended"]
        assert groups_left(agent) == []
        assert '"endTime": "2' in (agent.root / "graceful_node_shutdown_state").read_text()

        # The reboot: nothing runs, the agent starts anew, and its pods with it.
        agent.stop()
        thread.do(lambda: stand_in.properties.update(StandInLogind().properties))
        agent.start()
        wait_for(lambda: lives() == [2, 2], agent.tail, within=60)
        wait_for(lambda: len(groups_left(agent)) >= 2, agent.tail)

        done = shutdown_command(agent, "--grace", "40s", "--grace-critical", "20s")
        assert done.returncode == 0, done.stderr + agent.tail()
        assert "2 pods ended in" in done.stdout and "pod default/core-bed-node ended" in done.stdout
        assert groups_left(agent) == []
        back = shutdown_command(agent, "--cancel")
        assert back.stdout == "the shutdown is cancelled\n"
        wait_for(lambda: lives() == [3, 3], agent.tail, within=60)
        assert "Traceback" not in agent.log()


def test_the_command_without_an_agent_says_so(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("pykubelet"))
    command = [program, "shutdown", "--grace", "5s", "--socket", str(tmp_path / "none.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "no agent is running here" in done.stderr
    assert subprocess.run([*command, "--if-running"], capture_output=True, timeout=60).returncode == 0
