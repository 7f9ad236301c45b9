"""Cgroups of pods on a real host: what the kernel has, what a container sees, what is left afterwards, a resize."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.clients.host.cgroups import CgroupTree
from pykubelet.cm.allocation import AllocationState
from pykubelet.cm.cgroups import CgroupRules, PodCgroups
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.cgroups import CgroupLimits
from pykubelet.model.pod_resources import effect_of
from pykubelet.runtime.plan import ContainerResize, PodPlan
from pykubelet.runtime.resize import PodResizer, ResizeProblem
from tests.bed.agent import BedAgent, bed_agent
from tests.bed.parts import blocking
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.builders import a_container, a_pod

pytestmark = pytest.mark.node

ROOT = Path("/sys/fs/cgroup")
V2 = (ROOT / "cgroup.controllers").exists()
MIB = 1 << 20
LOOK = (
    "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null;"
    " cat /proc/self/oom_score_adj; echo done; exec sleep 100000"
)


def wait_for(question: Callable[[], Any], what: Callable[[], str], within: float = 60.0) -> Any:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {within:g} s: {what()}")


def a_manifest(name: str, resources: dict[str, Any] | None = None, script: str = LOOK, **spec: Any) -> dict[str, Any]:
    container = {
        "name": "app",
        "image": BUSYBOX,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", script],
        "resources": resources or {},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def both(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


class View:
    """The cgroup files below the agent's root, whichever version the host has."""

    def __init__(self, agent: BedAgent) -> None:
        self.base = agent.cgroups.name.strip("/")

    def _file(self, hierarchy: str, group: str, name: str) -> Path:
        return ROOT / self.base / group / name if V2 else ROOT / hierarchy / self.base / group / name

    def _text(self, hierarchy: str, group: str, v1: str, v2: str) -> str:
        return self._file(hierarchy, group, v2 if V2 else v1).read_text().strip()

    def memory(self, group: str) -> int:
        text = self._text("memory", group, "memory.limit_in_bytes", "memory.max")
        return -1 if text == "max" or int(text) > 1 << 62 else int(text)

    def quota(self, group: str) -> int:
        text = self._text("cpu", group, "cpu.cfs_quota_us", "cpu.max").split()[0]
        return -1 if text == "max" else int(text)

    def share(self, group: str) -> int:
        """CPU shares, or the weight that stands for them on v2."""
        return int(self._text("cpu", group, "cpu.shares", "cpu.weight"))

    def pids(self, group: str) -> str:
        return self._text("pids", group, "pids.max", "pids.max")

    def set_memory(self, group: str, value: int) -> None:
        self._file("memory", group, "memory.max" if V2 else "memory.limit_in_bytes").write_text(str(value))


def folder_of(agent: BedAgent, pod: str) -> Path | None:
    return next(iter(agent.pod_logs.glob(f"default_{pod}-*_*")), None)


def log_of(agent: BedAgent, pod: str) -> list[str]:
    folder = folder_of(agent, pod)
    files = sorted(folder.glob("app/*.log")) if folder is not None else []
    return [line.split(" ", 3)[3] for line in files[-1].read_text().splitlines()] if files else []


def uid_of_started(agent: BedAgent, pod: str) -> str:
    wait_for(lambda: "done" in log_of(agent, pod), lambda: f"{pod} runs\n{agent.tail()}")
    # The program speaks before the runtime calls it running.
    started = re.compile(rf'"event" .*\bobject="default/{pod}-{agent.node}" reason="Started"')
    wait_for(lambda: started.search(agent.log()), lambda: f"{pod} is started\n{agent.tail()}")
    folder = folder_of(agent, pod)
    assert folder is not None
    return folder.name.rpartition("_")[2]


@pytest.fixture
def agent(tmp_path: Path, containerd: BedContainerd) -> Iterator[BedAgent]:
    with bed_agent(tmp_path, containerd, podPidsLimit=200) as running:
        yield running
        for manifest in running.manifests.iterdir():
            manifest.unlink()
        wait_for(
            lambda: not [path for path in running.cgroups.groups() if "/pod" in path],
            lambda: f"cgroups gone: {running.cgroups.groups()}\n{running.tail()}",
        )


def test_each_class_has_its_limits_outside_and_inside(agent: BedAgent) -> None:
    view = View(agent)
    agent.put("sure", a_manifest("sure", both("500m", "64Mi")))
    agent.put("some", a_manifest("some", {"requests": {"cpu": "250m"}, "limits": {"memory": "96Mi"}}))
    agent.put("none", a_manifest("none"))
    sure, some, none = (uid_of_started(agent, name) for name in ("sure", "some", "none"))

    group = f"kubepods/pod{sure}"
    assert (view.memory(group), view.quota(group), view.pids(group)) == (64 * MIB, 50_000, "200")
    assert view.share(group) == (20 if V2 else 512)
    assert str(64 * MIB) in log_of(agent, "sure")

    group = f"kubepods/burstable/pod{some}"
    assert (view.memory(group), view.quota(group), view.pids(group)) == (96 * MIB, -1, "200")
    assert view.share(group) == (10 if V2 else 256)
    assert view.share("kubepods/burstable") == (10 if V2 else 256)
    assert str(96 * MIB) in log_of(agent, "some")

    group = f"kubepods/besteffort/pod{none}"
    assert (view.memory(group), view.quota(group)) == (-1, -1)
    assert view.share(group) == view.share("kubepods/besteffort") == (1 if V2 else 2)
    # Without the right to lower it the runtime leaves the score of its own process: the pods run all the same.
    assert all(len(log_of(agent, name)) >= 2 for name in ("sure", "some", "none"))

    agent.drop("some")
    wait_for(lambda: view.share("kubepods/burstable") == (1 if V2 else 2), lambda: "shares of the class given back")
    wait_for(
        lambda: not [path for path in agent.cgroups.groups() if f"pod{some}" in path],
        lambda: f"{agent.cgroups.groups()}\n{agent.tail()}",
    )


def test_a_restarted_agent_adopts_the_groups_and_puts_them_right(agent: BedAgent) -> None:
    view = View(agent)
    agent.put("sure", a_manifest("sure", both("500m", "64Mi")))
    group = f"kubepods/pod{uid_of_started(agent, 'sure')}"
    agent.kill9()
    view.set_memory(group, 128 * MIB)
    agent.start()
    wait_for(lambda: view.memory(group) == 64 * MIB, lambda: f"limit written again\n{agent.tail()}")
    assert len(list(agent.pod_logs.glob("default_sure-*_*/app/*.log"))) == 1


def test_groups_of_pods_that_went_while_the_agent_was_away_are_removed(agent: BedAgent) -> None:
    agent.put("sure", a_manifest("sure", both("500m", "64Mi")))
    uid = uid_of_started(agent, "sure")
    agent.kill9()
    agent.drop("sure")
    stranger = f"{agent.cgroups.name}/kubepods/burstable/podleft-over"
    CgroupTree(clock=SystemClock()).create(stranger, CgroupLimits(cpu_shares=100))
    agent.start()
    wait_for(
        lambda: not [path for path in agent.cgroups.groups() if uid in path or "left-over" in path],
        lambda: f"{agent.cgroups.groups()}\n{agent.tail()}",
        within=60,
    )


def test_a_root_that_does_not_exist_ends_the_agent_with_a_sentence(tmp_path: Path, containerd: BedContainerd) -> None:
    with bed_agent(tmp_path, containerd, cgroupRoot="/no-such-group") as agent:
        wait_for(lambda: agent.status is not None, lambda: f"the agent ends\n{agent.tail()}")
        assert "the cgroup /no-such-group does not exist" in agent.log()
        assert "Traceback" not in agent.log()


def test_removing_a_group_ends_what_runs_in_it(agent: BedAgent) -> None:
    # Not below kubepods: there the agent itself removes what belongs to no pod.
    tree, path = CgroupTree(clock=SystemClock()), f"{agent.cgroups.name}/apart/podbusy"
    tree.create(path, CgroupLimits())
    child = subprocess.Popen(["sleep", "1000"])
    try:
        hierarchy = ROOT if V2 else ROOT / "pids"
        (hierarchy / path.lstrip("/") / "cgroup.procs").write_text(str(child.pid))
        blocking(tree.destroy(path))
        assert child.wait(30) == -9
        assert not tree.exists(path)
    finally:
        child.kill()
        child.wait()


# --- a resize on the real runtime ---------------------------------------------------------------------------------


async def _resize(agent: BedAgent, endpoint: str, uid: str, before: str, after: str, folder: Path) -> tuple[str, str]:
    """Resize the container of a running pod; its id, and why it did not work."""

    def sized(memory: str, cpu: str) -> Pod:
        held = ResourceRequirements(**both(cpu, memory))
        return a_pod("sure", uid=uid, containers=[a_container("app", resources=held)])

    old, new = sized(before, "500m"), sized(after, "1")
    clock = SystemClock()
    record = AllocationState(folder / "record")
    record.put(uid, effect_of(old))
    groups = PodCgroups(
        host=CgroupTree(clock=clock),
        rules=CgroupRules(root=agent.cgroups.name),
        active=lambda: [],
        in_force=lambda pod: pod,
        clock=clock,
    )
    async with GrpcCriClient(endpoint, clock=clock) as cri:
        (container,) = await cri.list_containers(pod_uid=uid, running_only=True)
        (box,) = await cri.list_pod_sandboxes(pod_uid=uid, ready_only=True)
        resizer = PodResizer(
            cri=cri,
            groups=groups,
            record=record,
            node=NodeSpec(cgroup_v2=V2, memory_bytes=8 << 30),
            clock=clock,
            metrics=Registry(),
        )
        was, wanted = old.spec.containers[0].resources, new.spec.containers[0].resources
        assert was is not None and wanted is not None
        change = ContainerResize(
            id=container.id,
            name="app",
            wanted=wanted,
            actuated=was,
            resources=("memory", "cpu"),
            needs_restart=False,
        )
        try:
            await resizer.resize(new, PodPlan(resize=(change,), sandbox_id=box.id), box.id)
        except ResizeProblem as problem:
            return container.id, str(problem)
        return container.id, ""


def test_a_running_container_is_resized_in_place(agent: BedAgent, containerd: BedContainerd, tmp_path: Path) -> None:
    view = View(agent)
    agent.put("sure", a_manifest("sure", both("500m", "64Mi")))
    uid = uid_of_started(agent, "sure")
    container, problem = blocking(_resize(agent, containerd.endpoint, uid, "64Mi", "128Mi", tmp_path))
    assert problem == ""
    pod = f"kubepods/pod{uid}"
    for group in (pod, f"{pod}/{container}"):
        assert (view.memory(group), view.quota(group)) == (128 * MIB, 100_000)
    assert V2 or view.share(pod) == view.share(f"{pod}/{container}") == 1024
    # The agent, which was not asked, keeps to what it knows and restarts nothing.
    assert len(list(agent.pod_logs.glob("default_sure-*_*/app/*.log"))) == 1


def test_memory_in_use_is_not_taken_away(agent: BedAgent, containerd: BedContainerd, tmp_path: Path) -> None:
    view = View(agent)
    hog = "dd if=/dev/zero of=/dev/shm/x bs=1M count=40 2>/dev/null; echo done; exec sleep 100000"
    agent.put("sure", a_manifest("sure", both("500m", "64Mi"), hog))
    uid = uid_of_started(agent, "sure")
    container, problem = blocking(_resize(agent, containerd.endpoint, uid, "64Mi", "16Mi", tmp_path))
    assert problem.startswith("cannot decrease memory limits: ")
    assert f'container "app" memory limit ({16 * MIB}) below current usage' in problem
    assert f"pod memory limit ({16 * MIB}) below current usage" in problem
    assert view.memory(f"kubepods/pod{uid}/{container}") == 64 * MIB
