"""Pods as protobuf messages, against the bytes that Kubernetes' own Go type makes of the same pod."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from pykubelet.api.codec import decode_json
from pykubelet.api.protobuf import pod_bytes
from pykubelet.api.types import EmptyDirVolumeSource, Pod, Volume
from pykubelet.wire import core_v1_pod_pb2 as core
from tests.builders import a_container, a_pod

DATA = Path(__file__).parent / "data"


def said(message: Message, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in a message that is not a zero; Go writes the zeros of what is no pointer, too."""
    for field, value in message.ListFields():
        here = f"{path}.{field.name}"
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for key in value:
                one = value[key]
                yield from said(one, f"{here}[{key}]") if isinstance(one, Message) else [(f"{here}[{key}]", one)]
        elif field.is_repeated:
            for index, one in enumerate(value):
                yield from (said(one, f"{here}[{index}]") if isinstance(one, Message) else [(f"{here}[{index}]", one)])
        elif isinstance(value, Message):
            yield from said(value, here)
        elif value:
            yield here, value


def decoded(pod: Pod) -> core.Pod:
    return core.Pod.FromString(pod_bytes(pod))


def test_every_field_is_where_go_writes_it() -> None:
    """`pod.json` has a value in every field; `pod.pb` is what `Marshal` of k8s.io/api/core/v1.Pod made of it."""
    pod = decode_json(Pod, (DATA / "pod.json").read_bytes())
    expected = dict(said(core.Pod.FromString((DATA / "pod.pb").read_bytes())))
    assert len(expected) > 500
    assert dict(said(decoded(pod))) == expected


def test_what_is_there_without_a_value_is_there() -> None:
    pod = a_pod("web", volumes=[Volume(name="tmp", empty_dir=EmptyDirVolumeSource())])
    (volume,) = decoded(pod).spec.volumes
    assert volume.volumeSource.HasField("emptyDir") and not volume.volumeSource.HasField("hostPath")
    off = decoded(a_pod("web", enable_service_links=False)).spec
    assert off.HasField("enableServiceLinks") and off.enableServiceLinks is False
    assert not decoded(a_pod("web")).spec.HasField("enableServiceLinks")


def test_times_are_whole_seconds() -> None:
    pod = a_pod("web")
    pod.metadata.creation_timestamp = datetime(2026, 1, 1, 1, 0, 0, 999_999, timezone(timedelta(hours=1)))
    expected = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    assert decoded(pod).metadata.creationTimestamp == core.Time(seconds=expected)
    pod.metadata.creation_timestamp = datetime(1969, 12, 31, 23, 59, 58, 500_000, UTC)
    assert decoded(pod).metadata.creationTimestamp.seconds == -2


def test_quantities_are_text_however_they_were_written() -> None:
    pod = a_pod("web", containers=[a_container("app")], overhead={"cpu": 1, "memory": 1.5, "x": "10Mi"})
    assert {name: amount.string for name, amount in decoded(pod).spec.overhead.items()} == {
        "cpu": "1",
        "memory": "1500m",
        "x": "10Mi",
    }
