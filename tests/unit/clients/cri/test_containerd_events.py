"""containerd's own events become container events; an exec's end is not the container's."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from pykubelet.clients.cri.containerd_events import container_event, subscription
from pykubelet.model.runtime_status import EventKind
from pykubelet.wire import containerd_events_pb2 as pb
from pykubelet.wire import containerd_events_service_pb2 as service_pb


def envelope(topic: str, event: Message) -> service_pb.Envelope:
    made = service_pb.Envelope(topic=topic, namespace="k8s.io")
    made.timestamp.FromNanoseconds(1_700_000_000_000_000_001)
    made.event.type_url = event.DESCRIPTOR.full_name  # containerd leaves the usual prefix out
    made.event.value = event.SerializeToString()
    return made


@pytest.mark.parametrize(
    ("topic", "event", "kind"),
    [
        ("/containers/create", pb.ContainerCreate(id="c", image="i"), EventKind.CREATED),
        ("/containers/delete", pb.ContainerDelete(id="c"), EventKind.DELETED),
        ("/tasks/start", pb.TaskStart(container_id="c", pid=1), EventKind.STARTED),
        ("/tasks/exit", pb.TaskExit(container_id="c", id="c", exit_status=1), None),
        ("/tasks/delete", pb.TaskDelete(container_id="c"), EventKind.STOPPED),
        ("/tasks/delete", pb.TaskDelete(container_id="c", id="c"), EventKind.STOPPED),
        ("/tasks/delete", pb.TaskDelete(container_id="c", id="some-exec"), None),
        ("/tasks/oom", pb.TaskOOM(container_id="c"), EventKind.OOM),
        ("/images/create", pb.ContainerCreate(id="c"), None),
    ],
)
def test_topics(topic: str, event: Message, kind: EventKind | None) -> None:
    found = container_event(envelope(topic, event))
    if kind is None:
        assert found is None
    else:
        assert found is not None
        assert (found.container_id, found.kind) == ("c", kind)
        assert found.created_at == 1_700_000_000_000_000_001


def test_the_subscription_is_limited_to_kubernetes_containers() -> None:
    filters = subscription().filters
    assert len(filters) == 5
    assert all(item.startswith('namespace=="k8s.io",topic=="/') for item in filters)
