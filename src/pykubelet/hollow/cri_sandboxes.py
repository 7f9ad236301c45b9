"""Sandboxes of the runtime in memory, with the state all parts share.

Covers: run, stop, remove, status, list of sandboxes, addresses, events to subscribers.
Does not cover: containers and images, which build on this.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import contextmanager

from pykubelet.hollow.cri_faults import FaultGate
from pykubelet.hollow.cri_values import MemoryContainer, MemorySandbox, PodIndex, Subject, made_id
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CriError, CriNotFound, RuntimeDown, Unimplemented
from pykubelet.model.runtime_status import (
    ContainerEvent,
    EventKind,
    NamespaceMode,
    SandboxRecord,
    SandboxState,
    SandboxStatus,
)
from pykubelet.wire import cri_pb2


class MemorySandboxes(FaultGate):
    def __init__(
        self, clock: Clock, *, request_timeout: float, pod_cidrs: Sequence[str], handlers: Sequence[str]
    ) -> None:
        super().__init__(clock, request_timeout)
        self.sandboxes: dict[str, MemorySandbox] = {}
        self.containers: dict[str, MemoryContainer] = {}
        self._boxes_of: PodIndex[MemorySandbox] = PodIndex()
        self._containers_of_pod: PodIndex[MemoryContainer] = PodIndex()
        self.handlers = tuple(handlers)
        self.events_supported = True
        """False: container_events raises Unimplemented, as a runtime without GetContainerEvents does."""
        self.run_takes = 0.0
        """Seconds every RunPodSandbox needs."""
        self._networks = [ipaddress.ip_network(cidr) for cidr in pod_cidrs]
        self._next_address = 1
        self._by_address: dict[str, MemorySandbox] = {}
        self._next_id = 0
        self._subscribers: list[asyncio.Queue[ContainerEvent | CriError]] = []
        self._reserved: dict[str, str] = {}
        """containerd's name index: an attempt's name can be taken once, by sandboxes and containers."""
        self._on_crash.append(self.drop_subscribers)

    # -- what tests look at and do

    def sandbox(self, pod: str) -> MemorySandbox:
        """The newest sandbox of a pod, by name, uid or sandbox id."""
        found = [s for s in self.sandboxes.values() if pod in (s.name, s.pod_uid, s.id)]
        if not found:
            raise LookupError(f"the runtime has no sandbox of {pod!r}")
        return max(found, key=lambda s: (s.created_at, s.config.metadata.attempt))

    def kill_sandbox(self, pod: str) -> None:
        """The pause process dies: the sandbox is not ready any more, its containers live on."""
        self._sandbox_down(self.sandbox(pod))

    # -- the port

    async def run_pod_sandbox(self, config: cri_pb2.PodSandboxConfig, runtime_handler: str = "") -> str:
        name, uid = config.metadata.name, config.metadata.uid
        deadline = 2 * self.request_timeout
        args = {"config": config, "runtime_handler": runtime_handler}
        await self._enter("run_pod_sandbox", Subject(name=name, pod_uid=uid), args=args, deadline=deadline)
        if not config.HasField("metadata"):
            raise CriError("sandbox config must include metadata")
        own = cri_pb2.PodSandboxConfig.FromString(config.SerializeToString())
        box = MemorySandbox(id=self._new_id("sandbox"), config=own, created_at=0, runtime_handler=runtime_handler)
        self._reserve("sandbox", box.key, box.id)
        try:
            if runtime_handler not in self.handlers:
                raise CriError(f'failed to get sandbox runtime: no runtime for "{runtime_handler}" is configured')
            await self._set_up(box, deadline)
            if not box.host_network:
                box.ips = self._addresses(box)
        except BaseException:
            # containerd undoes a sandbox whose caller gave up, so a cancelled run leaves nothing.
            self._reserved.pop(box.key)
            raise
        box.created_at = self.clock.now_ns()
        self.sandboxes[box.id] = box
        self._boxes_of.add(box.config.labels, box.id, box)
        self._tell(box.id, EventKind.CREATED, box)
        self._tell(box.id, EventKind.STARTED, box)
        return box.id

    async def stop_pod_sandbox(self, sandbox_id: str) -> None:
        box = self.sandboxes.get(sandbox_id)
        await self._enter("stop_pod_sandbox", _about(sandbox_id, box))
        box = self.sandboxes.get(sandbox_id)
        if box is not None:
            self._stop_sandbox(box)

    async def remove_pod_sandbox(self, sandbox_id: str) -> None:
        box = self.sandboxes.get(sandbox_id)
        await self._enter("remove_pod_sandbox", _about(sandbox_id, box))
        box = self.sandboxes.get(sandbox_id)
        if box is None:
            return
        self._stop_sandbox(box)
        for container in self._containers_of(box):
            self._remove_container(container)
        del self.sandboxes[box.id]
        self._boxes_of.remove(box.config.labels, box.id)
        self._reserved.pop(box.key)
        self._tell(box.id, EventKind.DELETED, box)

    async def pod_sandbox_status(self, sandbox_id: str) -> SandboxStatus:
        box = self.sandboxes.get(sandbox_id)
        await self._enter("pod_sandbox_status", _about(sandbox_id, box))
        return self._sandbox_status(self._known_sandbox(sandbox_id))

    async def sandbox_image(self, sandbox_id: str) -> str:
        await self._enter("pod_sandbox_status", _about(sandbox_id, self.sandboxes.get(sandbox_id)))
        self._known_sandbox(sandbox_id)
        return "registry.k8s.io/pause:3.10"

    async def list_pod_sandboxes(
        self, *, pod_uid: str | None = None, id: str | None = None, ready_only: bool = False
    ) -> Sequence[SandboxRecord]:
        args = {"ready_only": ready_only}
        await self._enter("list_pod_sandboxes", Subject(id=id or "", pod_uid=pod_uid or ""), args=args)
        return self._sandbox_records(pod_uid, id, ready_only)

    async def update_pod_sandbox_resources(
        self,
        sandbox_id: str,
        *,
        overhead: cri_pb2.LinuxContainerResources | None = None,
        resources: cri_pb2.LinuxContainerResources | None = None,
    ) -> None:
        args = {"overhead": overhead, "resources": resources}
        about = _about(sandbox_id, self.sandboxes.get(sandbox_id))
        await self._enter("update_pod_sandbox_resources", about, args=args)
        box = self._known_sandbox(sandbox_id)
        box.overhead, box.resources = overhead, resources

    async def port_forward(self, sandbox_id: str, ports: Sequence[int] = ()) -> str:
        about = _about(sandbox_id, self.sandboxes.get(sandbox_id))
        await self._enter("port_forward", about, args={"ports": tuple(ports)})
        box = self._known_sandbox(sandbox_id)
        if box.state is not SandboxState.READY:
            raise CriError(f'sandbox container "{sandbox_id}" is not running')
        return f"http://127.0.0.1:1/portforward/{sandbox_id[:8]}"

    def container_events(self) -> AsyncGenerator[ContainerEvent, None]:
        # The subscription starts here and not at the first read, so that a test misses nothing between.
        queue: asyncio.Queue[ContainerEvent | CriError] = asyncio.Queue()
        if self.events_supported and not self.down:
            self._subscribers.append(queue)
        return self._events(queue)

    async def _events(self, queue: asyncio.Queue[ContainerEvent | CriError]) -> AsyncGenerator[ContainerEvent, None]:
        try:
            await self._enter("container_events", deadline=None)
            if not self.events_supported:
                raise Unimplemented("unknown method GetContainerEvents for service runtime.v1.RuntimeService")
            while True:
                item = await queue.get()
                if isinstance(item, CriError):
                    raise item
                yield item
        finally:
            if queue in self._subscribers:
                self._subscribers.remove(queue)

    @contextmanager
    def lost_events(self) -> Iterator[None]:
        """Events of this block reach no subscriber."""
        subscribers, self._subscribers = self._subscribers, []
        try:
            yield
        finally:
            self._subscribers = subscribers

    # -- inside

    def _new_id(self, kind: str) -> str:
        self._next_id += 1
        return made_id(kind, self._next_id)

    def _reserve(self, kind: str, key: str, id: str) -> None:
        holder = self._reserved.get(key)
        if holder is not None:
            raise CriError(f'failed to reserve {kind} name "{key}": name "{key}" is reserved for "{holder}"')
        self._reserved[key] = id

    async def _set_up(self, box: MemorySandbox, deadline: float) -> None:
        """What running a sandbox takes; raises CriError when it fails."""
        await self._spend(self.run_takes, deadline)

    def _addresses(self, box: MemorySandbox) -> tuple[str, ...]:
        """Free addresses, one a family; used again as late as possible, so that a stale one shows."""
        sizes = [network.num_addresses for network in self._networks]
        for _ in range(min(sizes, default=0)):
            self._next_address += 1
            found = tuple(
                str(network[2 + self._next_address % (size - 3)])
                for network, size in zip(self._networks, sizes, strict=True)
            )
            if not any(address in self._by_address for address in found):
                self._by_address.update((address, box) for address in found)
                return found
        raise CriError("failed to setup network for sandbox: no IP addresses available in range set")

    def at_address(self, address: str) -> MemorySandbox | None:
        """The sandbox that has this address."""
        return self._by_address.get(address)

    def _known_sandbox(self, sandbox_id: str) -> MemorySandbox:
        box = self.sandboxes.get(sandbox_id)
        if box is None:
            raise CriNotFound(f'an error occurred when try to find sandbox "{sandbox_id}": not found')
        return box

    def _stop_sandbox(self, box: MemorySandbox) -> None:
        for container in self._containers_of(box):
            self._kill(container)
        self._sandbox_down(box)
        for address in box.ips:
            self._by_address.pop(address, None)
        box.ips = ()

    def _sandbox_down(self, box: MemorySandbox) -> None:
        if box.state is SandboxState.READY:
            box.state = SandboxState.NOT_READY
            self._tell(box.id, EventKind.STOPPED, box)

    def _containers_of(self, box: MemorySandbox) -> list[MemoryContainer]:
        return list(box.containers.values())

    def _kill(self, container: MemoryContainer) -> None:
        raise NotImplementedError

    def _remove_container(self, container: MemoryContainer) -> None:
        raise NotImplementedError

    def _tell(self, id: str, kind: EventKind, box: MemorySandbox) -> None:
        if self.down:
            return  # the daemon makes the events; what happens while it is away makes none
        event = ContainerEvent(
            container_id=id,
            kind=kind,
            pod_uid=box.pod_uid,
            created_at=self.clock.now_ns(),
            labels=dict(box.config.labels),
        )
        for queue in self._subscribers:
            queue.put_nowait(event)

    def drop_subscribers(self) -> None:
        subscribers, self._subscribers = self._subscribers, []
        for queue in subscribers:
            queue.put_nowait(RuntimeDown("the event stream of the runtime ended"))

    def _sandbox_records(self, pod_uid: str | None, id: str | None, ready_only: bool) -> list[SandboxRecord]:
        found: Iterable[MemorySandbox] = self._boxes_of.of(pod_uid) if pod_uid else self.sandboxes.values()
        return [
            _sandbox_record(box)
            for box in found
            if (not id or box.id == id) and (not ready_only or box.state is SandboxState.READY)
        ]

    def _sandbox_status(self, box: MemorySandbox) -> SandboxStatus:
        mode = NamespaceMode.NODE if box.host_network else NamespaceMode.POD
        meta = box.config.metadata
        return SandboxStatus(
            id=box.id,
            pod_uid=meta.uid,
            pod_name=meta.name,
            pod_namespace=meta.namespace,
            attempt=meta.attempt,
            state=box.state,
            created_at=box.created_at,
            ips=box.ips,
            network_mode=mode,
            labels=dict(box.config.labels),
            annotations=dict(box.config.annotations),
            runtime_handler=box.runtime_handler,
        )


def _about(sandbox_id: str, box: MemorySandbox | None) -> Subject:
    if box is None:
        return Subject(id=sandbox_id)
    return Subject(id=sandbox_id, name=box.name, pod_uid=box.pod_uid)


def _sandbox_record(box: MemorySandbox) -> SandboxRecord:
    meta = box.config.metadata
    return SandboxRecord(
        id=box.id,
        pod_uid=meta.uid,
        pod_name=meta.name,
        pod_namespace=meta.namespace,
        attempt=meta.attempt,
        state=box.state,
        created_at=box.created_at,
        labels=dict(box.config.labels),
        annotations=dict(box.config.annotations),
        runtime_handler=box.runtime_handler,
    )
