"""Pods on a node: start, crash, back-off, end; init containers and sidecars; one stuck pod hurts nobody."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pykubelet.api.types import ExecAction, Lifecycle, LifecycleHandler, SleepAction
from pykubelet.hollow.cri_values import Behaviour, Exec
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ExecResult
from pykubelet.runtime.gc import PERIOD
from tests.builders import a_container, a_pod, a_sidecar
from tests.harness import NodeHarness, a_node


async def test_a_pod_runs_and_is_removed_without_a_trace(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        assert node.running() == ["web/app"]
        assert node.status(pod).pod_ip
        assert node.status(pod).container_statuses[0].ready
        assert [c.type for c in node.status(pod).conditions if c.status == "True"]
        node.remove("web")
        await node.until(lambda: not node.cri.sandboxes and not node.cri.containers)
        await node.until(lambda: not node.folders.pod_uids())
        await node.until(lambda: not list(node.node.table))
        assert [path for path in node.cgroups.groups if "pod" in path.rpartition("/")[2].removeprefix("kubepods")] == []
        assert list(node.paths.pod_logs.iterdir()) == []
        assert list(node.paths.container_logs.iterdir()) == []


async def test_the_shortest_way_to_a_running_process_needs_few_calls(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        # The relist runs beside it and is not on this way.
        verbs = [call.verb for call in node.cri.calls if not call.verb.startswith("list_")]
        for verb in ("run_pod_sandbox", "create_container", "start_container"):
            assert verbs.count(verb) == 1
        before = verbs.index("start_container")
        first = verbs.index("run_pod_sandbox")
        assert before - first <= 6, verbs[first : before + 1]


async def test_crash_loop_restarts_at_once_then_10_20_40_seconds(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=1, exit_code=3), name="app")
        pod = node.run(a_pod("web"))
        await node.until(lambda: len(node.cri.called("start_container")) == 5)
        starts = [call.at for call in node.cri.called("start_container")]
        gaps = [round(b - a) for a, b in itertools.pairwise(starts)]
        assert gaps == [1, 11, 21, 41]
        await node.until(lambda: node.waiting_reason(pod) == "CrashLoopBackOff")
        status = node.status(pod).container_statuses[0]
        assert status.restart_count == 4
        assert status.last_state is not None and status.last_state.terminated is not None
        assert status.last_state.terminated.exit_code == 3
        assert node.status(pod).phase == "Running"


async def test_a_short_longest_restart_period_counts_from_the_first_wait_on(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
        "crashLoopBackOff: {maxContainerRestartPeriod: 2s}\n"
    )
    async with a_node(tmp_path, f"--config={tmp_path / 'config.yaml'}") as node:
        node.cri.program(Behaviour(exits_after=1, exit_code=3), name="app")
        node.run(a_pod("web"))
        await node.until(lambda: len(node.cri.called("start_container")) == 5)
        starts = [call.at for call in node.cri.called("start_container")]
        assert [round(b - a) for a, b in itertools.pairwise(starts)] == [1, 3, 3, 3]


async def test_as_many_dead_containers_are_kept_as_the_flags_say(tmp_path: Path) -> None:
    async with a_node(tmp_path, "--maximum-dead-containers-per-container=3") as node:
        node.cri.program(Behaviour(exits_after=1, exit_code=3), name="app")
        node.run(a_pod("web"))
        await node.until(lambda: len(node.cri.called("start_container")) == 7, within=2000)
        await node.clock.sleep(100)
        assert len(node.cri.containers) == 3


async def test_a_dead_container_is_kept_for_its_least_age(tmp_path: Path) -> None:
    flags = ("--maximum-dead-containers-per-container=0", "--minimum-container-ttl-duration=10m")
    async with a_node(tmp_path, *flags) as node:
        node.cri.program(Behaviour(exits_after=2), name="app")
        node.run(a_pod("job", restart_policy="OnFailure"))
        await node.until(lambda: len(node.cri.containers) == 1)
        await node.clock.sleep(570)
        assert len(node.cri.containers) == 1
        await node.until(lambda: not node.cri.containers, within=120)


async def test_a_job_like_pod_succeeds_and_stays_ended(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=2), name="app")
        pod = node.run(a_pod("job", restart_policy="OnFailure"))
        await node.until(lambda: node.node.table.reported_status(pod.metadata.uid or "") is not None)
        await node.until(lambda: node.status(pod).phase == "Succeeded")
        await node.clock.sleep(600)
        assert len(node.cri.called("start_container")) == 1
        assert node.ready_sandboxes() == []


async def test_restart_policy_never_fails_on_a_bad_exit(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=2, exit_code=7), name="app")
        pod = node.run(a_pod("once", restart_policy="Never"))
        await node.until(lambda: len(node.cri.called("start_container")) == 1)
        await node.until(lambda: node.status(pod).phase == "Failed")
        await node.clock.sleep(600)
        assert len(node.cri.called("start_container")) == 1


async def test_init_containers_run_in_order_then_the_sidecar_then_the_rest(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=5), name="first")
        node.cri.program(Behaviour(exits_after=5), name="second")
        pod = a_pod(
            "web",
            init=[a_container("first"), a_sidecar("proxy"), a_container("second")],
            containers=[a_container("app"), a_container("extra")],
        )
        pod = node.run(pod)
        await node.until_running(pod)
        order = [call.name for call in node.cri.called("start_container")]
        assert order == ["first", "proxy", "second", "app", "extra"]
        assert node.running() == ["web/app", "web/extra", "web/proxy"]


async def test_what_comes_after_a_sidecar_starts_at_once(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.run(a_pod("web", init=[a_sidecar("one"), a_sidecar("two")], containers=[a_container("app")]))
        await node.until(lambda: len(node.cri.called("start_container")) == 3)
        first, *_, last = node.cri.called("start_container")
        assert last.at - first.at < 0.5


async def test_a_failing_init_container_is_retried_and_holds_the_pod_back(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=1, exit_code=1), name="setup")
        pod = node.run(a_pod("web", init=[a_container("setup")]))
        await node.until(lambda: len(node.cri.called("start_container")) == 3)
        assert {call.name for call in node.cri.called("start_container")} == {"setup"}
        assert node.status(pod).phase == "Pending"


async def test_sidecars_stop_last_and_in_reverse_order(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=3))
        pod = a_pod("web", init=[a_sidecar("one"), a_sidecar("two")], containers=[a_container("app")])
        pod = node.run(pod)
        await node.until_running(pod)
        await node.until(lambda: len(node.running()) == 3)
        node.remove("web")
        await node.until(lambda: len(node.cri.called("stop_container")) == 3)
        stops = [
            (call.name, round(call.at - node.cri.called("stop_container")[0].at))
            for call in node.cri.called("stop_container")
        ]
        assert stops == [("app", 0), ("two", 3), ("one", 6)]


async def test_grace_is_shared_by_hook_and_signal(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        hook = Lifecycle(pre_stop=LifecycleHandler(sleep=SleepAction(seconds=4)))
        pod = node.run(a_pod("web", containers=[a_container("app", lifecycle=hook)], grace=10))
        await node.until_running(pod)
        node.remove("web")
        await node.until(lambda: bool(node.cri.called("stop_container")))
        (call,) = node.cri.called("stop_container")
        assert call.args["timeout"] == 6


async def test_a_prestop_hook_that_never_returns_uses_up_the_grace_and_no_more(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(Exec(takes=10_000), name="app")
        hook = Lifecycle(pre_stop=LifecycleHandler(exec=ExecAction(command=["hang"])))
        pod = node.run(a_pod("web", containers=[a_container("app", lifecycle=hook)], grace=10))
        await node.until_running(pod)
        begun = node.clock.monotonic()
        node.remove("web")
        await node.until(lambda: node.running() == [])
        assert 10 <= node.clock.monotonic() - begun <= 14
        assert node.events("FailedPreStopHook") == ["PreStopHook failed"]


async def test_a_failing_poststart_hook_kills_the_container_and_says_why(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.on_exec(Exec(result=ExecResult(exit_code=5, stderr=b"no db")), name="app")
        hook = Lifecycle(post_start=LifecycleHandler(exec=ExecAction(command=["prepare"])))
        pod = node.run(a_pod("web", containers=[a_container("app", lifecycle=hook)]))
        await node.until(lambda: bool(node.events("FailedPostStartHook")))
        await node.until(lambda: node.waiting_reason(pod) in ("PostStartHookError", "CrashLoopBackOff"))


async def test_one_stuck_pod_hurts_nobody(tmp_path: Path) -> None:
    """A runtime call that hangs for one pod: the others start, restart and stop as if it was not there."""
    for verb in ("run_pod_sandbox", "create_container", "start_container", "pod_sandbox_status", "container_status"):
        folder = tmp_path / verb
        folder.mkdir()
        async with a_node(folder) as node:
            node.cri.hang(verb, name="stuck-node1" if "sandbox" in verb else "bad")
            node.run(a_pod("stuck", containers=[a_container("bad")]))
            await node.clock.sleep(1)
            begun = node.clock.monotonic()
            good = [node.run(a_pod(f"good{number}")) for number in range(10)]
            await node.until_running(*good)
            assert node.clock.monotonic() - begun < 1, verb
            node.cri.exit("app", 1, pod="good3-node1")
            await node.until(lambda: len(node.cri.called("start_container", "app")) == 11)
            node.remove("good5")
            await node.until(lambda: "good5/app" not in node.running())
            assert node.clock.monotonic() - begun < 5, verb
            assert node.node.runtime_state.runtime_problem() == ""
            assert node.node.pleg.healthy()[0]


async def test_a_stuck_pod_can_still_be_removed(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.hang("run_pod_sandbox", name="stuck-node1", times=1)
        node.run(a_pod("stuck"))
        await node.clock.sleep(1)
        begun = node.clock.monotonic()
        node.remove("stuck")
        await node.until(lambda: node.node.table.workers() == [])
        assert node.clock.monotonic() - begun < 2


async def test_sandbox_failures_are_told_and_retried(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.fail_next("run_pod_sandbox", CriError("no network for you"), times=2)
        pod = node.run(a_pod("web"))
        await node.until(lambda: bool(node.events("FailedCreatePodSandBox")))
        assert node.waiting_reason(pod) == "ContainerCreating"
        await node.until_running(pod)
        assert "no network for you" in node.events("FailedCreatePodSandBox")[0]


async def test_a_lost_sandbox_is_replaced_with_the_next_attempt(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        (box,) = node.cri.sandboxes.values()
        await node.cri.stop_pod_sandbox(box.id)
        await node.until(lambda: len(node.cri.called("run_pod_sandbox")) == 2)
        await node.until_running_only("web/app")
        newest = max(node.cri.sandboxes.values(), key=lambda each: each.config.metadata.attempt)
        assert newest.config.metadata.attempt == 1
        assert node.events("SandboxChanged")


async def test_a_lost_sandbox_without_containers_goes_before_the_next_pass_of_garbage_collection(
    tmp_path: Path,
) -> None:
    async with a_node(tmp_path) as node:
        await node.clock.sleep(5)  # the first pass is over
        refused = node.cri.fail_next("create_container", CriError("not now"), times=None)
        node.run(a_pod("web"))
        await node.until(lambda: refused.hits > 0)
        (lost,) = node.cri.sandboxes
        node.cri.kill_sandbox("web-node1")
        refused.remove()
        await node.until(lambda: node.running() == ["web/app"])
        await node.until(lambda: lost not in node.cri.sandboxes)
        assert node.ready_sandboxes() == ["web"] and node.clock.monotonic() < PERIOD / 2


async def test_the_active_deadline_ends_the_pod_on_time(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web", active_deadline_seconds=30))
        await node.until_running(pod)
        begun = node.clock.monotonic()
        await node.until(lambda: node.running() == [])
        assert 25 <= node.clock.monotonic() - begun <= 35
        assert (node.status(pod).phase, node.status(pod).reason) == ("Failed", "DeadlineExceeded")


async def test_network_not_ready_holds_pods_back_but_not_host_network_ones(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.set_condition("NetworkReady", False, reason="NetworkPluginNotReady", message="no conflist")
        await node.clock.sleep(6)
        held = node.run(a_pod("web"))
        free = node.run(a_pod("host", host_network=True))
        await node.until_running(free)
        await node.clock.sleep(5)
        assert node.running() == ["host/app"]
        assert node.events("NetworkNotReady")
        node.cri.set_condition("NetworkReady", True)
        await node.until_running(held)


async def test_a_changed_image_replaces_the_pod(tmp_path: Path) -> None:
    """A changed static manifest is another pod (its UID hashes the content): the old ends before the new begins."""
    async with a_node(tmp_path) as node:
        node.cri.add_image("busybox:2")
        old, new = a_pod("web"), a_pod("web", containers=[a_container("app", image="busybox:2")])
        old.metadata.uid = new.metadata.uid = None
        first = node.run(old)
        await node.until_running(first)
        second = node.run(new)
        assert first.metadata.uid != second.metadata.uid
        await node.until_running(second)
        assert node.running() == ["web/app"]
        assert [s for s in node.ready_sandboxes()] == ["web"]


# --- passes that change nothing -----------------------------------------------------------------


async def test_a_pod_that_can_neither_end_nor_start_is_looked_at_as_rarely_as_any(tmp_path: Path) -> None:
    """Its sandbox is lost, one container may not run again, the other never ran: nothing to do, and no end either."""
    async with a_node(tmp_path) as node:
        node.cri.slow("stop_pod_sandbox", 1)
        pod = node.run(
            a_pod("web", containers=[a_container("app"), a_container("bad", "nowhere:1")], restart_policy="Never")
        )
        await node.until(lambda: node.running() == ["web/app"])
        node.cri.kill_sandbox("web-node1")
        node.cri.exit("app", 1)
        await node.clock.sleep(600)
        assert node.status(pod).phase == "Pending"
        assert len(node.cri.called("stop_pod_sandbox")) <= 20


async def test_an_init_container_that_ended_well_and_was_short_of_memory_keeps_nobody_busy(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.slow("stop_pod_sandbox", 1)
        node.run(a_pod("web", init=[a_container("setup")], restart_policy="Never"))
        await node.until(lambda: node.running() == ["web/setup"])
        node.cri.exit("setup", 0, reason="OOMKilled")
        await node.clock.sleep(600)
        assert len(node.cri.called("stop_pod_sandbox")) <= 20


@asynccontextmanager
async def a_node_without_events(folder: Path) -> AsyncIterator[NodeHarness]:
    """Its runtime tells nothing by itself: ends are seen by looking, and mostly by the look after a pass."""
    harness = NodeHarness(folder)
    harness.cri.events_supported = False
    await harness.start()
    try:
        yield harness
    finally:
        await harness.kill()


async def test_a_container_that_dies_at_once_does_not_wait_for_its_siblings_trouble(tmp_path: Path) -> None:
    async with a_node_without_events(tmp_path) as node:
        node.cri.program(Behaviour(exits_after=0, exit_code=1), name="app")
        node.cri.program(Behaviour(start_takes=0.2, start_error=CriError("no such file")), name="bad")
        pod = node.run(a_pod("web", containers=[a_container("app"), a_container("bad")]))
        await node.until(lambda: len(node.cri.called("start_container", "app")) == 5)
        starts = [call.at for call in node.cri.called("start_container", "app")]
        assert [round(b - a) for a, b in itertools.pairwise(starts)] == [0, 10, 20, 40]
        await node.until(lambda: node.waiting_reason(pod) == "CrashLoopBackOff", within=1)


async def test_the_end_of_a_container_is_seen_beside_one_that_waits_for_its_image(tmp_path: Path) -> None:
    async with a_node_without_events(tmp_path) as node:
        pod = node.run(a_pod("web", containers=[a_container("app"), a_container("bad", "nowhere:1")]))
        await node.until(lambda: node.running() == ["web/app"])
        await node.until(lambda: node.waiting_reason(pod, "bad") == "ImagePullBackOff")
        await node.clock.sleep(100)
        node.cri.program(Behaviour(exits_after=0, exit_code=1), name="app")
        node.cri.exit("app", 1)
        seen = len(node.cri.called("start_container", "app"))
        await node.until(lambda: len(node.cri.called("start_container", "app")) == seen + 4, within=75)


async def test_a_static_pod_removed_and_written_again_at_once_is_ended_and_started_again(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        node.cri.program(Behaviour(stops_after=3), name="app")
        pod = node.run(a_pod("web"))
        await node.until_running(pod)
        first = node.cri.container("app").id
        node.remove("web")
        assert node.run(a_pod("web")).metadata.uid == pod.metadata.uid
        await node.until(lambda: node.running() == [])
        await node.until(lambda: node.running() == ["web/app"])
        await node.until(lambda: node.status(pod).container_statuses[0].restart_count == 1)
        await node.clock.sleep(120)
        assert node.cri.container("app").id != first
        assert len(node.cri.called("start_container")) == 2
        status = node.status(pod).container_statuses[0]
        assert (status.restart_count, status.ready) == (1, True)
        assert status.last_state is not None and status.last_state.terminated is not None


async def test_last_words_are_the_end_of_the_file_wherever_it_is_named(tmp_path: Path) -> None:
    async with a_node(tmp_path) as node:
        pod = node.run(a_pod("web", containers=[a_container(termination_message_path="last/words")]))
        await node.until_running(pod)
        container = next(iter(node.cri.containers.values()))
        place = next(mount.host_path for mount in container.config.mounts if mount.container_path == "/last/words")
        Path(place).write_text("begin" + "." * 5000 + "the error")
        node.cri.exit(container.id, 1)
        await node.until(lambda: node.status(pod).container_statuses[0].restart_count == 1)
        ended = node.status(pod).container_statuses[0].last_state
        assert ended is not None and ended.terminated is not None
        assert (ended.terminated.message or "").endswith(".the error")
        assert len(ended.terminated.message or "") == 4096
