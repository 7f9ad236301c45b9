"""Probes on the whole node: readiness in the status, restarts by liveness and startup, restarts of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import Container, ExecAction, HTTPGetAction, Pod, Probe
from pykubelet.hollow.cri_values import Exec, MemoryContainer
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ExecResult
from tests.builders import a_container, a_pod, a_sidecar
from tests.harness import NodeHarness, a_node
from tests.scenarios.cluster_node import ClusterHarness, a_cluster_node

SICK = Exec(result=ExecResult(stdout=b"sick", exit_code=1))
WELL = Exec()


def a_probe(word: str, **fields: Any) -> Probe:
    return Probe(exec=ExecAction(command=[word]), **fields)


def probed(name: str = "app", **probes: Probe) -> Container:
    return a_container(name, **{f"{kind}_probe": probe for kind, probe in probes.items()})


def ready(node: NodeHarness, pod: Pod) -> bool:
    return any(c.type == "Ready" and c.status == "True" for c in node.status(pod).conditions)


def starts(node: NodeHarness, name: str = "app") -> list[float]:
    return [round(call.at, 1) for call in node.cri.called("start_container", name)]


def execs(node: NodeHarness, word: str) -> list[float]:
    return [round(call.at, 1) for call in node.cri.called("exec_sync") if call.args["command"] == (word,)]


async def test_a_pod_is_ready_when_its_probe_says_so_and_no_longer_when_it_does_not(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(SICK, command=["ready"])
        pod = node.run(a_pod("web", containers=[probed(readiness=a_probe("ready", period_seconds=2))]))
        await node.until_running(pod)
        await node.clock.sleep(5)
        assert not ready(node, pod)
        node.cri.on_exec(WELL, command=["ready"])
        await node.until(lambda: ready(node, pod), within=2.2)
        node.cri.on_exec(SICK, command=["ready"])
        await node.clock.sleep(3.9)
        assert ready(node, pod)
        await node.until(lambda: not ready(node, pod), within=2.3)
        assert starts(node) == starts(node)[:1]
        assert set(node.events("Unhealthy")) == {"Readiness probe failed: sick"}


async def test_a_healthy_pod_is_ready_as_soon_as_it_runs(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web", containers=[probed(readiness=a_probe("ready"))]))
        await node.until_running(pod)
        await node.until(lambda: ready(node, pod), within=0.2)


async def test_liveness_restarts_the_container_once_per_failure(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:

        def first_is_sick(container: MemoryContainer, command: object) -> Exec:
            return SICK if container.attempt == 0 else WELL

        node.cri.on_exec(first_is_sick, command=["live"])
        probe = a_probe("live", period_seconds=5, failure_threshold=2)
        pod = node.run(a_pod("web", containers=[probed(liveness=probe)]))
        await node.until(lambda: len(starts(node)) == 2)
        first, second = starts(node)
        assert 5 <= second - first < 6
        await node.clock.sleep(120)
        assert len(starts(node)) == 2
        assert node.status(pod).container_statuses[0].restart_count == 1
        assert node.events("Unhealthy") == ["Liveness probe failed: sick"]
        assert any("failed liveness probe" in text for text in node.events("Killing"))


async def test_startup_gates_and_gives_up(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(SICK, command=["start"])
        container = probed(
            startup=a_probe("start", period_seconds=1, failure_threshold=3),
            liveness=a_probe("live"),
            readiness=a_probe("ready"),
        )
        pod = node.run(a_pod("web", containers=[container]))
        await node.until(lambda: len(starts(node)) == 2)
        assert execs(node, "live") == execs(node, "ready") == []
        assert any("failed startup probe" in text for text in node.events("Killing"))
        node.cri.on_exec(WELL, command=["start"])
        await node.until(lambda: ready(node, pod), within=60)
        asked = len(execs(node, "start"))
        await node.clock.sleep(30)
        assert len(execs(node, "start")) == asked
        assert len(execs(node, "live")) >= 3


async def test_a_restart_of_the_agent_keeps_a_ready_pod_ready(tmp_path: Path) -> None:
    node = NodeHarness(tmp_path)
    await node.start()
    container = probed(readiness=a_probe("ready", period_seconds=10), liveness=a_probe("live"))
    pod = node.run(a_pod("web", containers=[container]))
    await node.until_running(pod)
    await node.until(lambda: ready(node, pod))
    await node.clock.sleep(60)
    await node.kill()
    node.cri.calls.clear()
    await node.start()
    await node.clock.sleep(30)
    assert ready(node, pod)
    assert starts(node) == []
    assert len(execs(node, "ready")) in (2, 3)
    await node.kill()


async def test_probes_end_with_the_pod_and_readiness_last(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        container = probed(readiness=a_probe("ready", period_seconds=1), liveness=a_probe("live", period_seconds=1))
        pod = node.run(a_pod("web", containers=[container]))
        await node.until_running(pod)
        await node.until(lambda: ready(node, pod))
        node.remove("web")
        await node.until(lambda: not node.cri.containers)
        node.cri.calls.clear()
        await node.clock.sleep(30)
        assert node.cri.called("exec_sync") == []
        assert node.node.probes.snapshot() == {}


async def test_a_sidecar_that_becomes_healthy_lets_the_pod_start(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(SICK, command=["start"])
        side = a_sidecar("side", startup_probe=a_probe("start", period_seconds=1, failure_threshold=100))
        pod = node.run(a_pod("web", init=[side]))
        await node.until(lambda: node.running() == ["web/side"])
        await node.clock.sleep(10)
        assert node.running() == ["web/side"]
        node.cri.on_exec(WELL, command=["start"])
        await node.until_running_only("web/app", "web/side")
        await node.until(lambda: ready(node, pod))


async def test_a_runtime_that_cannot_exec_restarts_nobody(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        probe = a_probe("live", period_seconds=1, failure_threshold=1)
        pod = node.run(a_pod("web", containers=[probed(liveness=probe)]))
        await node.until_running(pod)
        node.cri.fail_next("exec_sync", CriError("shim is gone"), times=None)
        await node.clock.sleep(20)
        assert len(starts(node)) == 1
        errored = "Liveness probe errored and resulted in unknown state: shim is gone"
        assert node.events("Unhealthy") == [errored]


async def test_one_hanging_probe_holds_up_nobody(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.hang("exec_sync", "stuck")
        stuck = node.run(a_pod("stuck", containers=[probed("stuck", readiness=a_probe("ready"))]))
        fine = node.run(a_pod("fine", containers=[probed(readiness=a_probe("ready"))]))
        await node.until_running(stuck, fine)
        await node.until(lambda: ready(node, fine), within=1)
        assert not ready(node, stuck)
        node.remove("stuck")
        await node.until_running_only("fine/app")


async def test_a_closed_port_is_not_ready_and_says_why(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        probe = Probe(http_get=HTTPGetAction(port=80), period_seconds=1)
        pod = node.run(a_pod("web", containers=[probed(readiness=probe)]))
        await node.until_running(pod)
        await node.clock.sleep(5)
        assert not ready(node, pod)
        assert node.events("Unhealthy") == ["Readiness probe failed: connection refused"]


# --- restarts of the agent in a cluster ---------------------------------------------------------

GATE = "ChangeContainerStatusOnKubeletRestart"


def flags_told(node: ClusterHarness, name: str) -> set[tuple[bool | None, bool | None]]:
    """Every pair of started and ready that the API server is told from now on."""
    told: set[tuple[bool | None, bool | None]] = set()

    def watch(before: object, after: object) -> None:
        if isinstance(after, Pod) and after.metadata.name == name:
            told.update((each.started, each.ready) for each in after.status.container_statuses)
            told.update((each.started, each.ready) for each in after.status.init_container_statuses)

    node.api.store.listeners.append(watch)
    return told


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("late", [0.0, 3.0])
@pytest.mark.parametrize("gate", [False, True])
async def test_started_and_ready_after_a_restart_of_the_agent(
    tmp_path: Path, static: bool, late: float, gate: bool
) -> None:
    async with a_cluster_node(tmp_path, f"--feature-gates={GATE}={str(gate).lower()}") as node:
        await node.until(node.is_ready)
        # Answers take longer than the API server is away: what is told before them is seen.
        node.cri.on_exec(Exec(takes=8.0), command=["startup"])
        node.cri.on_exec(Exec(takes=8.0), command=["readiness"])
        timing = {"period_seconds": 10, "timeout_seconds": 9}
        probes = {kind: a_probe(kind, **timing) for kind in ("startup", "readiness")}
        sidecar = a_sidecar(startup_probe=a_probe("startup", **timing))
        pod = a_pod("web", init=[sidecar], containers=[probed(**probes)], node_name="node1")
        name = "web-node1" if static else "web"
        if static:
            node.run(pod)
        else:
            node.bind(init=[sidecar], containers=[probed(**probes)])

        def ready_in_api() -> bool:
            shown = node.shown(name)
            conditions = shown.status.conditions if shown is not None else []
            return any(c.type == "Ready" and c.status == "True" for c in conditions)

        await node.until(ready_in_api)
        shown = node.shown(name)
        assert shown is not None
        begun, made = shown.status.start_time, len(node.cri.called("start_container"))
        await node.clock.sleep(100)
        await node.kill()
        await node.clock.sleep(20)
        told = flags_told(node, name)
        node.api.down = bool(late)
        await node.start()
        await node.clock.sleep(late)
        node.api.start()
        await node.clock.sleep(60)
        assert ready_in_api()
        assert bool(told - {(True, True)}) is gate, told
        assert len(node.cri.called("start_container")) == made
        shown = node.shown(name)
        assert shown is not None and (gate or shown.status.start_time == begun)


async def test_what_was_not_ready_before_a_restart_of_the_agent_is_not_ready_after_it(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.on_exec(SICK, command=["ready"])
        node.run(a_pod("web", containers=[probed(readiness=a_probe("ready"))]))
        await node.until(lambda: node.phase("web-node1") == "Running")
        await node.kill()
        await node.clock.sleep(20)
        told = flags_told(node, "web-node1")
        await node.start()
        await node.clock.sleep(60)
        assert told <= {(True, False)}
        node.cri.on_exec(WELL, command=["ready"])
        await node.clock.sleep(20)
        assert (True, True) in told
