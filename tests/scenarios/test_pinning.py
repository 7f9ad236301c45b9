"""Pods that own CPUs, on the whole agent: cpusets of containers, others moved aside, restarts, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.cm.errors import ResourceManagerError
from pykubelet.model.runtime_status import ContainerState
from tests.builders import a_container, a_pod
from tests.harness import NodeHarness, a_node

STATIC = ("--cpu-manager-policy=static", "--reserved-cpus=0", "--cpu-manager-reconcile-period=1h")
"""Four CPUs of which the first is the system's; a tick that never comes: everything must happen by signal."""


def pinned(name: str, cpu: str = "1") -> Pod:
    amounts: dict[str, str | int | float] = {"cpu": cpu, "memory": "64Mi"}
    resources = ResourceRequirements(requests=dict(amounts), limits=dict(amounts))
    return a_pod(name, containers=[a_container("app", resources=resources)], grace=1)


def cpusets(node: NodeHarness) -> dict[str, str]:
    """What each running container may use."""
    return {
        each.sandbox.name.removesuffix("-node1"): each.resources.cpuset_cpus if each.resources is not None else ""
        for each in node.cri.containers.values()
        if each.state is ContainerState.RUNNING
    }


def test_nothing_is_set_without_a_policy(tmp_path: Path) -> None:
    harness = NodeHarness(tmp_path)
    assert not (harness.paths.root / "cpu_manager_state").exists(), "nothing is read or written before the start"


async def test_a_pod_owns_cpus_and_the_others_move_aside(tmp_path: Path) -> None:
    async with a_node(tmp_path, *STATIC) as node:
        plain = node.run(a_pod("plain", grace=1))
        await node.until_running(plain)
        assert cpusets(node) == {"plain": "0-3"}
        owner = node.run(pinned("owner", "2"))
        await node.until_running(owner)
        await node.until(lambda: cpusets(node) == {"plain": "0,3", "owner": "1-2"})
        made = next(each for each in node.cri.containers.values() if each.sandbox.name.startswith("owner"))
        assert made.config.linux.resources.cpuset_cpus == "1-2", "from its first moment"
        assert made.config.linux.resources.cpu_quota == -1, "nothing slows it down on its own CPUs"
        node.remove("owner")
        await node.until(lambda: cpusets(node) == {"plain": "0-3"})


async def test_a_restarted_agent_keeps_who_owns_what(tmp_path: Path) -> None:
    async with a_node(tmp_path, *STATIC) as node:
        pods = [node.run(pinned("one")), node.run(pinned("two")), node.run(a_pod("plain", grace=1))]
        await node.until_running(*pods)
        await node.until(lambda: cpusets(node)["plain"] in ("0,3", "0,2", "0-1"))
        before, files = cpusets(node), json.loads((node.paths.root / "cpu_manager_state").read_text())
        made = len(node.cri.containers)
        await node.kill()
        await node.start()
        await node.until_running(*pods)
        last = node.run(pinned("three"))
        await node.until_running(last)
        await node.until(lambda: cpusets(node)["plain"] == "0")
        assert len(node.cri.containers) == made + 1, "nothing was started anew"
        now = json.loads((node.paths.root / "cpu_manager_state").read_text())
        assert {name: cpusets(node)[name] for name in ("one", "two")} == {n: before[n] for n in ("one", "two")}
        assert files["entries"].items() <= now["entries"].items()


async def test_a_pod_for_which_nothing_is_left_is_refused_and_holds_nothing(tmp_path: Path) -> None:
    async with a_node(tmp_path, *STATIC) as node:
        owner = node.run(pinned("owner", "3"))
        await node.until_running(owner)
        greedy = node.run(pinned("greedy"))
        await node.until(lambda: node.node.table.reported_status(greedy.metadata.uid or "") is not None)
        status = node.status(greedy)
        assert (status.phase, status.reason) == ("Failed", "UnexpectedAdmissionError")
        assert status.message == (
            "Pod was rejected: Allocate failed due to not enough cpus available to satisfy request: requested=1, "
            "available=0, which is unexpected"
        )
        # A changed manifest is a new pod: it gets the CPUs of the old one, which is on its way out.
        changed = node.run(pinned("owner", "2"))
        await node.until_running(changed)
        await node.until(lambda: list(cpusets(node)) == ["owner"] and cpusets(node)["owner"].count("-") == 1)


async def test_another_policy_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with a_node(tmp_path, *STATIC) as node:
        await node.until_running(node.run(pinned("owner")))
        root = node.paths.root
    (tmp_path / "manifests").rmdir()
    other = NodeHarness(tmp_path)
    with pytest.raises(ResourceManagerError) as caught:
        await other.start()
    assert f'please drain this node and delete the CPU manager checkpoint file "{root}/cpu_manager_state"' in str(
        caught.value
    )
