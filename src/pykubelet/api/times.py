"""Times and durations as the Kubernetes API writes them.

Covers: RFC 3339 with second, microsecond and nanosecond precision, Go durations ("1h0m0s", "300ms").
Times are aware datetimes in UTC or whole nanoseconds since 1970; durations are seconds or nanoseconds.
Does not cover: what time it is (kit/clock.py).
"""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = 10**9
_MAX_DURATION: Final = 2**63 - 1
_OLDEST: Final = -62_135_596_800 * _SECOND  # 0001-01-01T00:00:00Z
_NEWEST: Final = 253_402_300_800 * _SECOND  # 10000-01-01T00:00:00Z, no longer included

_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_YEAR: Final = re.compile(r"(-?[0-9]{1,9})-[0-9]{2}-[0-9]{2}T")
_UNITS: Final = {
    "ns": 1,
    "us": 1000,
    "\u00b5s": 1000,  # micro sign
    "\u03bcs": 1000,  # Greek mu
    "ms": 10**6,
    "s": _SECOND,
    "m": 60 * _SECOND,
    "h": 3600 * _SECOND,
}
_PART: Final = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]*)")


class TimeError(ValueError):
    """A text is no time or duration, or a time cannot be written; the message says why."""


def parse_time(text: str) -> datetime:
    """The UTC datetime of an RFC 3339 text. Digits beyond microseconds are cut off."""
    return from_nanoseconds(parse_nano_time(text))


def nearest_time(text: str) -> datetime | None:
    """The time of a text that an API server wrote, as near as Python can hold it; None for what is no time.

    Go's times go on before the year 1 and after 9999; who stores such a time means "long ago" or "never".
    """
    try:
        return parse_time(text)
    except TimeError:
        year = _YEAR.match(text)
    if year is not None and int(year[1]) < 1:
        return datetime.min.replace(tzinfo=UTC)
    if year is not None and int(year[1]) > 9999:
        return datetime.max.replace(microsecond=0, tzinfo=UTC)
    return None


def parse_nano_time(text: str) -> int:
    """Nanoseconds since 1970 of an RFC 3339 text. Digits beyond nanoseconds are cut off."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise TimeError(f'time "{_short(text)}": must look like 2006-01-02T15:04:05Z')
    try:
        moment = datetime.fromisoformat(match[1] + match[3].replace("Z", "+00:00"))
        seconds = (moment - _EPOCH) // timedelta(seconds=1)
    except (ValueError, OverflowError) as problem:
        raise TimeError(f'time "{_short(text)}": {problem}') from None
    return seconds * _SECOND + int((match[2] or "")[:9].ljust(9, "0"))


def format_time(moment: datetime | int) -> str:
    """metav1.Time: 2006-01-02T15:04:05Z. Fractions are cut off, as the API server does."""
    return _split(moment)[0] + "Z"


def format_micro_time(moment: datetime | int) -> str:
    """metav1.MicroTime: always six digits, 2006-01-02T15:04:05.000000Z."""
    text, nanoseconds = _split(moment)
    return f"{text}.{nanoseconds // 1000:06d}Z"


def format_nano_time(moment: datetime | int, *, fixed: bool = False) -> str:
    """Go's RFC3339Nano: as many digits as needed, or always nine when fixed (log timestamps)."""
    text, nanoseconds = _split(moment)
    digits = f"{nanoseconds:09d}"
    if not fixed:
        digits = digits.rstrip("0")
    return f"{text}.{digits}Z" if digits else f"{text}Z"


def to_nanoseconds(moment: datetime) -> int:
    """Nanoseconds since 1970, exact."""
    if moment.utcoffset() is None:
        raise TimeError(f"time {moment.isoformat()}: has no time zone")
    passed = moment - _EPOCH
    return (passed.days * 86400 + passed.seconds) * _SECOND + passed.microseconds * 1000


def from_nanoseconds(nanoseconds: int) -> datetime:
    """The UTC datetime; digits beyond microseconds are cut off."""
    if not _OLDEST <= nanoseconds < _NEWEST:
        raise TimeError(f"time {nanoseconds} ns: outside the years 1 to 9999")
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def parse_duration(text: str) -> float:
    """Seconds of a Go duration such as 1m20s."""
    return parse_duration_ns(text) / _SECOND


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of a Go duration such as 1m20s; fractions of a nanosecond are cut off."""
    shown = _short(text)
    rest = text[1:] if text[:1] in ("+", "-") else text
    if rest == "0":
        return 0
    if not rest:
        raise TimeError(f'duration "{shown}": must look like 1h30m, 10s or 300ms')
    total, position = 0, 0
    while position < len(rest):
        part = _PART.match(rest, position)
        assert part is not None  # every piece of the pattern may be empty
        whole, fraction, unit = part[1], part[2] or "", part[3]
        if not whole and not fraction:
            raise TimeError(f'duration "{shown}": must look like 1h30m, 10s or 300ms')
        if not unit:
            raise TimeError(f'duration "{shown}": unit is missing, must be one of ns, us, ms, s, m, h')
        if unit not in _UNITS:
            raise TimeError(f'duration "{shown}": unknown unit "{_short(unit)}", must be ns, us, ms, s, m or h')
        # More digits than an int64 has cannot be in range; int() of endless digits is not even tried.
        if len(whole.lstrip("0")) > 19:
            raise TimeError(f'duration "{shown}": out of range')
        fraction = fraction[:18]
        total += int(whole or "0") * _UNITS[unit] + int(fraction or "0") * _UNITS[unit] // 10 ** len(fraction)
        position = part.end()
    if total > _MAX_DURATION:
        raise TimeError(f'duration "{shown}": out of range')
    return -total if text[0] == "-" else total


def format_duration(seconds: float | Fraction | Decimal) -> str:
    """A Go duration, rounded to nanoseconds: 90 -> 1m30s, 0.3 -> 300ms."""
    try:
        return format_duration_ns(round(Fraction(seconds) * _SECOND))
    except (OverflowError, ValueError):
        raise TimeError(f"duration {seconds}: is not a finite number") from None


def format_duration_ns(nanoseconds: int) -> str:
    """A Go duration: 3600000000000 -> 1h0m0s."""
    sign, left = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if left == 0:
        return "0s"
    if left < _SECOND:
        unit, size = next((u, s) for u, s in (("ms", 10**6), ("\u00b5s", 1000), ("ns", 1)) if left >= s)
        return f"{sign}{_decimal(left, size)}{unit}"
    minutes, left = divmod(left, 60 * _SECOND)
    hours, minutes = divmod(minutes, 60)
    text = f"{_decimal(left, _SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{text}"
    return f"{sign}{minutes}m{text}" if minutes else f"{sign}{text}"


def _decimal(amount: int, size: int) -> str:
    """amount / size without trailing zeros; size is a power of ten."""
    whole, rest = divmod(amount, size)
    digits = str(rest).zfill(len(str(size)) - 1).rstrip("0") if rest else ""
    return f"{whole}.{digits}" if digits else f"{whole}"


def _split(moment: datetime | int) -> tuple[str, int]:
    """The text up to the second, and the nanoseconds within it."""
    nanoseconds = to_nanoseconds(moment) if isinstance(moment, datetime) else moment
    whole = from_nanoseconds(nanoseconds // _SECOND * _SECOND)
    # isoformat, unlike strftime, writes years before 1000 with four digits on every platform.
    return whole.replace(tzinfo=None).isoformat(timespec="seconds"), nanoseconds % _SECOND


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "..."
