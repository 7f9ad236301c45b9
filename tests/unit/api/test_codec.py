"""Decoding, encoding and the manifest loader, above all on bad input."""

import io
import json
import string
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api import types
from pykubelet.api.codec import (
    ManifestError,
    convert,
    decode_json,
    encode_json,
    unknown_fields,
)
from pykubelet.api.documents import load_yaml_documents


def load_one(text: str | bytes) -> Any:
    (document,) = load_yaml_documents(text.encode() if isinstance(text, str) else text)
    return document


def refusal(text: str | bytes, **limits: int) -> str:
    with pytest.raises(ManifestError) as caught:
        load_yaml_documents(text.encode() if isinstance(text, str) else text, **limits)
    return str(caught.value)


def test_nulls_that_go_writes_mean_absent() -> None:
    pod = decode_json(
        types.Pod,
        b'{"metadata":{"creationTimestamp":null,"labels":null},"status":null,'
        b'"spec":{"containers":null,"nodeSelector":{"a":null},"volumes":[null],"priority":null,"unknown":null}}',
    )
    assert pod.spec == types.PodSpec(node_selector={"a": ""}, volumes=[types.Volume()])
    assert (pod.metadata, pod.status) == (types.ObjectMeta(), types.PodStatus())
    resources = convert(types.ResourceRequirements, {"limits": {"cpu": None}, "claims": None})
    assert resources == types.ResourceRequirements(limits={"cpu": "0"})


@pytest.mark.parametrize(
    ("type_", "tree", "says"),
    [
        (
            types.Pod,
            {"spec": {"containers": [{}, {"ports": [{"containerPort": "x"}]}]}},
            "spec.containers[1].ports[0].containerPort: expected int, got str",
        ),
        (
            types.Pod,
            {"spec": {"containers": [{"ports": [{"containerPort": 2**31}]}]}},
            "spec.containers[0].ports[0].containerPort: expected int <= 2147483647",
        ),
        (types.Pod, {"spec": {"containers": {}}}, "spec.containers: expected array, got object"),
        (types.Pod, {"metadata": {"labels": {"a": "b", "c": 1}}}, "metadata.labels[c]: expected str, got int"),
        (
            types.Pod,
            {"metadata": {"labels": {"a": "b", "c.d/e": []}}},
            "metadata.labels[c.d/e]: expected str, got array",
        ),
        (types.Pod, {"metadata": {"generation": True}}, "metadata.generation: expected int, got bool"),
        (types.Pod, {"metadata": {"generation": 10**400}}, "metadata.generation: "),
        (
            types.Pod,
            {"metadata": {"creationTimestamp": "today"}},
            "metadata.creationTimestamp: invalid RFC3339 encoded datetime",
        ),
        (types.UserInfo, {"extra": {"a": ["x"], "b": ["x", 2]}}, "extra[b][1]: expected str, got int"),
        (
            types.ResourceSlice,
            {"spec": {"devices": [{"attributes": {"a": {"int": 1}, "b": {"int": "x"}}}]}},
            "spec.devices[0].attributes[b].int: expected int, got str",
        ),
        (types.Pod, {"spec": {"containers": None, "volumes": [None, 3]}}, "spec.volumes[1]: expected object, got int"),
        (types.Pod, [], "expected object, got array"),
        (types.Pod, None, "expected object, got null"),
        (types.Pod, "text", "expected object, got str"),
    ],
)
def test_errors_name_the_field(type_: type[types.ApiStruct], tree: Any, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        convert(type_, tree)
    assert str(caught.value).startswith(says)
    with pytest.raises(ManifestError) as caught:
        decode_json(type_, json.dumps(tree))
    assert str(caught.value).startswith(says.partition(": ")[0])


def test_keys_that_are_no_text() -> None:
    with pytest.raises(ManifestError, match=r"^metadata.labels: key of a map: expected str, got int$"):
        convert(types.Pod, {"metadata": {"labels": {1: "x"}}})
    with pytest.raises(ManifestError, match="key of a map: expected str"):
        convert(types.Pod, {3: 4})


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "invalid JSON: input data was truncated"),
        (b'{"kind":', "invalid JSON: input data was truncated"),
        (b'{"kind":"\xff"}', "invalid JSON: not UTF-8 text"),
        (b"{]", "invalid JSON: "),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"metadata":{"generation":' + b"9" * 5000 + b"}}", "metadata.generation: integer value out of range"),
    ],
)
def test_bad_json_is_refused_in_our_words(data: bytes, says: str) -> None:
    with pytest.raises(ManifestError) as caught:
        decode_json(types.Pod, data)
    assert str(caught.value).startswith(says)


def test_unknown_fields_are_ignored_but_can_be_listed() -> None:
    tree = {
        "foo": 1,
        "metadata": {"managedFields": [{"fieldsV1": {"f:anything": {}}}], "labels": {"any": "thing"}},
        "spec": {"containers": [{"nmae": "x", "resources": {"limits": {"any/thing": 1}}}], "volumes": "wrong"},
    }
    assert unknown_fields(types.Pod, tree) == ["foo", "spec.containers[0].nmae"]
    assert convert(types.Pod, {"foo": 1, "kind": "Pod"}) == types.Pod(kind="Pod")
    devices = {"spec": {"devices": [{"attributes": {"a": {"bad": 1}}}]}}
    assert unknown_fields(types.ResourceSlice, devices) == ["spec.devices[0].attributes[a].bad"]


def test_plain_values_can_be_encoded_too() -> None:
    assert encode_json({"metadata": {"a": None}}) == b'{"metadata":{"a":null}}'
    assert encode_json([types.Pod(kind="Pod")]) == b'[{"kind":"Pod"}]'
    with pytest.raises(ManifestError, match="nested too deeply"):
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        encode_json({"a": deep})


def test_bytes_that_are_no_text_become_question_marks() -> None:
    pod = types.Pod(metadata=types.ObjectMeta(name="a\udcff", labels={"k\udcff": "v"}))
    assert decode_json(types.Pod, encode_json(pod)).metadata == types.ObjectMeta(name="a?", labels={"k?": "v"})
    assert encode_json(["\udcff", 1]) == b'["?",1]'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True), ("yes", True), ("y", True), ("On", True), ("FALSE", False), ("n", False), ("off", False),
        ("~", None), ("null", None), ("", None), ("'y'", "y"), ('"1"', "1"), ("tRue", "tRue"),
        ("1", 1), ("-5", -5), ("+5", 5), ("1_000", 1000), ("0644", 420), ("0o644", 420), ("0x1F", 31), ("0b11", 3),
        ("08", 8), ("1.5", 1.5), ("1.0", 1), ("1e3", 1000), (".5", 0.5), ("-1.5e-3", -0.0015), ("1.2.3", "1.2.3"),
        ("18446744073709551615", 2**64 - 1), ("123456789012345678901234", 123456789012345678901234.0),
        ("1e999", "1e999"), ("22:22", "22:22"), ("1:30:00", "1:30:00"), ("2024-05-01", "2024-05-01"),
        ("2024-05-01T12:00:00Z", "2024-05-01T12:00:00Z"), ("2024-05-01 12:00:00", "2024-05-01 12:00:00"),
        ("100m", "100m"), ("1Gi", "1Gi"), ("0x", "0x"), ("!!str 1", "1"), ("!!int '3'", 3),
        ("! 12", 12), ("!!float 1", 1), ("!!timestamp 2024-05-01", "2024-05-01"), ("=", "="),
    ],
)  # fmt: skip
def test_scalars_are_read_as_the_go_tools_read_them(text: str, value: Any) -> None:
    found = load_one(f"a: {text}")["a"]
    assert found == value and type(found) is type(value)


def test_documents_keys_and_merges() -> None:
    assert load_yaml_documents(b"") == []
    assert load_yaml_documents(b"---\n---\n# nothing\n...\n") == []
    assert load_yaml_documents(b"a: 1\n---\n---\nb: 2\n") == [{"a": 1}, {"b": 2}]
    assert load_one("1: a\ntrue: b\n1.5: c\nno: d") == {"1": "a", "true": "b", "1.5": "c", "false": "d"}
    assert load_one("base: &b {x: 1, z: 2}\nc: {<<: *b, x: 3}\nd: {<<: [*b, {q: 4, x: 5}]}") == {
        "base": {"x": 1, "z": 2},
        "c": {"x": 3, "z": 2},
        "d": {"x": 1, "z": 2, "q": 4},
    }
    assert load_one("a: &x [1]\nb: *x") == {"a": [1], "b": [1]}
    assert load_one(b"\xef\xbb\xbfa: b") == {"a": "b"}


def test_json_is_taken_with_tabs_and_surrogates() -> None:
    assert load_one('{\t"a":\t"\\ud83d\\ude00", "b": [1.0, 1e3, 2.5, 12345678901234567890]}') == {
        "a": "\U0001f600",
        "b": [1, 1000, 2.5, 12345678901234567890],
    }
    assert load_one("{a: b}") == {"a": "b"}
    assert load_one("[1, 2]") == [1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb: 2\na: 3\n", 'line 3: duplicate key "a"'),
        ('{"a": 1,\n "a": 2}', 'line 2: duplicate key "a"'),
        ("1: a\n'1': b", 'line 2: duplicate key "1"'),
        ("a: &a [*a]", "line 1: anchor &a contains itself"),
        ("a: &a\n  b: {c: *a}", "line 2: anchor &a contains itself"),
        ("a: *b", "line 1: alias *b has no anchor before it"),
        ("a: &a 1\n---\nb: *a", "line 3: alias *a has no anchor before it"),
        ("\na: !!python/object/apply:os.system [id]", "line 2: tag tag:yaml.org,2002:python/object/apply:os.system is"),
        ("!thing {a: 1}", "line 1: tag !thing is not allowed"),
        ("a: !!binary aGVsbG8=", "line 1: tag tag:yaml.org,2002:binary is not allowed"),
        ("%TAG ! tag:yaml.org,2002:python/\n---\na: !name:os.system x", "line 3: tag "),
        ("a: !!bool 1", 'line 1: "1" is no bool'),
        ("a: !!int true", 'line 1: "true" is no int'),
        ("a: .inf", "line 1: .inf cannot be used"),
        ("a: -.INF", "line 1: -.INF cannot be used"),
        ("a: .nan", "line 1: .nan cannot be used"),
        ("<<: 3", "line 1: << needs a map"),
        ("? [a]\n: b", "line 1: a key must be text"),
        ("~: a", "line 1: a key must be text"),
        ("a: b: c", "line 1: invalid YAML: "),
        ("a: 1\n\tb: 2", "line 2: invalid YAML: "),
        ("a: [1\nb: 2", "line 2: invalid YAML: "),
        ("a: 'x", "line 1: invalid YAML: "),
        (b"ok: 1\n\xff\xfe", "line 2: not UTF-8 text"),
        ("a: 1".encode("utf-16"), "line 1: not UTF-8 text"),
        (b"a: 1\nb: \x00\n", "line 2: control character U+0000 is not allowed"),
        (b"\x7fELF\x02\x01\x01", "line 1: control character U+007F is not allowed"),
        (bytes(range(256)), "line "),
    ],
)
def test_bad_manifests_are_refused_with_the_line(text: str | bytes, says: str) -> None:
    assert refusal(text).startswith(says)


def test_limits() -> None:
    levels = [b"a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    levels += [b"a%d: &a%d [%s]" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 12)]
    assert "more than 500000 values after expanding aliases" in refusal(b"\n".join(levels))
    maps = ["m0: &m0 {a: 1, b: 2}"]
    maps += [f"m{i}: &m{i} {{<<: *m{i - 1}, k{i}: [{', '.join([f'*m{i - 1}'] * 9)}]}}" for i in range(1, 12)]
    assert "more than 500000 values" in refusal("\n".join(maps))
    assert refusal("[1, 2, 3]", max_nodes=3) == "line 1: more than 3 values after expanding aliases"
    assert refusal('{"a": [1, 2, 3]}', max_nodes=4).endswith("after expanding aliases")
    for opening in ("[", "- ", "{a: ", "? ", '{"a":'):
        assert refusal(opening * 100_000) == "line 1: nested more than 100 levels deep"
    assert "nested more than 100 levels" in refusal("[" * 200 + "]" * 200)
    nested = "x0: &x0 [1]\n" + "".join(f"x{i}: &x{i} [*x{i - 1}]\n" for i in range(1, 150))
    assert "nested more than 100 levels" in refusal(nested)


def test_a_file_that_is_too_large_is_not_read_to_its_end() -> None:
    class Endless(io.RawIOBase):
        taken = 0

        def read(self, size: int = -1) -> bytes:
            assert size >= 0, "must not ask for everything"
            self.taken += size
            return b"x" * size

    source = Endless()
    with pytest.raises(ManifestError, match="larger than 10485760 bytes"):
        load_yaml_documents(source)  # type: ignore[arg-type]
    assert source.taken <= 10 * 1024 * 1024 + 1
    assert refusal(b"x" * 11, max_bytes=10) == "larger than 10 bytes"
    assert load_yaml_documents(io.BytesIO(b"a: 1")) == [{"a": 1}]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(string.printable, max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcXYZ.-/ ", max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(string.ascii_letters, max_size=5), plain))
def test_what_json_writes_the_loader_reads(tree: dict[str, Any]) -> None:
    text = json.dumps(tree)
    assert load_yaml_documents(("\n" + text).encode()) == [tree]
    assert load_yaml_documents(("--- " + text).encode()) == [tree], "the same through the YAML way"


@given(st.binary(max_size=60) | st.text("ab:-[]{}&*!<>|?,'\"\n\t #%@`0.~", max_size=40).map(str.encode))
def test_any_bytes_are_loaded_or_refused_in_our_words(data: bytes) -> None:
    try:
        documents = load_yaml_documents(data)
    except ManifestError as refused:
        assert refused.message and refused.line is not None
        return
    for document in documents:
        try:
            convert(types.Pod, document)
        except ManifestError as refused:
            assert refused.message
        unknown_fields(types.Pod, document)


names = st.text("abc-.", min_size=1, max_size=6)
text_maps = st.dictionaries(names, st.text(max_size=6), max_size=3)
containers = st.builds(
    types.Container,
    name=names,
    image=st.none() | st.text(max_size=5),
    args=st.lists(st.text(max_size=4), max_size=3),
    tty=st.none() | st.booleans(),
    ports=st.lists(st.builds(types.ContainerPort, container_port=st.integers(-(2**31), 2**31 - 1)), max_size=2),
    resources=st.none()
    | st.builds(types.ResourceRequirements, limits=st.dictionaries(names, st.integers(0, 99) | names, max_size=2)),
)
pods = st.builds(
    types.Pod,
    metadata=st.builds(
        types.ObjectMeta,
        name=st.none() | names,
        labels=text_maps,
        creation_timestamp=st.none() | st.datetimes(timezones=st.just(UTC)),
    ),
    spec=st.builds(types.PodSpec, containers=st.lists(containers, max_size=3), node_selector=text_maps),
    status=st.builds(types.PodStatus, phase=st.none() | names, host_ip=st.none() | st.just("")),
)


@given(pods)
def test_encoding_and_decoding_loses_nothing(pod: types.Pod) -> None:
    data = encode_json(pod)
    assert decode_json(types.Pod, data) == pod
    assert encode_json(decode_json(types.Pod, data)) == data
    assert convert(types.Pod, json.loads(data)) == pod
    assert load_yaml_documents(data) == [json.loads(data)]
