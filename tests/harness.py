"""A whole node on fakes: the real wiring of `app.assemble`, an in-memory runtime and time that jumps.

`NodeHarness` starts and stops the agent like a process would (`start`, `kill`), while the fake runtime and the
folders stay, so that a restart finds what a real one would find. Manifests are delivered as the file source
would deliver them, without touching inotify.
"""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from pykubelet.api.defaults import default_pod
from pykubelet.api.manifest import static_pod_defaults
from pykubelet.api.types import Pod, PodStatus
from pykubelet.clients.cri.port import EventSource
from pykubelet.clients.dbus.port import Logind
from pykubelet.clients.host.folders import DiskFolders
from pykubelet.clients.host.port import Machine, NodePaths, Slices
from pykubelet.clients.http.port import ConnectProblem, Fetched, HealthProblem
from pykubelet.edges import ClusterEdges, Edges, GuardEdges, PluginEdges
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import Service
from pykubelet.kubelet import Kubelet, assemble
from pykubelet.model.http import HttpAnswer, HttpRequest
from pykubelet.model.pod import Source, name_of, uid_of
from pykubelet.model.runtime_status import ContainerState, SandboxState
from pykubelet.pods.record import PodWorker
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.node_flags import IPAddress
from tests.fakes.fake_cgroups import FakeCgroups
from tests.fakes.fake_cri import FakeCri
from tests.fakes.fake_kube import FakeKube
from tests.fakes.fake_mounts import FakeMounts
from tests.invariants import check_records
from tests.spin_guard import note

IMAGE = "busybox:1"
MACHINE = Machine(
    hostname="node1",
    cpus=4,
    memory_bytes=8 << 30,
    swap_bytes=0,
    kernel="6.1.0",
    os_image="Test OS",
    machine_id="m",
    system_uuid="s",
    boot_id="b",
    architecture="amd64",
)


class DeafNetwork:
    """Nothing in any pod listens."""

    async def get(self, request: HttpRequest, *, timeout: float | None, max_body: int) -> HttpAnswer:
        note(f"probe of {request}")
        raise ConnectProblem("connection refused")

    async def connect(self, host: str, port: int, *, timeout: float) -> None:
        note(f"probe of {host}:{port}")
        raise ConnectProblem("connection refused")

    async def grpc_health(self, host: str, port: int, service: str, *, timeout: int) -> None:
        note(f"probe of {host}:{port}/{service}")
        raise HealthProblem("connection refused")


class HostAddresses:
    """A machine with one address."""

    def addresses(self) -> frozenset[IPAddress]:
        return frozenset(self.route_addresses())

    def route_addresses(self) -> Sequence[IPAddress]:
        return [ipaddress.ip_address("10.1.0.5")]

    async def resolve(self, name: str) -> Sequence[IPAddress]:
        return ()


async def no_fetch(url: str, headers: object, *, timeout: float, max_bytes: int) -> Fetched:
    raise AssertionError("no URL source in these tests")


def guard_against_spinning(node: Kubelet) -> None:
    """Every pass of a pod's worker and every step of its life is counted; calls outwards are counted by the fakes."""
    run_once = node.sync.workers._run_once

    async def counted(worker: PodWorker) -> float | None:
        note(f"a pass of the worker of {worker.full_name} ({worker.state.value})")
        return await run_once(worker)

    node.sync.workers._run_once = counted  # type: ignore[method-assign]
    node.ctx.recorder.listen(lambda uid, entry: note(f"step {entry.step.value} {entry.subject} of pod {uid}"))


class NodeHarness:
    def __init__(self, folder: Path, *flags: str, cluster: bool = False) -> None:
        self.clock = LoopClock()
        self.cri = FakeCri(self.clock, images=[IMAGE])
        self.cgroups = FakeCgroups()
        self.mounts = FakeMounts()
        self.machine = MACHINE
        self.logind: Logind | None = None
        self.slices: Slices | None = None
        self.paths = NodePaths(
            root=folder / "kubelet", pod_logs=folder / "log" / "pods", container_logs=folder / "log" / "containers"
        )
        self.folders = DiskFolders(self.paths)
        self.folders.make_roots()
        manifests = folder / "manifests"
        manifests.mkdir()
        loaded = load_settings([f"--pod-manifest-path={manifests}", "--hostname-override=node1", *flags], environ={})
        assert isinstance(loaded, LoadedSettings)
        self.settings = loaded.settings
        self.wanted: dict[str, Pod] = {}
        self.kube: FakeKube | None = FakeKube(self.clock) if cluster else None
        self.guard: GuardEdges | None = None
        """Set before the start, the node watches itself."""
        self.plugins: PluginEdges | None = None
        """Set before the start, plugins can be registered with the managers; nobody looks for sockets."""
        self.beside: list[Service] = []
        """Set before the start, services that run and stop with the agent's servers."""
        self._node: Kubelet | None = None
        self._stack = AsyncExitStack()

    # --- the agent as a process -----------------------------------------------------------------

    @property
    def node(self) -> Kubelet:
        assert self._node is not None, "the agent is not running"
        return self._node

    async def start(self) -> None:
        edges = Edges(
            clock=self.clock,
            cri=self.cri,
            runtime_name="fake",
            folders=self.folders,
            paths=self.paths,
            cgroups=self.cgroups,
            mounts=self.mounts,
            machine=self.machine,
            logind=self.logind,
            slices=self.slices,
            network=DeafNetwork(),
            fetch=no_fetch,
            event_source=EventSource(name="fake", open=self.cri.container_events),
            cluster=self._cluster_edges(),
            guard=self.guard,
            plugins=self.plugins,
        )
        self._node = assemble(self.settings, edges)
        guard_against_spinning(self._node)
        # The file source is replaced by `deliver`: inotify has no place in jumping time.
        producers = self._node.services.producers
        kept = ("pod-workers", "housekeeping", "sync-loop", "source-api")
        producers[:] = [each for each in producers if each.name in kept] + self.beside
        await self._stack.enter_async_context(self._node.running())
        self.deliver()

    def _cluster_edges(self) -> ClusterEdges | None:
        if self.kube is None:
            return None
        return ClusterEdges(
            client=self.kube,
            heartbeat=self.kube,
            events=self.kube,
            network=HostAddresses(),
            storage_size=lambda: 100 << 30,
            runtime_version="fake://1.0",
        )

    async def kill(self) -> None:
        """The agent ends without saying goodbye to anything; the runtime goes on."""
        await self._stack.aclose()
        self._stack = AsyncExitStack()
        self._node = None

    # --- manifests ------------------------------------------------------------------------------

    def run(self, pod: Pod) -> Pod:
        """Write the pod's manifest."""
        default_pod(pod)
        name = name_of(pod)
        static = static_pod_defaults(pod, node_name="node1", source="file", origin=f"/manifests/{name}.yaml")
        self.wanted[name] = static
        self.deliver()
        return static

    def remove(self, *names: str) -> None:
        for name in names:
            del self.wanted[name]
        self.deliver()

    def deliver(self) -> None:
        if self._node is not None:
            self.node.sources.mux.deliver(Source.FILE, list(self.wanted.values()))

    # --- looking --------------------------------------------------------------------------------

    def status(self, pod: Pod) -> PodStatus:
        found = self.node.table.reported_status(uid_of(pod))
        assert found is not None, f"nothing is known about {name_of(pod)}"
        return found

    def waiting_reason(self, pod: Pod, container: str = "app") -> str:
        for each in self.status(pod).container_statuses:
            if each.name == container and each.state is not None and each.state.waiting is not None:
                return each.state.waiting.reason or ""
        return ""

    def running(self) -> list[str]:
        """`pod/container` of everything that runs, sorted."""
        return sorted(
            f"{c.sandbox.name.removesuffix('-node1')}/{c.name}"
            for c in self.cri.containers.values()
            if c.state is ContainerState.RUNNING
        )

    def ready_sandboxes(self) -> list[str]:
        boxes = self.cri.sandboxes.values()
        return sorted(b.name.removesuffix("-node1") for b in boxes if b.state is SandboxState.READY)

    def events(self, reason: str) -> list[str]:
        return [event.message for event in self.node.events.all() if event.reason == reason]

    async def until(self, question: Callable[[], bool], within: float = 600.0) -> None:
        """Let time pass, a little at a time, until the answer is yes."""
        begun = self.clock.monotonic()
        while not question():
            if self.clock.monotonic() - begun > within:
                raise AssertionError(f"not within {within:g}s; running: {self.running()}, {self.explain()}")
            await self.clock.sleep(0.05)
        self.check_records()

    def check_records(self) -> None:
        if self._node is not None:
            check_records(self._node.table)

    async def until_running(self, *pods: Pod) -> None:
        def all_running() -> bool:
            told = [self.node.table.reported_status(uid_of(pod)) for pod in pods]
            return all(status is not None and status.phase == "Running" for status in told)

        await self.until(all_running)

    async def until_running_only(self, *expected: str) -> None:
        await self.until(lambda: self.running() == sorted(expected))

    def explain(self) -> object:
        if self._node is None:
            return "no agent"
        return [
            (worker.full_name, worker.state.value, worker.failures, worker.last_error, list(worker.history))
            for worker in self.node.table.workers()
        ]


@asynccontextmanager
async def a_node(folder: Path, *flags: str, cluster: bool = False) -> AsyncIterator[NodeHarness]:
    harness = NodeHarness(folder, *flags, cluster=cluster)
    await harness.start()
    try:
        yield harness
        harness.check_records()
    finally:
        await harness.kill()
