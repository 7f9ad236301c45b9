"""The kinds of value a configuration field can have, and how each is read from JSON and written back.

A scalar's `read` takes what the YAML or JSON decoder produced and raises WrongValue with a phrase that
completes "<field>: …". Lists, maps and nested objects are described here and walked by decode.py.
Does not cover how a flag's text becomes a value (flag_forms.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import UNSET, Struct, StructMeta, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.times import format_duration, parse_duration

NANOSECOND = 1e-9


class WrongValue(ValueError):
    """The value does not fit the field; the text completes a sentence that starts with the field."""


class Scalar(Struct, frozen=True):
    """A single value."""

    name: str
    zero: object
    """What the wire form means by "not given" for a field that is not optional."""
    read: Callable[[object], Any]
    write: Callable[[Any], object] = lambda value: value


class ListOf(Struct, frozen=True):
    """A list; Python holds it as a tuple."""

    item: Kind

    @property
    def name(self) -> str:
        return f"list of {self.item.name}"


class MapOf(Struct, frozen=True):
    """An object with free keys."""

    item: Kind

    @property
    def name(self) -> str:
        return f"map of {self.item.name}"


class Nested(Struct, frozen=True):
    """An object with known keys: a SettingsGroup."""

    cls: type[Any]

    @property
    def name(self) -> str:
        return "object"


Kind = Scalar | ListOf | MapOf | Nested


class Setting(Struct, frozen=True, kw_only=True):
    """What is known about one field beyond its Python type."""

    wire: str
    kind: Kind
    default: object
    doc: str
    flag: str
    """Name of the command-line flag, "" when there is none."""
    flag_form: object
    """A flag_forms.FlagForm when the flag's text is not the plain form of the kind."""
    optional: bool
    """A pointer in the Kubernetes type: an explicit zero stays, only absence takes the default."""
    legacy: object
    """The default when no configuration file is given; the same as `default` for nearly all."""


class _Declared(Struct, frozen=True, kw_only=True):
    """A field in the body of a settings class, until the class is made."""

    info: Setting
    default: Any
    secret: bool = False


_DECLARED: dict[type[Any], dict[str, _Declared]] = {}


class SettingsMeta(StructMeta):
    """Makes the classes whose fields are written with `setting` and `nested`."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        fields = {attribute: value for attribute, value in namespace.items() if isinstance(value, _Declared)}
        made = super().__new__(
            mcls,
            name,
            bases,
            namespace | {attribute: each.default for attribute, each in fields.items()},
            frozen=True,
            kw_only=True,
        )
        _DECLARED[made] = fields
        return made


class SettingsGroup(Struct, metaclass=SettingsMeta):
    """Settings that belong together. Secrets stay out of repr(), and with that out of logs and assertion messages."""

    def __repr__(self) -> str:
        shown = (name for name, each in _DECLARED[type(self)].items() if not each.secret)
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def declared(cls: type[Any]) -> dict[str, Setting]:
    """The settings of a class by their attributes."""
    return {attribute: each.info for attribute, each in _DECLARED[cls].items()}


def setting(
    wire: str,
    kind: Kind,
    default: object,
    doc: str,
    *,
    flag: str = "",
    flag_form: object = None,
    optional: bool = False,
    legacy: object = UNSET,
    secret: bool = False,
) -> Any:
    """A field of a SettingsGroup that knows its wire name, flag, default and meaning."""
    info = Setting(
        wire=wire,
        kind=kind,
        default=default,
        doc=doc,
        flag=flag,
        flag_form=flag_form,
        optional=optional,
        legacy=default if legacy is UNSET else legacy,
    )
    held = field(default_factory=lambda: dict(default)) if isinstance(default, dict) else default
    return _Declared(info=info, default=held, secret=secret)


def nested(wire: str, cls: type[Any], doc: str, *, optional: bool = False) -> Any:
    """A field that holds a nested object; an optional one is None until given."""
    info = Setting(
        wire=wire, kind=Nested(cls), default=None, doc=doc, flag="", flag_form=None, optional=optional, legacy=None
    )
    return _Declared(info=info, default=None if optional else field(default_factory=cls))


def describe(value: object) -> str:
    """The JSON word for what was found, for messages."""
    if value is None:
        return "null"
    for types, word in (
        (bool, "a boolean"),
        ((int, float), "a number"),
        (str, "a string"),
        (list, "a list"),
        (dict, "an object"),
    ):
        if isinstance(value, types):
            return word
    return type(value).__name__


def _read_bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise WrongValue(f"must be true or false, not {describe(value)}")
    return value


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise WrongValue(f"must be a string, not {describe(value)}")
    return value


def _integer(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise WrongValue(f"must be an integer, not {describe(value)}")
        if not low <= value <= high:
            raise WrongValue(f"must be within {low}..{high}")
        return value

    return read


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongValue(f"must be a number, not {describe(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise WrongValue("must be a finite number")
    return number


def duration_of(text: str) -> float:
    """Seconds of a Go duration text such as 1m30s."""
    try:
        return parse_duration(text)
    except ValueError as err:
        raise WrongValue(str(err)) from err


def _read_duration(value: object) -> float:
    if not isinstance(value, str):
        raise WrongValue(f"must be a duration string such as 1m30s, not {describe(value)}")
    return duration_of(value)


def _read_flush_frequency(value: object) -> float:
    # Older logging configurations carry nanoseconds as a number.
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 2**63:
            raise WrongValue("is too long")
        return value * NANOSECOND
    return _read_duration(value)


def quantity_of(text: str) -> Quantity:
    """The Kubernetes quantity written in the text."""
    try:
        return Quantity.parse(text)
    except ValueError as err:
        raise WrongValue(str(err)) from err


def _read_quantity(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise WrongValue(f"must be a quantity, not {describe(value)}")
    text = str(value)
    quantity_of(text)
    return text


BOOL = Scalar("bool", False, _read_bool)
STRING = Scalar("string", "", _read_text)
PATH = Scalar("path", "", _read_text)
"""A string that names a file; a relative one in the main file counts from that file's folder."""
INT32 = Scalar("int32", 0, _integer(-(2**31), 2**31 - 1))
INT64 = Scalar("int64", 0, _integer(-(2**63), 2**63 - 1))
UINT32 = Scalar("uint32", 0, _integer(0, 2**32 - 1))
FLOAT = Scalar("float", 0.0, _read_float)
DURATION = Scalar("duration", 0.0, _read_duration, format_duration)
"""A Go duration text on the wire, seconds in Python."""
FLUSH_FREQUENCY = Scalar("duration", 0.0, _read_flush_frequency, format_duration)
QUANTITY = Scalar("quantity", "", _read_quantity)
"""Kept as its text; `quantity_of` parses it."""
STRINGS = ListOf(STRING)
STRING_MAP = MapOf(STRING)
