"""The agent ends at any moment and starts again: everything is adopted, nothing doubled, nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from pathlib import Path

import pytest

from pykubelet.clients.host.folders import DiskFolders
from pykubelet.clients.host.port import NodePaths
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.kit.tasks import finish
from tests.builders import a_container, a_pod
from tests.harness import NodeHarness, a_node


async def test_running_containers_are_adopted_with_their_ids(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pods = [node.run(a_pod(f"web{number}")) for number in range(5)]
        await node.until_running(*pods)
        ids = {c.id for c in node.cri.containers.values()}
        await node.kill()
        await node.clock.sleep(100)
        await node.start()
        await node.until_running(*pods)
        await node.clock.sleep(120)
        assert {c.id for c in node.cri.containers.values()} == ids
        assert len(node.cri.called("start_container")) == 5
        for pod in pods:
            assert node.status(pod).container_statuses[0].restart_count == 0


async def test_what_was_removed_meanwhile_ends_and_what_was_added_starts(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pods = [node.run(a_pod(name)) for name in ("stays", "goes")]
        await node.until_running(*pods)
        await node.kill()
        node.remove("goes")
        new = node.run(a_pod("comes"))
        await node.start()
        await node.until_running(new)
        await node.until_running_only("stays/app", "comes/app")
        await node.until(lambda: len(node.folders.pod_uids()) == 2)
        await node.until(lambda: len(node.cri.sandboxes) == 2)
        assert len(list(node.paths.pod_logs.iterdir())) == 2


async def test_a_crash_while_the_agent_was_away_is_restarted_once(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        await node.kill()
        node.cri.exit("app", 9)
        await node.clock.sleep(60)
        await node.start()
        await node.until_running_only("web/app")
        await node.clock.sleep(60)
        assert len(node.cri.called("start_container")) == 2
        status = node.status(pod).container_statuses[0]
        assert status.restart_count == 1
        assert status.last_state is not None and status.last_state.terminated is not None
        assert status.last_state.terminated.exit_code == 9


async def test_nothing_is_cleaned_up_before_the_sources_are_heard(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        await node.kill()
        kept, node.wanted = node.wanted, {}
        node.deliver = lambda: None  # type: ignore[method-assign]
        await node.start()
        await node.clock.sleep(300)
        assert node.running() == ["web/app"]
        assert len(node.folders.pod_uids()) == 1
        del node.deliver  # type: ignore[method-assign]
        node.wanted = kept
        node.deliver()
        await node.until_running(pod)
        assert len(node.cri.called("start_container")) == 1


async def test_a_kill_in_progress_is_finished_by_the_next_agent(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=20))
        pod = node.run(a_pod("web", grace=60))
        await node.until_running(pod)
        node.remove("web")
        await node.clock.sleep(5)
        await node.kill()
        await node.start()
        await node.until(lambda: node.running() == [])
        await node.until(lambda: not node.cri.sandboxes and not node.folders.pod_uids())


@pytest.mark.parametrize("seed", range(12))
async def test_killed_at_a_random_moment_again_and_again(tmp_path: Path, seed: int) -> None:
    """Slow runtime calls, random adds and removes, the agent killed in the middle of them."""
    chance = random.Random(seed)
    node = NodeHarness(tmp_path)
    await node.start()
    try:
        for verb in ("run_pod_sandbox", "create_container", "start_container", "stop_container", "stop_pod_sandbox"):
            node.cri.slow(verb, 0.3)
        lasting = [node.run(a_pod(f"lasting{number}")) for number in range(3)]
        await node.until_running(*lasting)
        ids = {c.id for c in node.cri.containers.values()}
        alive: set[str] = set()
        for turn in range(8):
            for _ in range(chance.randint(1, 3)):
                if alive and chance.random() < 0.5:
                    name = chance.choice(sorted(alive))
                    alive.discard(name)
                    node.remove(name)
                else:
                    name = f"p{turn}-{chance.randint(0, 9999)}"
                    alive.add(name)
                    node.run(a_pod(name, containers=[a_container("app"), a_container("two")], grace=2))
            await node.clock.sleep(chance.random() * 1.5)
            await node.kill()
            await node.clock.sleep(chance.random())
            await node.start()
        expected = [f"{name}/{c}" for name in alive for c in ("app", "two")] + [f"lasting{n}/app" for n in range(3)]
        await node.until_running_only(*expected)
        await node.until(lambda: sorted(node.ready_sandboxes()) == sorted([*alive, "lasting0", "lasting1", "lasting2"]))
        await node.until(lambda: len(node.cri.sandboxes) == len(alive) + 3)
        await node.until(lambda: len(node.folders.pod_uids()) == len(alive) + 3)
        assert len(list(node.paths.pod_logs.iterdir())) == len(alive) + 3
        assert ids <= {c.id for c in node.cri.containers.values()}
    finally:
        await node.kill()


async def test_the_runtime_goes_away_and_comes_back(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        node.cri.crash()
        late = node.run(a_pod("late"))
        await node.clock.sleep(45)
        assert node.node.runtime_state.runtime_problem().startswith("container runtime is down")
        node.cri.restore()
        begun = node.clock.monotonic()
        await node.until_running(late)
        assert node.clock.monotonic() - begun < 6
        assert len(node.cri.called("start_container", "app")) == 2
        await node.clock.sleep(5)
        assert node.node.runtime_state.runtime_problem() == ""


class SlowToStop:
    """A server that takes its time to see its callers off."""

    name = "slow-to-stop"

    def __init__(self, node: NodeHarness) -> None:
        self._node = node

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await finish(self._see_off(), within=60.0)

    async def _see_off(self) -> None:
        self._node.cri.exit("app", 1)
        await self._node.clock.sleep(5)


async def test_an_agent_that_stops_starts_nothing_any_more(tmp_path: Path) -> None:
    """Whoever sees its ports closed takes it for gone, and may be ending the pods."""
    node = NodeHarness(tmp_path)
    node.beside.append(SlowToStop(node))
    await node.start()
    await node.until_running(node.run(a_pod("web")))
    await node.kill()
    assert node.running() == []


@pytest.mark.parametrize("kept", [0, 20], ids=["empty", "torn"])
async def test_checkpoints_that_a_power_cut_damaged_are_set_aside_and_said_once(
    tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_node(tmp_path) as node:
        pods = [node.run(a_pod(f"web{number}")) for number in range(3)]
        await node.until_running(*pods)
        await node.clock.sleep(60)
        ids = {c.id for c in node.cri.containers.values()}
        await node.kill()
        # The states of the CPU and memory managers are not guessed (tests/unit/cm/test_state.py).
        states = set(node.paths.root.glob("*_state")) - set(node.paths.root.glob("*_manager_state"))
        assert {path.name for path in states} >= {"allocated_pods_state", "actuated_pods_state"}
        for path in states:
            path.write_bytes(path.read_bytes()[:kept])
        caplog.clear()
        await node.start()
        await node.until_running(*pods)
        await node.clock.sleep(120)
        said = [vars(each)["path"] for each in caplog.records if "is damaged and was set aside" in each.getMessage()]
        assert sorted(said) == sorted(map(str, states))
        assert all(path.with_name(f"{path.name}.damaged").stat().st_size == kept for path in states)
        assert not any(each.exc_info for each in caplog.records if each.levelno >= logging.WARNING)
        assert {c.id for c in node.cri.containers.values()} == ids


def test_files_that_a_killed_agent_was_writing_are_gone_after_the_next_start(tmp_path: Path) -> None:
    paths = NodePaths(root=tmp_path / "root", pod_logs=tmp_path / "logs", container_logs=tmp_path / "links")
    DiskFolders(paths).make_roots()
    pulled = paths.root / "image_manager" / "pulled"
    left = [folder / f".x.{os.getpid()}.tmp" for folder in (paths.root, paths.device_plugins, pulled)]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    DiskFolders(paths).make_roots()
    assert [path for path in left if path.exists()] == []
