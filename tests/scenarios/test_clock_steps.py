"""The wall clock is set forward or back by an hour: no pod ends by it, and nothing waits for the old time."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from pykubelet.api.types import ExecAction, Probe
from pykubelet.hollow.cri_values import Behaviour, Exec
from tests.builders import a_container, a_pod
from tests.harness import NodeHarness, a_node

STEPS = [pytest.param(3600.0, id="forward"), pytest.param(-3600.0, id="back")]


def probes(node: NodeHarness, word: str) -> int:
    return len([call for call in node.cri.called("exec_sync") if call.args["command"] == (word,)])


def starts(node: NodeHarness, name: str) -> list[float]:
    return [call.at for call in node.cri.called("start_container", name)]


@pytest.mark.parametrize("step", STEPS)
async def test_pods_and_their_probes_go_on(tmp_path: Path, step: float) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(Exec(), command=["well"])
        alive = Probe(exec=ExecAction(command=["well"]), period_seconds=5)
        pod = node.run(a_pod("web", containers=[a_container("app", liveness_probe=alive, readiness_probe=alive)]))
        await node.until_running(pod)
        await node.clock.sleep(30)
        node.clock.step(step)
        before = probes(node, "well")
        await node.clock.sleep(300)
        assert 110 <= probes(node, "well") - before <= 130
        assert len(starts(node, "app")) == 1 and not node.cri.called("stop_container")
        assert node.status(pod).container_statuses[0].restart_count == 0


@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_loop_goes_on(tmp_path: Path, step: float) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=1.0, exit_code=1), name="app")
        node.run(a_pod("web"))
        await node.until(lambda: len(starts(node, "app")) == 4)
        await node.clock.sleep(5)
        node.clock.step(step)
        await node.until(lambda: len(starts(node, "app")) >= 8, within=1500)
        times = starts(node, "app")
        waits = [round(later - earlier) for earlier, later in pairwise(times[4:])]
        assert min(waits) >= 10, f"it still waits between its restarts: {waits}"
        await node.until(lambda: len(node.cri.containers) <= 2, within=120)


async def test_an_initial_delay_is_not_begun_anew(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(Exec(), command=["well"])
        ready = Probe(exec=ExecAction(command=["well"]), initial_delay_seconds=30, period_seconds=5)
        pod = node.run(a_pod("web", containers=[a_container("app", readiness_probe=ready)]))
        await node.until_running(pod)
        await node.clock.sleep(10)
        node.clock.step(-3600)
        await node.until(lambda: probes(node, "well") > 0, within=25)


@pytest.mark.parametrize("step", STEPS)
async def test_a_grace_period_is_neither_cut_nor_stretched(tmp_path: Path, step: float) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=None), name="app")
        pod = node.run(a_pod("web", grace=20))
        await node.until_running(pod)
        begun = node.clock.monotonic()
        node.remove("web")
        await node.clock.sleep(5)
        node.clock.step(step)
        await node.until(lambda: node.running() == [], within=60)
        assert 19 <= node.clock.monotonic() - begun <= 30
        await node.until(lambda: not node.cri.sandboxes and not node.folders.pod_uids())


@pytest.mark.parametrize("step", STEPS)
async def test_a_restart_after_the_step_adopts_what_runs(tmp_path: Path, step: float) -> None:
    async with a_node(tmp_path) as node:
        pods = [node.run(a_pod(f"web{number}")) for number in range(3)]
        await node.until_running(*pods)
        await node.kill()
        node.clock.step(step)
        await node.start()
        await node.until_running(*pods)
        await node.clock.sleep(200)
        assert len(starts(node, "app")) == 3


async def test_a_container_that_crashes_after_the_clock_was_set_back_is_started_once(tmp_path: Path) -> None:
    """The dead one is younger by the clock than the one that replaces it."""
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        node.clock.step(-3600)
        node.cri.exit("app", 9)
        await node.until(lambda: len(starts(node, "app")) == 2)
        await node.clock.sleep(600)
        assert len(starts(node, "app")) == 2 and node.running() == ["web/app"]
        assert node.status(pod).container_statuses[0].restart_count == 1
