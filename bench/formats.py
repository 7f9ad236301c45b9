"""What answers of the API server cost to read: JSON by msgspec, against Kubernetes' protobuf by google.protobuf (upb).

Both ways end in the same structs, since everything else works with these: JSON is decoded straight into them, a
protobuf message is parsed by upb and then walked by a plan made once for each type (the quickest way we know).
`python -m bench.formats` prints and keeps the figures in bench/formats.json; docs/decisions/011-json.md has them.
"""

from __future__ import annotations

import base64
import functools
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
from bench.decode import pod_list
from bench.report import commit, update_document
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pykubelet.api.protobuf import pod_bytes
from pykubelet.api.types import ApiStruct, ObjectMeta, Pod, PodList, Secret
from pykubelet.wire import core_v1_pod_pb2 as core

ROUNDS = 15
PODS = 100
RESULTS = Path(__file__).parent / "formats.json"
DECISION = Path(__file__).parent.parent / "docs" / "decisions" / "011-json.md"
MARKS = ("<!-- formats:begin -->", "<!-- formats:end -->")


def secret_type() -> type[Message]:
    """Upstream's Secret, whose message the agent has no need for otherwise."""
    file = descriptor_pb2.FileDescriptorProto(name="bench_secret.proto", package="bench", syntax="proto2")
    file.dependency.append(core.DESCRIPTOR.name)
    kind = file.message_type.add(name="Secret")
    metadata = core.Pod.DESCRIPTOR.fields_by_name["metadata"].message_type.full_name
    optional, repeated = FieldDescriptor.LABEL_OPTIONAL, FieldDescriptor.LABEL_REPEATED
    kind.field.add(name="metadata", number=1, label=optional, type=FieldDescriptor.TYPE_MESSAGE, type_name=metadata)
    entry = kind.nested_type.add(name="DataEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=optional, type=FieldDescriptor.TYPE_STRING)
    entry.field.add(name="value", number=2, label=optional, type=FieldDescriptor.TYPE_BYTES)
    message = FieldDescriptor.TYPE_MESSAGE
    kind.field.add(name="data", number=2, label=repeated, type=message, type_name=".bench.Secret.DataEntry")
    kind.field.add(name="type", number=3, label=optional, type=FieldDescriptor.TYPE_STRING)
    pool = descriptor_pool.Default()
    pool.Add(file)
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Secret"))
    return found


# --- messages to structs ---------------------------------------------------------------------------------------

Read = Callable[[Any], Any]


def struct_of(type_: type[Any], message: Message) -> Any:
    plan, values = reads(type_), {}
    for field, held in message.ListFields():
        known = plan.get(field.name)
        if known is not None:
            values[known[0]] = known[1](held)
        elif field.message_type is not None:  # a struct that Go embeds
            for inner, part in held.ListFields():
                attribute, read = plan[inner.name]
                values[attribute] = read(part)
    return type_(**values)


@functools.cache
def reads(type_: type[ApiStruct]) -> dict[str, tuple[str, Read]]:
    hints = get_type_hints(type_)
    return {info.encode_name: (info.name, reader(hints[info.name])) for info in msgspec.structs.fields(type_)}


def reader(hint: Any) -> Read:
    kinds = [each for each in (hint, *get_args(hint)) if each is not type(None)]
    texts = {str(each) for each in kinds}
    structs = [each for each in kinds if isinstance(each, type) and issubclass(each, ApiStruct)]
    if str(hint).startswith("dict"):
        return dict if get_args(hint)[1] is str else quantities
    if str(hint).startswith("list"):
        item = get_args(hint)[0]
        if isinstance(item, type) and issubclass(item, ApiStruct):
            return lambda held: [struct_of(item, each) for each in held]
        return list
    if structs:
        return functools.partial(struct_of, structs[0])
    if datetime in kinds or any("datetime" in text for text in texts):
        return lambda held: datetime.fromtimestamp(held.seconds, UTC)
    return special


def special(held: Any) -> Any:
    """Scalars as they are, Quantity and IntOrString by what they hold."""
    if isinstance(held, core.Quantity):
        return held.string
    if isinstance(held, core.IntOrString):
        return held.strVal if held.type == 1 else held.intVal
    return held


def quantities(held: Any) -> dict[str, str]:
    return {key: value.string for key, value in held.items()}


def secret_of(message: Any) -> Secret:
    data = {key: base64.b64encode(value).decode() for key, value in message.data.items()}
    return Secret(metadata=struct_of(ObjectMeta, message.metadata), data=data, type=message.type)


# --- figures ---------------------------------------------------------------------------------------------------


def best(work: Callable[[], object], times: int) -> float:
    """Microseconds of one call; other load only adds time."""
    found = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(times):
            work()
        found.append((time.perf_counter() - began) / times)
    return round(min(found) * 1e6, 1)


def measure() -> dict[str, dict[str, float]]:
    listing = msgspec.json.decode(pod_list(PODS), type=PodList)
    pod_text = msgspec.json.encode(listing.items[0])
    list_text = msgspec.json.encode(listing)
    pod_message = pod_bytes(listing.items[0])
    list_messages = [pod_bytes(each) for each in listing.items]
    pods, lists = msgspec.json.Decoder(Pod), msgspec.json.Decoder(PodList)

    def pod_of(data: bytes) -> Pod:
        message = core.Pod()
        message.ParseFromString(data)
        found: Pod = struct_of(Pod, message)
        return found

    assert pod_of(pod_message) == pods.decode(pod_text), "the two ways give different pods"

    values = {f"key-{number}": b"x" * 180 for number in range(3)}
    secret_class = secret_type()
    made: Any = secret_class()
    made.metadata.name, made.metadata.namespace, made.metadata.uid = "token", "team-1", "3f2b8c1e-0000-4000-8000-0000"
    made.metadata.resourceVersion, made.type = "184467", "Opaque"
    for key, value in values.items():
        made.data[key] = value
    secret_message, secret_text = made.SerializeToString(), msgspec.json.encode(secret_of(made))
    secrets = msgspec.json.Decoder(Secret)

    def secret_from(data: bytes) -> Secret:
        message = secret_class()
        message.ParseFromString(data)
        return secret_of(message)

    assert secrets.decode(secret_text) == secret_from(secret_message)

    def parse(kind: type[Message], data: bytes) -> Message:
        message = kind()
        message.ParseFromString(data)
        return message

    return {
        "Pod": {
            "json_bytes": len(pod_text),
            "protobuf_bytes": len(pod_message),
            "json_us": best(lambda: pods.decode(pod_text), 200),
            "protobuf_us": best(lambda: pod_of(pod_message), 200),
            "protobuf_parse_alone_us": best(lambda: parse(core.Pod, pod_message), 200),
        },
        "Secret": {
            "json_bytes": len(secret_text),
            "protobuf_bytes": len(secret_message),
            "json_us": best(lambda: secrets.decode(secret_text), 500),
            "protobuf_us": best(lambda: secret_from(secret_message), 500),
            "protobuf_parse_alone_us": best(lambda: parse(secret_class, secret_message), 500),
        },
        f"list of {PODS} pods": {
            "json_bytes": len(list_text),
            "protobuf_bytes": sum(map(len, list_messages)),
            "json_us": best(lambda: lists.decode(list_text), 3),
            "protobuf_us": best(lambda: [pod_of(each) for each in list_messages], 3),
            "protobuf_parse_alone_us": best(lambda: [parse(core.Pod, each) for each in list_messages], 3),
        },
    }


def table(report: dict[str, Any]) -> str:
    lines = [
        f"Commit {report['commit']}, best of {ROUNDS} rounds:",
        "",
        "| answer | bytes, JSON | bytes, protobuf | JSON to struct | protobuf to struct | of it upb's parsing |",
        "|---|---|---|---|---|---|",
    ]
    for name, each in report["results"].items():
        times = " | ".join(f"{each[key]:g} µs" for key in ("json_us", "protobuf_us", "protobuf_parse_alone_us"))
        lines.append(f"| {name} | {each['json_bytes']} | {each['protobuf_bytes']} | {times} |")
    return "\n".join(lines)


def main() -> None:
    measured = commit()
    report = {"commit": measured, "results": measure()}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))
    update_document(table(report), DECISION, MARKS)


if __name__ == "__main__":
    main()
