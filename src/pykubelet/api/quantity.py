"""Resource quantities: "100m", "1.5Gi", "12e6".

Covers: parsing, exact arithmetic, ordering and the canonical text, with the rules of the Kubernetes API:
three formats, fractions rounded up to a nano, binary values capped at the largest int64.
Does not cover: which quantities a field allows (validation). Two deliberate differences from the Go type:
parsed text is always printed in canonical form ("1.500" as "1500m"), and a value beyond the largest
suffix keeps it (1000E), where Go loses the magnitude.
"""

import math
import re
from enum import Enum
from functools import lru_cache
from typing import Final, final

NANO: Final = 10**9
_MAX_BINARY: Final = (2**63 - 1) * NANO
# Far above any real amount; text beyond these bounds would only make the numbers explode.
MAX_TEXT: Final = 256
_MAX_EXPONENT: Final = 1000

_DECIMAL: Final = {
    "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
}  # fmt: skip
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX: Final = ("", *_BINARY)

_TEXT: Final = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(.*)", re.DOTALL)
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)")


class QuantityError(ValueError):
    """The text is no quantity; the message says why."""


class Format(Enum):
    """How a quantity was written, and so how it is printed."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


@final
class Quantity:
    """An exact amount in units of a nano, with the format to print it in. Immutable.

    Equality, order and hash look at the amount only: 1Ki equals 1024.
    """

    __slots__ = ("_format", "_nano")
    _format: Format
    _nano: int

    def __init__(self, nano: int, format_: Format = Format.DECIMAL_SI) -> None:
        object.__setattr__(self, "_nano", nano)
        object.__setattr__(self, "_format", format_)

    @staticmethod
    def parse(value: "str | int | float | Quantity") -> "Quantity":
        """The quantity a wire value stands for; QuantityError if it is none."""
        if isinstance(value, str):
            return _parse(value)
        if isinstance(value, Quantity):
            return value
        if isinstance(value, bool):
            raise QuantityError(f"{str(value).lower()} is not a quantity: expected a number or text such as 100m")
        if isinstance(value, int):
            if abs(value) > 10**_MAX_EXPONENT:
                raise QuantityError("a quantity must not have more than 1000 digits")
            return Quantity(value * NANO)
        if isinstance(value, float) and math.isfinite(value):
            # repr is the shortest text that gives the same float, that is what the author wrote.
            return Quantity(_parse(repr(value))._nano)
        raise QuantityError(f"{value!r} is not a quantity: expected a number or text such as 100m")

    @staticmethod
    def of(value: int, format_: Format = Format.DECIMAL_SI) -> "Quantity":
        return Quantity(value * NANO, format_)

    @staticmethod
    def of_bytes(value: int) -> "Quantity":
        return Quantity(value * NANO, Format.BINARY_SI)

    @staticmethod
    def of_milli(value: int, format_: Format = Format.DECIMAL_SI) -> "Quantity":
        return Quantity(value * 10**6, format_)

    @property
    def format(self) -> Format:
        return self._format

    def value(self) -> int:
        """Whole units; a fraction is rounded away from zero, so that asking for a little never gives none."""
        return _divide_up(self._nano, NANO)

    def milli_value(self) -> int:
        """Thousandths, rounded like value()."""
        return _divide_up(self._nano, 10**6)

    def nano_value(self) -> int:
        return self._nano

    def is_zero(self) -> bool:
        return self._nano == 0

    def __add__(self, other: "Quantity") -> "Quantity":
        if not isinstance(other, Quantity):
            return NotImplemented
        return Quantity(self._nano + other._nano, self._format if self._nano else other._format)

    def __sub__(self, other: "Quantity") -> "Quantity":
        if not isinstance(other, Quantity):
            return NotImplemented
        return Quantity(self._nano - other._nano, self._format if self._nano else other._format)

    def __mul__(self, factor: int) -> "Quantity":
        if not isinstance(factor, int):
            return NotImplemented
        return Quantity(self._nano * factor, self._format)

    __rmul__ = __mul__

    def __neg__(self) -> "Quantity":
        return Quantity(-self._nano, self._format)

    def __bool__(self) -> bool:
        return self._nano != 0

    def __eq__(self, other: object) -> bool:
        return self._nano == other._nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self._nano < other._nano if isinstance(other, Quantity) else NotImplemented

    def __le__(self, other: "Quantity") -> bool:
        return self._nano <= other._nano if isinstance(other, Quantity) else NotImplemented

    def __gt__(self, other: "Quantity") -> bool:
        return self._nano > other._nano if isinstance(other, Quantity) else NotImplemented

    def __ge__(self, other: "Quantity") -> bool:
        return self._nano >= other._nano if isinstance(other, Quantity) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._nano)

    def __str__(self) -> str:
        return _canonical(self._nano, self._format)

    def __repr__(self) -> str:
        return f"Quantity({_canonical(self._nano, self._format)!r})"

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Quantity cannot be changed")

    def __reduce__(self) -> "tuple[type[Quantity], tuple[int, Format]]":
        return Quantity, (self._nano, self._format)


ZERO: Final = Quantity(0)


def _divide_up(amount: int, divisor: int) -> int:
    """Division with the result rounded away from zero."""
    return -(-amount // divisor) if amount >= 0 else amount // divisor


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    shown = text if len(text) <= 40 else text[:40] + "..."
    # JSON decoding of quantities in the Kubernetes API trims blanks around them too.
    stripped = text.strip(" \t\r\n")
    if not stripped:
        raise QuantityError("a quantity must not be empty")
    if len(stripped) > MAX_TEXT:
        raise QuantityError(f'quantity "{shown}": longer than {MAX_TEXT} characters')
    match = _TEXT.fullmatch(stripped)
    assert match is not None  # the pattern ends in .* and so takes any text
    sign, whole, fraction, suffix = match[1], match[2], match[3] or "", match[4]
    if not whole and not fraction:
        raise QuantityError(f'quantity "{shown}": must begin with a number, such as 100m or 1.5Gi')
    base, exponent, format_ = _suffix(suffix, shown)
    exponent -= len(fraction) if base == 10 else 0
    mantissa = int(whole + fraction)
    if base == 10:
        nano = _scale_up(mantissa, exponent + 9)
    else:
        nano = _divide_up((mantissa << exponent) * NANO, 10 ** len(fraction))
        nano = min(nano, _MAX_BINARY)
        if 0 < nano < NANO:
            format_ = Format.DECIMAL_SI
    return Quantity(-nano if sign == "-" else nano, format_)


def _suffix(suffix: str, shown: str) -> tuple[int, int, Format]:
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix], Format.DECIMAL_SI
    if suffix in _BINARY:
        return 2, _BINARY[suffix], Format.BINARY_SI
    match = _EXPONENT.fullmatch(suffix)
    if match is None:
        raise QuantityError(
            f'quantity "{shown}": unknown suffix "{suffix[:20]}", must be one of n, u, m, k, M, G, T, P, E, '
            "Ki, Mi, Gi, Ti, Pi, Ei or an exponent such as e3"
        )
    exponent = int(match[1])
    if abs(exponent) > _MAX_EXPONENT:
        raise QuantityError(f'quantity "{shown}": exponent must be between -{_MAX_EXPONENT} and {_MAX_EXPONENT}')
    return 10, exponent, Format.DECIMAL_EXPONENT


def _scale_up(mantissa: int, exponent: int) -> int:
    """mantissa * 10**exponent, rounded up to a whole number."""
    return mantissa * 10**exponent if exponent >= 0 else _divide_up(mantissa, 10**-exponent)


@lru_cache(maxsize=4096)
def _canonical(nano: int, format_: Format) -> str:
    if nano == 0:
        return "0"
    # Small and fractional amounts would lose precision in binary, the API shows them in decimal.
    if format_ is Format.BINARY_SI and abs(nano) >= 1024 * NANO and nano % NANO == 0:
        return _canonical_binary(nano // NANO)
    exponent, limit = -9, None if format_ is Format.DECIMAL_EXPONENT else 18
    while nano % 1000 == 0 and exponent != limit:
        nano, exponent = nano // 1000, exponent + 3
    if format_ is Format.DECIMAL_EXPONENT:
        return f"{nano}e{exponent}" if exponent else f"{nano}"
    return f"{nano}{_DECIMAL_SUFFIX[exponent]}"


def _canonical_binary(value: int) -> str:
    power = 0
    while value % 1024 == 0 and power < len(_BINARY_SUFFIX) - 1:
        value, power = value // 1024, power + 1
    return f"{value}{_BINARY_SUFFIX[power]}"
