"""How pods end: grace that is shortened on the way, the agent leaving meanwhile, hooks that take their time."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from pykubelet.api.types import ExecAction, Lifecycle, LifecycleHandler
from pykubelet.hollow.cri_values import KILLED, Behaviour, Exec
from pykubelet.kit.clock import utc
from pykubelet.model.errors import CriError, RuntimeDown
from pykubelet.model.pod import ContainerKind
from pykubelet.node.shutdown import two_periods
from pykubelet.runtime.stop import Stopper, Stopping
from tests.builders import a_container, a_pod, a_sidecar
from tests.harness import NodeHarness, a_node
from tests.scenarios.cluster_node import ClusterHarness, a_cluster_node

SLOW = Behaviour(stops_after=10, stop_code=0)


def exec_hook() -> Lifecycle:
    return Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=["drain"])))


async def a_running_pod(node: ClusterHarness, **fields: object) -> None:
    node.bind(**fields)
    await node.until(lambda: node.phase() == "Running")


def graces(node: NodeHarness, name: str = "app") -> list[int]:
    return [call.args["timeout"] for call in node.cri.called("stop_container", name)]


# --- the grace is shortened ---------------------------------------------------------------------


async def test_a_shortened_grace_still_lets_containers_end_by_themselves(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60)
        container, begun = node.cri.container("app"), node.clock.monotonic()
        await node.delete()
        await node.clock.sleep(2)
        await node.delete(grace=30)
        await node.until(lambda: node.running() == [])
        assert container.exit_code == 0
        assert 9.9 <= node.clock.monotonic() - begun <= 10.2
        assert graces(node) == [60, 30]
        await node.until(lambda: node.shown() is None)
        assert all(call.at >= begun + 9.9 for call in node.cri.called("stop_pod_sandbox"))


async def test_a_shortened_grace_is_kept_to(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=None), name="app")
        await a_running_pod(node, grace=600)
        begun = node.clock.monotonic()
        await node.delete()
        await node.clock.sleep(5)
        await node.delete(grace=20)
        await node.until(lambda: node.running() == [])
        assert 24 <= node.clock.monotonic() - begun <= 26
        assert graces(node) == [600, 20]


async def test_a_shutdown_of_the_node_shortens_and_does_not_kill(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60)
        container = node.cri.container("app")
        await node.delete()
        await node.clock.sleep(2)
        await node.node.sync.shutdown.manager.shut_down(two_periods(30, 10))
        assert container.exit_code == 0
        assert graces(node) == [60, 20]


async def test_a_pod_deleted_while_it_is_stopped_for_a_new_sandbox_keeps_its_grace(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60)
        container = node.cri.container("app")
        node.cri.kill_sandbox("web")
        await node.until(lambda: bool(node.cri.called("stop_container")))
        await node.clock.sleep(2)
        await node.delete()
        await node.until(lambda: node.running() == [])
        assert container.exit_code == 0


@pytest.mark.parametrize("first", [None, 60])
async def test_a_forced_delete_of_a_pod_with_a_finalizer_takes_two_seconds(tmp_path: Path, first: int | None) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=None), name="app")
        await a_running_pod(node, grace=60)
        for grace in (0,) if first is None else (first, 0):
            begun, shown = node.clock.monotonic(), node.shown()
            assert shown is not None
            node.change(shown, deletion_timestamp=utc(node.clock.now()), deletion_grace_period_seconds=grace)
            await node.clock.sleep(1)
        await node.until(lambda: node.running() == [])
        assert 1.9 <= node.clock.monotonic() - begun <= 2.2


async def test_a_hook_runs_once_however_often_the_grace_is_shortened(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.on_exec(Exec(takes=8), name="app")
        await a_running_pod(node, grace=600, containers=[a_container(lifecycle=exec_hook())])
        begun = node.clock.monotonic()
        await node.delete()
        for grace in (300, 200, 100):
            await node.clock.sleep(1)
            await node.delete(grace=grace)
        await node.until(lambda: node.running() == [])
        assert len(node.cri.called("exec_sync")) == 1
        assert node.cri.execs_given_up == []
        # The hook had three seconds behind it when the last deletion came, and took five of its hundred.
        assert 7.9 <= node.clock.monotonic() - begun <= 8.5
        assert graces(node) == [95]


async def test_a_hook_that_is_done_is_not_run_again(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60, containers=[a_container(lifecycle=exec_hook())])
        await node.delete()
        await node.clock.sleep(2)
        await node.delete(grace=30)
        await node.until(lambda: node.running() == [])
        assert len(node.cri.called("exec_sync")) == 1
        assert graces(node) == [60, 30]


async def test_a_hook_is_run_again_when_the_runtime_was_away(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await a_running_pod(node, grace=60, containers=[a_container(lifecycle=exec_hook())])
        node.cri.fail_next("exec_sync", RuntimeDown("connection refused"))
        node.cri.fail_next("stop_container", RuntimeDown("connection refused"))
        await node.delete()
        await node.until(lambda: node.running() == [])
        assert len(node.cri.called("exec_sync")) == 2


async def test_a_hook_of_a_stop_that_was_given_up_does_not_count_for_the_end(tmp_path: Path) -> None:
    """Somebody restarts a container by hand and thinks better of it: it runs on, and is drained when it ends."""
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60, containers=[a_container(lifecycle=exec_hook())])
        (stopper,) = [each for each in node.node.services.sinks if isinstance(each, Stopper)]
        shown, seen = node.shown(), node.cri.container("app")
        assert shown is not None
        status = await node.cri.container_status(seen.id)
        one = Stopping(status=status, container=shown.spec.containers[0], kind=ContainerKind.REGULAR)
        node.cri.fail_next("stop_container", CriError("task is stuck"))
        with pytest.raises(CriError):
            await stopper.stop_container(shown, one)
        await node.clock.sleep(3600)
        assert node.running() == ["web/app"] and len(node.cri.called("exec_sync")) == 1
        await node.delete()
        await node.until(lambda: node.running() == [])
        assert len(node.cri.called("exec_sync")) == 2


# --- the runtime errs ---------------------------------------------------------------------------


async def test_a_runtime_that_was_away_for_a_moment_costs_no_container_its_grace(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60)
        container = node.cri.container("app")
        node.cri.fail_next("stop_container", RuntimeDown("connection reset"))
        await node.delete()
        await node.until(lambda: node.running() == [])
        assert container.exit_code == 0


async def test_a_container_that_cannot_be_stopped_goes_with_its_sandbox(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        await a_running_pod(node, grace=60)
        container = node.cri.container("app")
        node.cri.fail_next("stop_container", CriError("task is stuck"))
        await node.delete()
        await node.until(lambda: node.running() == [], within=5)
        assert container.exit_code == KILLED
        await node.until(lambda: node.shown() is None)


# --- the agent leaves ---------------------------------------------------------------------------


async def test_an_agent_that_stops_leaves_terminating_containers_their_grace(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60)
        container = node.cri.container("app")
        await node.delete()
        await node.clock.sleep(2)
        await node.kill()
        assert node.running() == ["web/app"]
        assert node.cri.called("stop_pod_sandbox") == []
        await node.clock.sleep(20)
        assert container.exit_code == 0
        await node.start()
        await node.until(lambda: node.shown() is None)
        await node.until(lambda: not node.cri.sandboxes)


async def test_the_next_agent_goes_on_with_the_end_of_a_pod(tmp_path: Path) -> None:
    async with a_cluster_node(tmp_path) as node:
        node.cri.program(SLOW, name="app")
        await a_running_pod(node, grace=60)
        container = node.cri.container("app")
        await node.delete()
        await node.clock.sleep(2)
        await node.kill()
        await node.start()
        await node.until(lambda: node.shown() is None)
        assert container.exit_code == 0


# --- hooks that take longer than the grace ------------------------------------------------------


@pytest.mark.parametrize("sidecar", [False, True])
async def test_giving_up_on_a_hook_does_not_end_its_process(tmp_path: Path, sidecar: bool) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(Exec(takes=10_000))
        node.cri.program(Behaviour(stops_after=None))
        hooked = a_container("app", lifecycle=exec_hook())
        if sidecar:
            pod = a_pod("web", init=[a_sidecar("side", lifecycle=exec_hook())], containers=[hooked], grace=30)
        else:
            pod = a_pod("web", containers=[hooked], grace=30)
        pod = node.run(pod)
        await node.until_running(pod)
        begun = node.clock.monotonic()
        node.remove("web")
        await node.until(lambda: node.running() == [])
        assert 31.9 <= node.clock.monotonic() - begun <= 32.2
        assert node.cri.execs_given_up == []
        assert set(graces(node)) == {2}
        assert node.events("FailedPreStopHook") == ["PreStopHook failed"] * (2 if sidecar else 1)


async def test_a_long_hook_of_a_container_that_is_killed_for_another_reason_is_not_ended_either(
    tmp_path: Path,
) -> None:
    """A new image replaces the container: its hook and its grace are those of any other end."""
    async with a_cluster_node(tmp_path) as node:
        node.cri.add_image("busybox:2")
        node.cri.on_exec(Exec(takes=10_000))
        await a_running_pod(node, grace=10, containers=[a_container(lifecycle=exec_hook())])
        shown = node.shown()
        assert shown is not None
        containers = [a_container(image="busybox:2", lifecycle=exec_hook())]
        node.api.change(replace(shown, spec=replace(shown.spec, containers=containers)))
        await node.until(lambda: len(node.cri.called("start_container")) == 2)
        assert node.cri.execs_given_up == []
        assert node.cri.called("stop_pod_sandbox") == []
