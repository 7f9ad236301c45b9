"""Container events from containerd's own event service, for a containerd without CRI GetContainerEvents.

Covers: subscribing on the CRI socket to the namespace of Kubernetes, turning task and container events into
the same values the CRI stream gives. Events of sandboxes carry the sandbox id, as with the CRI stream.
containerd's CRI part learns of an exit from this same stream and goes on saying "running" meanwhile (1.6: some
20 ms, at times 50), so STOPPED is held back until the CRI agrees: an inspection on the event sees the exit.
Does not cover: choosing between the two streams (client.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from pykubelet.clients.cri.calls import Rpc
from pykubelet.clients.cri.connection import Connection
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import CriError, RuntimeDown
from pykubelet.model.runtime_status import ContainerEvent, EventKind
from pykubelet.wire import containerd_events_pb2 as events_pb
from pykubelet.wire import containerd_events_service_pb2 as service_pb

NAMESPACE = "k8s.io"

SUBSCRIBE = Rpc("/containerd.services.events.v1.Events/Subscribe", "containerd_subscribe", service_pb.Envelope)

_Ready = asyncio.Queue[ContainerEvent | BaseException]

IsDown = Callable[[str], Awaitable[bool]]
"""Whether the CRI shows that this container or sandbox does not run."""

_LOOKS = (0.01, 0.01, 0.01, 0.02, 0.02, 0.03, 0.05, 0.1, 0.25, 0.5)
"""Seconds between checks of a container reported as ended; after the last the event is passed on anyway."""


def _ended(value: bytes) -> str:
    event = events_pb.TaskDelete.FromString(value)
    # An exec's end has the exec's own id here; only the container's first process matters.
    return event.container_id if event.id in ("", event.container_id) else ""


_TOPICS: dict[str, tuple[EventKind, Callable[[bytes], str]]] = {
    "/containers/create": (EventKind.CREATED, lambda value: events_pb.ContainerCreate.FromString(value).id),
    "/containers/delete": (EventKind.DELETED, lambda value: events_pb.ContainerDelete.FromString(value).id),
    "/tasks/start": (EventKind.STARTED, lambda value: events_pb.TaskStart.FromString(value).container_id),
    "/tasks/oom": (EventKind.OOM, lambda value: events_pb.TaskOOM.FromString(value).container_id),
    # Not /tasks/exit: the CRI part deletes the task while it handles the exit, so this is the later, truer one.
    "/tasks/delete": (EventKind.STOPPED, _ended),
}


def subscription() -> service_pb.SubscribeRequest:
    return service_pb.SubscribeRequest(filters=[f'namespace=="{NAMESPACE}",topic=="{topic}"' for topic in _TOPICS])


def container_event(envelope: service_pb.Envelope) -> ContainerEvent | None:
    """The event behind an envelope; None when it does not concern a container's own process."""
    found = _TOPICS.get(envelope.topic)
    if found is None:
        return None
    kind, id_of = found
    container_id = id_of(envelope.event.value)
    if not container_id:
        return None
    return ContainerEvent(container_id=container_id, kind=kind, created_at=envelope.timestamp.ToNanoseconds())


class _Settling:
    """Passes events on; those of a container whose end is not visible yet queue up behind it."""

    def __init__(self, clock: Clock, is_down: IsDown, tasks: TaskSet, ready: _Ready) -> None:
        self._clock = clock
        self._is_down = is_down
        self._tasks = tasks
        self._ready = ready
        self._held: dict[str, list[ContainerEvent]] = {}

    def take(self, event: ContainerEvent) -> None:
        held = self._held.get(event.container_id)
        if held is not None:
            held.append(event)
        elif event.kind is EventKind.STOPPED:
            self._held[event.container_id] = [event]
            self._tasks.spawn(self._settle(event.container_id), name=f"settle-{event.container_id[:12]}")
        else:
            self._ready.put_nowait(event)

    async def _settle(self, container_id: str) -> None:
        try:
            for pause in _LOOKS:
                if await self._is_down(container_id):
                    break
                await self._clock.sleep(pause)
        except CriError:
            pass  # the event is a hint; its reader inspects the container too, and handles this error
        for event in self._held.pop(container_id):
            self._ready.put_nowait(event)


async def container_events(
    connection: Connection, *, clock: Clock, is_down: IsDown
) -> AsyncGenerator[ContainerEvent, None]:
    """Every event from now on; raises Unimplemented when the socket is not containerd's."""
    # One queue for events and failures alike: every error inside reaches the reader.
    ready: _Ready = asyncio.Queue()
    tasks = TaskSet("containerd events", on_error=ready.put_nowait)
    await tasks.__aenter__()
    try:
        settling = _Settling(clock, is_down, tasks, ready)
        tasks.spawn(_pump(connection, settling), name="containerd-events")
        while True:
            item = await ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        # Not `async with`: it would wrap our error, and the GeneratorExit of aclose(), into a group.
        await tasks.__aexit__(None, None, None)


async def _pump(connection: Connection, settling: _Settling) -> None:
    metadata = (("containerd-namespace", NAMESPACE),)
    async with aclosing(connection.stream(SUBSCRIBE, subscription(), metadata=metadata)) as stream:
        async for envelope in stream:
            event = container_event(envelope)
            if event is not None:
                settling.take(event)
    raise RuntimeDown(f"the event stream of {connection.endpoint} ended")
