"""How a pod with several containers starts: what waits for what, what is told meanwhile, what a full disk does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pykubelet.api.types import ExecAction, Lifecycle, LifecycleHandler, Pod
from pykubelet.hollow.cri_values import Behaviour
from pykubelet.model.errors import CriError
from pykubelet.model.pod import uid_of
from pykubelet.signals import PodStatusChanged
from tests.builders import a_container, a_pod, an_ephemeral_container
from tests.harness import NodeHarness, a_node


def condition(node: NodeHarness, pod: Pod, type_: str) -> str | None:
    return next((c.status for c in node.status(pod).conditions if c.type == type_), None)


async def test_a_container_waits_for_its_own_image_only(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.add_to_registry("r.io/big:1", takes=300.0)
        pod = node.run(a_pod("web", containers=[a_container("small"), a_container("big", "r.io/big:1")]))
        await node.until_running_only("web/small")
        assert node.clock.monotonic() < 2
        await node.clock.sleep(1)
        told = {each.name: each for each in node.status(pod).container_statuses}
        assert told["small"].state is not None and told["small"].state.running is not None
        assert condition(node, pod, "PodReadyToStartContainers") == "True"
        assert node.status(pod).pod_ip
        await node.until_running_only("web/small", "web/big")
        assert 300 <= node.clock.monotonic() < 302


async def test_the_sandbox_is_told_while_the_image_is_pulled(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.add_to_registry("r.io/big:1", takes=300.0)
        pod = node.run(a_pod("web", containers=[a_container("big", "r.io/big:1")]))
        await node.clock.sleep(2)
        assert condition(node, pod, "PodReadyToStartContainers") == "True"
        assert node.status(pod).pod_ip
        assert node.status(pod).phase == "Pending"


async def test_a_pod_that_starts_quickly_is_told_once(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        told = []
        node.node.ctx.signals.subscribe(PodStatusChanged, lambda changed: told.append(changed.uid))
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        await node.clock.sleep(5)
        assert told.count(uid_of(pod)) == 2, "that it was taken, and that it runs"


async def test_a_pod_without_a_sandbox_does_not_begin_its_pull_again_and_again(tmp_path: Path) -> None:
    """Each begun pull costs a share of the registry's rate, an event, and what was loaded."""
    async with a_node(tmp_path) as node:
        node.cri.add_to_registry("r.io/big:1", takes=300.0)
        node.cri.slow("run_pod_sandbox", 2)
        failing = node.cri.fail_next("run_pod_sandbox", CriError("no address left"), times=None)
        node.run(a_pod("web", containers=[a_container("big", "r.io/big:1")]))
        await node.clock.sleep(300)
        assert len(node.cri.called("run_pod_sandbox")) > 10
        assert len(node.cri.called("pull_image")) == 1
        failing.remove()
        await node.until(lambda: node.running() == ["web/big"], within=330)
        assert len(node.cri.called("pull_image")) == 2


async def test_a_failed_pull_is_shown_also_when_the_sandbox_took_longer(tmp_path: Path) -> None:
    """The reason of a pull that failed beside the sandbox stays in the status until the back-off replaces it."""
    async with a_node(tmp_path) as node:
        node.cri.slow("run_pod_sandbox", 5)
        pod = node.run(a_pod("web", containers=[a_container("app", "r.io/missing:1")]))
        await node.clock.sleep(4)
        await node.until(lambda: node.waiting_reason(pod) in ("ErrImagePull", "ImagePullBackOff"), within=30)
        await node.clock.sleep(0.5)
        assert node.waiting_reason(pod) == "ErrImagePull"
        await node.clock.sleep(1)
        assert node.waiting_reason(pod) == "ImagePullBackOff"


async def test_a_pod_deleted_during_a_pull_leaves_nothing_behind(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.add_to_registry("r.io/big:1", takes=3000.0)
        node.run(a_pod("web", containers=[a_container("small"), a_container("big", "r.io/big:1")]))
        await node.until_running_only("web/small")
        node.remove("web")
        await node.until(lambda: not node.cri.containers and not node.cri.sandboxes, within=100)


async def test_a_debug_container_waits_for_its_target(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        debug = an_ephemeral_container("debug", target_container_name="app")
        containers = [a_container("other"), a_container("app", "r.io/late:1")]
        node.run(a_pod("web", containers=containers, ephemeral=[debug]))
        await node.until_running_only("web/other")
        await node.until(lambda: "Error: unable to find target container app" in node.events("Failed"))
        assert "web/debug" not in node.running()
        node.cri.add_to_registry("r.io/late:1")
        await node.until_running_only("web/other", "web/app", "web/debug")
        assert target_of_debug(node) == next(c.id for c in node.cri.containers.values() if c.name == "app")


async def test_a_debug_container_of_a_crashing_one_names_it(tmp_path: Path) -> None:
    """The runtime says what it makes of a target that is not running; a namespace of its own would help nobody."""
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=0.0, exit_code=1), name="app")
        node.run(a_pod("web", ephemeral=[an_ephemeral_container("debug", target_container_name="app")]))
        await node.until(lambda: any(c.name == "debug" for c in node.cri.containers.values()), within=100)
        assert target_of_debug(node) in [call.id for call in node.cri.called("start_container")]


def target_of_debug(node: NodeHarness) -> str:
    debug = next(c for c in node.cri.containers.values() if c.name == "debug")
    return debug.config.linux.security_context.namespace_options.target_id


async def test_a_log_that_cannot_be_linked_keeps_no_hook_from_running(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        shutil.rmtree(node.paths.container_logs)
        node.cri.write_logs = True
        hook = Lifecycle(post_start=LifecycleHandler(exec=ExecAction(command=["warm-up"])))
        pod = node.run(a_pod("web", containers=[a_container("app", lifecycle=hook), a_container("two")]))
        await node.until_running(pod)
        assert node.running() == ["web/app", "web/two"]
        assert [call.args["command"] for call in node.cri.called("exec_sync")] == [("warm-up",)]


async def test_trouble_with_one_log_folder_is_that_containers_alone(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = a_pod("web", containers=[a_container("app"), a_container("two")])
        pod = node.run(pod)
        place = node.folders.make_logs(pod) / "app"
        place.write_text("in the way")
        await node.until_running_only("web/two")
        await node.until(lambda: node.waiting_reason(pod) == "CreateContainerConfigError")
        place.unlink()
        await node.until_running_only("web/app", "web/two")


@pytest.mark.parametrize(("domains", "told"), [(40, True), (2, False)])
async def test_a_resolver_file_with_too_much_in_it_is_told_at_the_start(
    tmp_path: Path, domains: int, told: bool
) -> None:
    place = tmp_path / "resolv.conf"
    place.write_text("search " + " ".join(f"d{number}.example" for number in range(domains)) + "\n")
    async with a_node(tmp_path, f"--resolv-conf={place}") as node:
        await node.clock.sleep(1)
        texts = node.events("CheckLimitsForResolvConf")
        assert [str(place) in text for text in texts] == ([True] if told else [])


async def test_the_condition_of_the_sandbox_is_a_matter_of_its_gate(tmp_path: Path) -> None:
    async with a_node(tmp_path, "--feature-gates=PodReadyToStartContainersCondition=false") as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        assert "PodReadyToStartContainers" not in [each.type for each in node.status(pod).conditions]
