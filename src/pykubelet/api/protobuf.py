"""Pods as Kubernetes' own protobuf messages, for services that pass them on as bytes.

Message and type are walked side by side: a field of the message that the type does not have is a struct that Go embeds
and JSON writes inline. Numbers of fields: wire/core_v1_pod_pb2. Does not cover: reading such messages, managedFields.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ApiStruct, IntOrString, Pod, QuantityValue
from pykubelet.wire import core_v1_pod_pb2 as core


def pod_bytes(pod: Pod) -> bytes:
    """What Go's Marshal makes of the pod. Raises ValueError for one that cannot be written so."""
    message = core.Pod()
    _fill(message, pod)
    return message.SerializeToString()


def _time(message: core.Time, value: datetime) -> None:
    message.seconds = int(value.timestamp() // 1)


def _quantity(message: core.Quantity, value: QuantityValue) -> None:
    message.string = str(Quantity.parse(value))


def _int_or_string(message: core.IntOrString, value: IntOrString) -> None:
    if isinstance(value, str):
        message.type, message.strVal = 1, value
    else:
        message.type, message.intVal = 0, value


def _fill(message: Message, value: ApiStruct) -> None:
    """Write what the struct has into the message of its kind."""
    for name, attribute, write in _plan(type(value), message.DESCRIPTOR):
        if attribute is None:
            _fill(getattr(message, name), value)
            continue
        held = getattr(value, attribute)
        if held is not None:
            write(message, name, held)


Write = Callable[[Message, str, Any], None]


@functools.cache
def _plan(type_: type[ApiStruct], descriptor: Descriptor) -> tuple[tuple[str, str | None, Write], ...]:
    """Field of the message, attribute of the struct (None: embedded), and how to write it."""
    attributes = {info.encode_name: info.name for info in msgspec.structs.fields(type_)}
    return tuple((field.name, attributes.get(field.name), _writer(field)) for field in descriptor.fields)


def _writer(field: FieldDescriptor) -> Write:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        values = kind.fields_by_name["value"].message_type
        return _put_scalars if values is None else functools.partial(_put_messages, SPECIAL.get(values.name, _fill))
    if kind is None:
        return _add_scalars if field.is_repeated else setattr
    fill = SPECIAL.get(kind.name, _fill)
    return functools.partial(_add_messages if field.is_repeated else _set_message, fill)


Fill = Callable[[Any, Any], None]
SPECIAL: dict[str, Fill] = {"Time": _time, "Quantity": _quantity, "IntOrString": _int_or_string}


def _set_message(fill: Fill, message: Message, name: str, value: Any) -> None:
    part = getattr(message, name)
    part.SetInParent()
    fill(part, value)


def _add_messages(fill: Fill, message: Message, name: str, values: list[Any]) -> None:
    parts = getattr(message, name)
    for value in values:
        fill(parts.add(), value)


def _put_messages(fill: Fill, message: Message, name: str, values: dict[str, Any]) -> None:
    parts = getattr(message, name)
    for key, value in values.items():
        fill(parts[key], value)


def _add_scalars(message: Message, name: str, values: list[Any]) -> None:
    getattr(message, name).extend(values)


def _put_scalars(message: Message, name: str, values: dict[str, Any]) -> None:
    getattr(message, name).update(values)
