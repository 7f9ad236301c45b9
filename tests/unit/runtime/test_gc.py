"""Garbage collection: removing what was chosen harms nothing that is wanted."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.api.types import ObjectMeta, Pod
from pykubelet.clients.host.folders import DiskFolders
from pykubelet.clients.host.port import NodePaths
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CriError, PykubeletError
from pykubelet.model.pod import PodUID
from pykubelet.model.runtime_status import SandboxState
from pykubelet.pleg.inspect import inspect_pod
from pykubelet.pods.record import PodWorker, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.runtime.gc import (
    COLLECT_PAUSE,
    COLLECT_QUIET,
    COLLECT_WITHIN,
    PERIOD,
    ContainerGc,
    ContainerRemover,
    GcPolicy,
)
from pykubelet.wire import cri_pb2
from tests.builders import a_context
from tests.fakes.fake_cri import FakeCri
from tests.fakes.recorded_events import RecordedEvents

IMAGE = "busybox:1"
SOON = COLLECT_QUIET + COLLECT_PAUSE + 0.1


class Table(PodTable):
    """Says what the tests want to hear about pods."""

    def __init__(self) -> None:
        super().__init__()
        self.gone: set[str] = set()
        self.ended: set[str] = set()
        self.asked: Counter[str] = Counter()

    def should_remove_content(self, uid: str) -> bool:
        self.asked[uid] += 1
        return uid in self.gone

    def should_remove_runtime(self, uid: str) -> bool:
        return uid in self.ended or uid in self.gone


class Node:
    """A fake runtime with pods and real log files under a temporary root."""

    def __init__(self, root: Path) -> None:
        self.clock = LoopClock()
        self.cri = FakeCri(self.clock, images=[IMAGE])
        self.events, self.table, self.ready = RecordedEvents(), Table(), True
        self.paths = NodePaths(root=root / "lib", pod_logs=root / "pods", container_logs=root / "containers")
        self.folders = DiskFolders(self.paths)
        self.folders.make_roots()
        self.remover = ContainerRemover(cri=self.cri, folders=self.folders, pod_logs=self.paths.pod_logs)
        self.gc = ContainerGc(
            a_context(clock=self.clock, events=self.events),
            self.cri,
            table=self.table,
            remover=self.remover,
            container_logs=self.paths.container_logs,
            policy=GcPolicy(),
            sources_ready=lambda: self.ready,
        )

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        async with running(self.gc):
            await self.clock.sleep(1)
            self.cri.calls.clear()
            yield

    def pod(self, name: str) -> Pod:
        return Pod(metadata=ObjectMeta(name=name, namespace="ns", uid=f"uid-{name}"))

    def labels(self, pod: str, container: str = "") -> dict[str, str]:
        found = {
            "io.kubernetes.pod.name": pod,
            "io.kubernetes.pod.namespace": "ns",
            "io.kubernetes.pod.uid": f"uid-{pod}",
        }
        return {**found, "io.kubernetes.container.name": container} if container else found

    async def sandbox(self, pod: str, attempt: int = 0) -> str:
        config = cri_pb2.PodSandboxConfig()
        config.metadata.name, config.metadata.namespace = pod, "ns"
        config.metadata.uid, config.metadata.attempt = f"uid-{pod}", attempt
        config.labels.update(self.labels(pod))
        await self.clock.sleep(0.001)
        return await self.cri.run_pod_sandbox(config)

    async def container(self, pod: str, name: str = "app", attempt: int = 0, *, ends: bool = True) -> str:
        """A container with its log file and link, that has ended unless told otherwise."""
        config = cri_pb2.ContainerConfig()
        config.metadata.name, config.metadata.attempt, config.image.image = name, attempt, IMAGE
        config.labels.update(self.labels(pod, name))
        config.annotations["io.kubernetes.container.restartCount"] = str(attempt)
        await self.clock.sleep(0.001)
        sandbox = self.cri.sandbox(pod)
        id = await self.cri.create_container(sandbox.id, config, sandbox.config)
        await self.cri.start_container(id)
        log = self.folders.make_container_logs(self.pod(pod), name) / f"{attempt}.log"
        log.write_text("hello\n")
        self.folders.link_log(self.pod(pod), name, id, log)
        if ends:
            self.cri.exit(id)
        return id

    async def ended_pod(self, pod: str) -> None:
        """One container that has ended, in a sandbox that is stopped."""
        await self.sandbox(pod)
        await self.container(pod)
        await self.cri.stop_pod_sandbox(self.cri.sandbox(pod).id)

    async def look(self, pod: str) -> None:
        now = self.clock.monotonic()
        self.table.observe((await inspect_pod(self.cri, f"uid-{pod}", started=now)).status, {})

    def logs(self) -> list[str]:
        return sorted(str(p.relative_to(self.paths.pod_logs)) for p in self.paths.pod_logs.rglob("*") if p.is_file())

    def links(self) -> int:
        return len(list(self.paths.container_logs.iterdir()))

    def left(self) -> tuple[int, int]:
        return len(self.cri.sandboxes), len(self.cri.containers)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_wanted_pod_keeps_its_newest_dead_container_with_logs(node: Node) -> None:
    await node.sandbox("web")
    for attempt in range(3):
        await node.container("web", attempt=attempt)
    rotated = node.paths.pod_logs / "ns_web_uid-web" / "app" / "0.log.20260101-000000.gz"
    rotated.write_text("old")
    await node.gc.collect()
    assert node.left() == (1, 1)
    assert node.logs() == ["ns_web_uid-web/app/2.log"] and node.links() == 1


async def test_a_gone_pod_loses_everything(node: Node) -> None:
    for name in ("web", "other"):
        await node.ended_pod(name)
    node.table.gone.add("uid-web")
    await node.gc.collect()
    assert node.left() == (1, 1)
    assert node.logs() == ["ns_other_uid-other/app/0.log"] and node.links() == 1
    assert [p.name for p in node.paths.pod_logs.iterdir()] == ["ns_other_uid-other"]


async def test_nothing_is_gone_before_the_sources_are_ready(node: Node) -> None:
    await node.ended_pod("web")
    node.table.gone.add("uid-web")
    node.ready = False
    await node.gc.collect()
    assert node.left() == (1, 1) and node.links() == 1


async def test_a_full_disk_takes_ended_pods_too_but_not_their_log_folder(node: Node) -> None:
    await node.ended_pod("job")
    node.table.ended.add("uid-job")
    await node.gc.collect()
    assert node.left() == (1, 1)
    await node.gc.collect(evict_ended=True)
    assert node.left() == (0, 0)


async def test_leftovers_of_the_life_before_go_as_soon_as_the_sources_are_ready(node: Node) -> None:
    await node.ended_pod("web")
    node.table.gone.add("uid-web")
    node.ready = False
    async with running(node.gc):
        await node.clock.sleep(5)
        assert node.left() == (1, 1)
        node.ready = True
        await node.clock.sleep(1)
        assert node.left() == (0, 0)


async def test_running_containers_and_ready_sandboxes_stay(node: Node) -> None:
    await node.sandbox("web")
    await node.container("web", ends=False)
    node.table.gone.add("uid-web")  # somebody else has to kill it first
    await node.gc.collect()
    assert node.left() == (1, 1)


async def test_a_container_in_an_unknown_state_is_stopped_first(node: Node) -> None:
    await node.sandbox("web")
    await node.container("web", ends=False)
    node.cri.lose("app")
    node.table.gone.add("uid-web")
    await node.gc.collect()
    assert [c.args["timeout"] for c in node.cri.called("stop_container")] == [2]
    assert not node.cri.containers


async def test_one_pods_trouble_is_reported_and_harms_no_other(node: Node) -> None:
    for name in ("bad", "good"):
        await node.ended_pod(name)
        node.table.gone.add(f"uid-{name}")
    node.cri.fail_next("remove_container", CriError("device busy"), "uid-bad", times=None)
    with pytest.raises(PykubeletError, match="device busy"):
        await node.gc.collect()
    assert [s.name for s in node.cri.sandboxes.values()] == ["bad"]


async def test_what_cannot_be_removed_keeps_only_its_own_sandbox(node: Node) -> None:
    stuck = await node.sandbox("web")
    first = await node.container("web", attempt=0)
    await node.cri.stop_pod_sandbox(stuck)
    await node.sandbox("web", attempt=1)
    await node.container("web", attempt=1)
    await node.cri.stop_pod_sandbox(node.cri.sandbox("web").id)
    node.table.gone.add("uid-web")
    node.cri.fail_next("remove_container", CriError("cannot delete running task"), first, times=None)
    with pytest.raises(PykubeletError, match="running task"):
        await node.gc.collect()
    assert list(node.cri.sandboxes) == [stuck]
    assert list(node.cri.containers) == [first]


async def test_a_hanging_removal_does_not_hold_up_the_others(node: Node) -> None:
    for name in ("stuck", "good"):
        await node.ended_pod(name)
        node.table.gone.add(f"uid-{name}")
    node.cri.hang("remove_container", "uid-stuck")
    async with running(node.gc):
        await node.clock.sleep(1)
        assert [s.name for s in node.cri.sandboxes.values()] == ["stuck"]


async def test_a_pod_that_is_wanted_again_keeps_the_rest(node: Node) -> None:
    """A static pod that comes back has the same uid."""
    await node.sandbox("web")
    await node.container("web", "a")
    await node.container("web", "b")
    await node.cri.stop_pod_sandbox(node.cri.sandbox("web").id)
    node.table.gone.add("uid-web")
    node.cri.slow("remove_container", 5.0)
    async with running(node.gc):
        await node.clock.sleep(1)
        node.table.gone.clear()
        await node.clock.sleep(20)
    assert node.left() == (1, 1)
    assert len(list(node.paths.pod_logs.iterdir())) == 1


async def test_interrupted_removal_of_a_log_folder_is_finished_later(node: Node) -> None:
    left = node.paths.pod_logs / ".ns_web_uid-web.1.removing"
    (left / "app").mkdir(parents=True)
    foreign = node.paths.pod_logs / "README"
    foreign.write_text("not a pod")
    await node.gc.collect()
    assert not left.exists() and foreign.exists()


async def test_dead_links(node: Node) -> None:
    await node.sandbox("web")
    living = await node.container("web", "living", ends=False)
    dead = await node.container("web", "dead")
    folder = node.paths.pod_logs / "ns_web_uid-web"
    for name in ("living", "dead"):
        (folder / name / "0.log").unlink()  # between two files of a rotation, or gone for good
    (node.paths.container_logs / "x_ns_y-0123.log").symlink_to(node.paths.pod_logs / "nowhere")
    (node.paths.container_logs / "plain.log").write_text("not a link")
    await node.gc.collect()
    left = sorted(p.name for p in node.paths.container_logs.iterdir())
    assert left == sorted(["plain.log", f"web_ns_living-{living}.log"]), dead


async def test_the_service_runs_each_minute_and_reports_failures(node: Node) -> None:
    async with node.up():
        node.cri.fail_next("list_containers", CriError("store is corrupt"))
        await node.clock.sleep(PERIOD)
        assert node.events.texts == ["Warning ContainerGCFailed store is corrupt"]
        await node.clock.sleep(5 * PERIOD)
        assert len(node.events.all) == 1
        assert len(node.cri.called("list_containers")) == 6


async def test_a_log_folder_of_any_depth_is_removed(node: Node) -> None:
    """A pod with a writable mount of the log folder can nest it deeper than Python recurses."""
    await node.ended_pod("web")
    node.table.gone.add("uid-web")
    place = os.open(node.paths.pod_logs / "ns_web_uid-web", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=place)
        deeper = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = deeper
    os.close(place)
    await node.gc.collect()
    assert list(node.paths.pod_logs.iterdir()) == []


async def test_folders_that_cannot_be_listed_are_reported_and_tried_again(node: Node) -> None:
    await node.ended_pod("web")
    node.table.gone.add("uid-web")
    shutil.rmtree(node.paths.pod_logs)
    node.paths.pod_logs.write_text("no folder")
    async with running(node.gc):
        await node.clock.sleep(1)
        assert node.events.node_reasons == ["ContainerGCFailed"]
        assert node.left() == (0, 0)
        node.gc.collect_pod_soon("uid-web")  # ends in the same trouble
        await node.clock.sleep(SOON)
        node.paths.pod_logs.unlink()
        node.paths.pod_logs.mkdir()
        await node.ended_pod("web")
        node.gc.collect_pod_soon("uid-web")
        await node.clock.sleep(SOON)
        assert node.left() == (0, 0), "pods that end later are still collected soon"


async def test_prune_soon_lets_the_restart_go_first_and_acts_once(node: Node) -> None:
    async with node.up():
        await node.sandbox("web")
        for attempt in range(3):
            await node.container("web", attempt=attempt)
            await node.look("web")
            node.gc.prune_soon("uid-web", "app")
        await node.clock.sleep(0.5)
        assert node.left() == (1, 3)
        await node.clock.sleep(1)
        assert node.left() == (1, 1) and node.logs() == ["ns_web_uid-web/app/2.log"]
        assert len(node.cri.called("remove_container")) == 2


async def test_a_failed_prune_does_not_end_the_service(node: Node) -> None:
    async with node.up():
        await node.sandbox("web")
        for attempt in range(2):
            await node.container("web", attempt=attempt)
        await node.look("web")
        node.cri.fail_next("remove_container", CriError("busy"))
        node.gc.prune_soon("uid-web", "app")
        await node.clock.sleep(2 * PERIOD)
        assert node.left() == (1, 1)


async def test_a_gone_pod_can_be_collected_soon(node: Node) -> None:
    async with node.up():
        await node.sandbox("web")
        await node.container("web")
        await node.cri.stop_pod_sandbox(node.cri.sandbox("web").id)
        node.gc.collect_pod_soon("uid-web")
        await node.clock.sleep(SOON)
        assert node.left() == (1, 1), "it is still wanted"
        node.table.gone.add("uid-web")
        node.gc.collect_pod_soon("uid-web")
        node.gc.collect_pod_soon("uid-web")
        await node.clock.sleep(SOON)
        assert node.left() == (0, 0) and node.logs() == [] and node.links() == 0
        assert len(node.cri.called("remove_pod_sandbox")) == 1


async def test_a_sandbox_that_another_one_replaced_goes_soon(node: Node) -> None:
    async with node.up():
        old, new = await node.sandbox("web"), await node.sandbox("web", attempt=1)
        await node.cri.stop_pod_sandbox(old)
        node.gc.prune_sandboxes_soon("uid-web")
        await node.clock.sleep(SOON)
        assert list(node.cri.sandboxes) == [new]
        await node.cri.stop_pod_sandbox(new)
        node.gc.prune_sandboxes_soon("uid-web")
        await node.clock.sleep(SOON)
        assert list(node.cri.sandboxes) == [new], "the newest stays, for its addresses"


async def test_the_last_sandbox_of_a_gone_pod_that_ends_late_takes_everything_with_it(node: Node) -> None:
    """A killed agent's call may go on in the runtime: the first pass of the next agent still sees the sandbox ready."""
    await node.ended_pod("old")
    (box,) = node.cri.sandboxes.values()
    box.state = SandboxState.READY
    node.table.gone.add("uid-old")
    async with node.up():
        await node.cri.stop_pod_sandbox(box.id)
        node.gc.prune_sandboxes_soon("uid-old")
        await node.clock.sleep(SOON)
        assert node.left() == (0, 0) and node.logs() == []


async def test_an_ended_pod_is_removed_soon_after_the_runtime_is_back(node: Node) -> None:
    async with node.up():
        await node.ended_pod("old")
        node.table.gone.add("uid-old")
        node.cri.fail_next("list_pod_sandboxes", CriError("runtime is away"))
        removal = node.cri.fail_next("remove_container", CriError("runtime is away"))
        node.gc.collect_pod_soon("uid-old")
        await node.clock.sleep(SOON)
        assert node.left() == (1, 1)
        await node.clock.sleep(COLLECT_QUIET + 0.1)
        assert removal.hits == 1 and node.left() == (1, 1)
        await node.clock.sleep(2 * COLLECT_QUIET + 0.1)
        assert node.left() == (0, 0)


async def test_what_cannot_be_removed_is_tried_ever_more_seldom(node: Node) -> None:
    async with node.up():
        await node.ended_pod("old")
        node.table.gone.add("uid-old")
        removal = node.cri.fail_next("remove_container", CriError("busy"), times=None)
        node.gc.collect_pod_soon("uid-old")
        await node.clock.sleep(PERIOD * 20)
        assert 30 <= removal.hits <= 50, "by each pass, and by the removal of ended pods"


async def test_a_pod_that_cannot_be_removed_keeps_none_of_the_others_in_mind(node: Node) -> None:
    async with node.up():
        await node.ended_pod("stuck")
        (stuck,) = node.cri.containers
        node.cri.fail_next("remove_container", CriError("busy"), stuck, times=None)
        node.table.gone.add("uid-stuck")
        node.gc.collect_pod_soon("uid-stuck")
        for number in range(50):
            await node.ended_pod(f"p{number}")
            node.table.gone.add(f"uid-p{number}")
            node.gc.collect_pod_soon(f"uid-p{number}")
            await node.clock.sleep(2 * SOON)
            assert node.left() == (1, 1), "only the stuck one is left"
        tries = len(node.cri.called("remove_container")) - 50
        assert tries < 25, "nor is it tried whenever another one is removed"
        assert node.table.asked["uid-p0"] < 20, "what is removed is forgotten"


async def test_removal_lets_the_pod_that_comes_next_start_first(node: Node) -> None:
    """A replaced pod: the runtime has one network and one store, and a start must not wait for a removal."""
    async with node.up():
        await node.ended_pod("old")
        await node.look("old")
        node.table.gone.add("uid-old")
        node.gc.collect_pod_soon("uid-old")
        node.gc.prune_soon("uid-old", "app")
        await node.clock.sleep(COLLECT_QUIET - 0.5)
        node.gc.runtime_used()  # the new one runs
        await node.clock.sleep(COLLECT_QUIET - 0.1)
        assert node.left() == (1, 1)
        await node.clock.sleep(SOON)
        assert node.left() == (0, 0)


@pytest.mark.parametrize("state", [WorkerState.SYNCING, WorkerState.TERMINATING])
async def test_removal_waits_while_pods_are_started_or_ended_but_not_for_ever(node: Node, state: WorkerState) -> None:
    async with node.up():
        await node.ended_pod("old")
        node.table.gone.add("uid-old")
        async with asyncio.timeout(None) as step:
            node.table.add_worker(PodWorker(PodUID("uid-new"), "new_ns", None, state=state, scope=step))
            node.gc.collect_pod_soon("uid-old")
            await node.clock.sleep(COLLECT_WITHIN - 1)
            assert node.left() == (1, 1)
            await node.clock.sleep(2)
            assert node.left() == (0, 0)


async def test_a_hanging_removal_does_not_hold_up_other_pods_that_ended(node: Node) -> None:
    async with node.up():
        for name in ("stuck", "good", "better"):
            await node.ended_pod(name)
            node.table.gone.add(f"uid-{name}")
            node.gc.collect_pod_soon(f"uid-{name}")
        node.cri.hang("remove_container", "uid-stuck")
        await node.clock.sleep(SOON + 3)
        assert [s.name for s in node.cri.sandboxes.values()] == ["stuck"]


async def test_many_removals_let_starts_go_between_them(node: Node) -> None:
    async with node.up():
        for number in range(4):
            await node.ended_pod(f"old-{number}")
            node.table.gone.add(f"uid-old-{number}")
            node.gc.collect_pod_soon(f"uid-old-{number}")
        node.cri.slow("remove_pod_sandbox", 1.0)
        await node.clock.sleep(SOON)
        assert node.left()[0] == 4 and len(node.cri.called("remove_pod_sandbox")) == 1
        async with asyncio.timeout(None) as step:
            worker = PodWorker(PodUID("uid-new"), "new_ns", None, scope=step)
            node.table.add_worker(worker)
            await node.clock.sleep(5)
            assert node.left()[0] == 3, "the one under way"
            worker.scope = None
        await node.clock.sleep(5)
        assert node.left() == (0, 0)


async def test_remover_keeps_logs_when_asked_and_is_idempotent(node: Node) -> None:
    await node.sandbox("web")
    id = await node.container("web")
    status = await node.cri.container_status(id)
    await node.remover.remove(node.pod("web"), status, keep_logs=True)
    assert node.logs() == ["ns_web_uid-web/app/0.log"] and not node.cri.containers
    await node.remover.remove(node.pod("web"), status)
    assert node.logs() == [] and node.links() == 0
