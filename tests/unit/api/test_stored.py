"""What a real API server stores is read as Go reads it, however odd; the rest still tells its name."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from pykubelet.api.codec import ManifestError
from pykubelet.api.stored import decode_stored, loose_metadata, split_list, without_depths
from pykubelet.api.types import Pod, Secret, Service
from tests.deep import deep

FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def stored(metadata: str = "", spec: str = "{}", status: str = "{}") -> bytes:
    return f'{{"metadata":{{"name":"a","uid":"u"{metadata}}},"spec":{spec},"status":{status}}}'.encode()


@pytest.mark.parametrize("depth", [10, 900, 1000, 5000, 9990])
@pytest.mark.parametrize("place", ["managedFields", "unknown"])
def test_depth_in_fields_that_nobody_reads_is_no_obstacle(depth: int, place: str) -> None:
    entries = f',"{place}":[{{"fieldsType":"FieldsV1","fieldsV1":{deep(depth)}}}]'
    pod = decode_stored(Pod, stored(entries, '{"nodeName":"n"}'))
    assert (pod.metadata.name, pod.spec.node_name) == ("a", "n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0000-01-01T00:00:00Z", FIRST),
        ("-0001-12-31T23:00:00Z", FIRST),
        ("0001-01-01T00:00:00Z", FIRST),
        ("10000-01-01T00:00:00Z", LAST),
        ("9999-12-31T23:59:59Z", LAST),
        ("2024-05-01T08:30:00.999999999Z", datetime(2024, 5, 1, 8, 30, 1, tzinfo=UTC)),
        ("2024-05-01T08:30:00+23:59", datetime(2024, 4, 30, 8, 31, tzinfo=UTC)),
    ],
)
def test_odd_times_are_as_near_as_python_can_hold_them(text: str, expected: datetime) -> None:
    condition = f'{{"conditions":[{{"type":"Ready","lastTransitionTime":"{text}"}}],"phase":"Running"}}'
    pod = decode_stored(Pod, stored(status=condition))
    assert pod.status.phase == "Running"
    assert pod.status.conditions[0].last_transition_time == expected


@pytest.mark.parametrize(
    ("type_", "data", "look"),
    [
        (Pod, stored(spec='{"containers":null,"nodeName":"n"}'), lambda pod: pod.spec.containers == []),
        (Pod, stored(spec='{"restartPolicy":"Perhaps"}'), lambda pod: pod.spec.restart_policy == "Perhaps"),
        (Pod, stored(',"x":1e999,"y":' + "9" * 5000), lambda pod: pod.metadata.uid == "u"),
        (Pod, stored(',"y":' + "9" * 5000, '{"containers":null}'), lambda pod: pod.metadata.uid == "u"),
        (Secret, stored(',"creationTimestamp":null').replace(b"spec", b"data"), lambda secret: secret.data == {}),
        (Secret, b'{"data":{"a":null,"b":"eA=="}}', lambda secret: secret.data == {"a": "", "b": "eA=="}),
        (Service, stored(spec='{"externalIPs":null,"ports":[null]}'), lambda service: len(service.spec.ports) == 1),
    ],
)
def test_nulls_numbers_and_words_of_any_kind(type_: type[Any], data: bytes, look: Any) -> None:
    assert look(decode_stored(type_, data))


def test_what_cannot_be_read_is_an_error_that_names_the_field() -> None:
    with pytest.raises(ManifestError, match=r"spec\.containers"):
        decode_stored(Pod, stored(spec='{"containers":"none"}'))
    with pytest.raises(ManifestError):
        decode_stored(Pod, b'{"metadata":')


@pytest.mark.parametrize("field", ["deletionTimestamp", "creationTimestamp"])
@pytest.mark.parametrize("text", ["292277022399-01-01T00:00:00Z", "2016-12-31T23:59:60Z", "yesterday", ""])
def test_what_is_no_time_is_an_error_and_not_an_absent_time(field: str, text: str) -> None:
    """As in Go, and no server stores it; a pod must not come back to life by a deletion that cannot be read."""
    with pytest.raises(ManifestError, match=rf"metadata\.{field}"):
        decode_stored(Pod, stored(f',"{field}":"{text}"'))


def test_depths_are_cut_and_nothing_else() -> None:
    text = b'{"a":[1,{"b":"]}[{ \\" \\\\"}],"c":[[2]],"d":[{}]}'
    assert without_depths(text) == text
    assert json.loads(without_depths(text, 2)) == {"a": [1, None], "c": [None], "d": [None]}
    assert json.loads(without_depths(text, 1)) == {"a": None, "c": None, "d": None}


def test_a_name_and_a_deletion_are_found_in_whatever_else_is_wrong() -> None:
    data = stored(
        ',"namespace":"ns","resourceVersion":"7","deletionTimestamp":"0000-01-01T00:00:00Z","labels":' + deep(3000),
        '{"containers":1,"nodeName":"n"}',
    )
    told = loose_metadata(data)
    assert {key: told[key] for key in ("name", "namespace", "uid", "resourceVersion", "nodeName")} == {
        "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "7", "nodeName": "n",
    }  # fmt: skip
    assert told["deletionTimestamp"] == FIRST
    assert loose_metadata(b"{") == {}
    assert loose_metadata(b"[]")["nodeName"] == ""


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_falls_into_its_items(indent: int | None) -> None:
    items = [{"metadata": {"name": f"n{i}", "labels": {"x": '},{"metadata":{'}}} for i in range(5)]
    tree = {"kind": "PodList", "metadata": {"resourceVersion": "9"}, "items": items, "more": [1.5, 10**30]}
    parts = list(split_list(json.dumps(tree, indent=indent).encode()))
    assert [msgspec.json.decode(part) for key, part in parts if key == "items"] == items
    assert [msgspec.json.decode(part) for key, part in parts if key == "metadata"] == [{"resourceVersion": "9"}]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"items":[1 2]}', b'{"items":[', b'{"a"}', b"\xff", b'{"items":[]'])
def test_what_is_no_list_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        list(split_list(data))


def test_a_list_of_nothing() -> None:
    assert list(split_list(b'{"items":null}')) == list(split_list(b'{"items":[]}')) == []
