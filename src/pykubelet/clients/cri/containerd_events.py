"""Container events from containerd's own event service, for a containerd without CRI GetContainerEvents.

Covers: subscribing on the CRI socket to the namespace of Kubernetes, turning task and container events into
the same values the CRI stream gives. Events of sandboxes carry the sandbox id, as with the CRI stream.
Does not cover: the moment when the CRI answers agree. containerd's CRI part learns of an exit from the same
stream, so for some milliseconds after STOPPED it may still report the container as running; look again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from pykubelet.clients.cri.calls import Rpc
from pykubelet.clients.cri.transport import Connection
from pykubelet.model.runtime_status import ContainerEvent, EventKind
from pykubelet.wire import containerd_events_pb2 as events_pb
from pykubelet.wire import containerd_events_service_pb2 as service_pb

NAMESPACE = "k8s.io"

SUBSCRIBE = Rpc("/containerd.services.events.v1.Events/Subscribe", "containerd_subscribe", service_pb.Envelope)


def _exit(value: bytes) -> str:
    event = events_pb.TaskExit.FromString(value)
    # An exec's end has the exec's own id here; only the container's first process matters.
    return event.container_id if event.id == event.container_id else ""


def _task_delete(value: bytes) -> str:
    event = events_pb.TaskDelete.FromString(value)
    return event.container_id if event.id in ("", event.container_id) else ""


_TOPICS: dict[str, tuple[EventKind, Callable[[bytes], str]]] = {
    "/containers/create": (EventKind.CREATED, lambda value: events_pb.ContainerCreate.FromString(value).id),
    "/containers/delete": (EventKind.DELETED, lambda value: events_pb.ContainerDelete.FromString(value).id),
    "/tasks/start": (EventKind.STARTED, lambda value: events_pb.TaskStart.FromString(value).container_id),
    "/tasks/oom": (EventKind.OOM, lambda value: events_pb.TaskOOM.FromString(value).container_id),
    "/tasks/exit": (EventKind.STOPPED, _exit),
    # The CRI part deletes the task while it handles the exit, so this one comes when its answer is about
    # to change; the first one may be too early to see anything.
    "/tasks/delete": (EventKind.STOPPED, _task_delete),
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


async def container_events(connection: Connection) -> AsyncGenerator[ContainerEvent, None]:
    """Every event from now on; raises Unimplemented when the socket is not containerd's."""
    metadata = (("containerd-namespace", NAMESPACE),)
    async with aclosing(connection.stream(SUBSCRIBE, subscription(), metadata=metadata)) as stream:
        async for envelope in stream:
            event = container_event(envelope)
            if event is not None:
                yield event
