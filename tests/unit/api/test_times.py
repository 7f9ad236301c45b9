"""RFC 3339 times and Go durations, both ways."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api.times import (
    TimeError,
    format_duration,
    format_duration_ns,
    format_micro_time,
    format_nano_time,
    format_time,
    from_nanoseconds,
    parse_duration,
    parse_duration_ns,
    parse_nano_time,
    parse_time,
    to_nanoseconds,
)

NOON = datetime(2024, 5, 1, 12, 0, 0, tzinfo=UTC)
NOON_NS = 1714564800 * 10**9

moments = st.integers(-62_135_596_800 * 10**9, 253_402_300_800 * 10**9 - 1)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2024-05-01T12:00:00Z", NOON_NS),
        ("2024-05-01T14:00:00+02:00", NOON_NS),
        ("2024-05-01T06:30:00-05:30", NOON_NS),
        ("2024-05-01T12:00:00.5Z", NOON_NS + 500_000_000),
        ("2024-05-01T12:00:00.123456789Z", NOON_NS + 123_456_789),
        ("2024-05-01T12:00:00.1234567899Z", NOON_NS + 123_456_789),
        ("1969-12-31T23:59:59.5Z", -500_000_000),
        ("0001-01-01T00:00:00Z", -62_135_596_800 * 10**9),
    ],
)
def test_parsing(text: str, nanoseconds: int) -> None:
    assert parse_nano_time(text) == nanoseconds
    assert parse_time(text) == from_nanoseconds(nanoseconds)
    assert parse_time(text).utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    "text",
    [
        "", "now", "2024-05-01", "2024-05-01T12:00:00", "2024-05-01 12:00:00Z", "2024-05-01t12:00:00z",
        "2024-13-01T12:00:00Z", "2024-02-30T12:00:00Z", "2024-05-01T24:00:01Z", "2024-05-01T12:00:60Z",
        "2024-05-01T12:00:00.Z", "2024-05-01T12:00:00+25:00", "0000-01-01T00:00:00Z", "0001-01-01T00:00:00+01:00",
        "9999-12-31T23:59:59-01:00", "2024-05-01T12:00:00Z\n", "x" * 1000,
    ],
)  # fmt: skip
def test_what_is_no_time_is_refused_with_the_text_shown(text: str) -> None:
    with pytest.raises(TimeError, match=r"^time "):
        parse_time(text)


def test_formats() -> None:
    moment = NOON.replace(microsecond=250_000)
    assert format_time(moment) == "2024-05-01T12:00:00Z"
    assert format_micro_time(moment) == "2024-05-01T12:00:00.250000Z"
    assert format_nano_time(moment) == "2024-05-01T12:00:00.25Z"
    assert format_nano_time(moment, fixed=True) == "2024-05-01T12:00:00.250000000Z"
    assert format_nano_time(NOON_NS) == "2024-05-01T12:00:00Z"
    assert format_nano_time(NOON_NS + 7) == "2024-05-01T12:00:00.000000007Z"
    assert format_micro_time(NOON_NS + 1999) == "2024-05-01T12:00:00.000001Z"
    assert format_time(-1) == "1969-12-31T23:59:59Z"
    assert format_time(NOON.astimezone(timezone(timedelta(hours=2)))) == "2024-05-01T12:00:00Z"
    assert format_time(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00Z"


def test_a_time_without_zone_or_outside_the_calendar_is_refused() -> None:
    for refuse in (format_time, to_nanoseconds):
        with pytest.raises(TimeError, match="no time zone"):
            refuse(datetime(2024, 5, 1))
    with pytest.raises(TimeError, match="outside"):
        format_time(10**30)


@given(moments)
def test_nanoseconds_survive_a_round_trip(nanoseconds: int) -> None:
    assert parse_nano_time(format_nano_time(nanoseconds)) == nanoseconds
    assert parse_nano_time(format_nano_time(nanoseconds, fixed=True)) == nanoseconds
    assert parse_nano_time(format_micro_time(nanoseconds)) == nanoseconds // 1000 * 1000
    assert to_nanoseconds(from_nanoseconds(nanoseconds)) == nanoseconds // 1000 * 1000


@pytest.mark.parametrize(
    ("text", "nanoseconds", "printed"),
    [
        ("0", 0, "0s"), ("0s", 0, "0s"), ("-0", 0, "0s"), ("1s", 10**9, "1s"), ("1m20s", 80 * 10**9, "1m20s"),
        ("1h0m0s", 3600 * 10**9, "1h0m0s"), ("1h", 3600 * 10**9, "1h0m0s"), ("90m", 5400 * 10**9, "1h30m0s"),
        ("300ms", 300 * 10**6, "300ms"), ("1.5s", 1_500_000_000, "1.5s"), (".5s", 500_000_000, "500ms"),
        ("1.s", 10**9, "1s"), ("10us", 10_000, "10µs"), ("1.5µs", 1500, "1.5µs"), ("1μs", 1000, "1µs"),
        ("7ns", 7, "7ns"), ("-1m30s", -90 * 10**9, "-1m30s"), ("+5s", 5 * 10**9, "5s"),
        ("24h", 86400 * 10**9, "24h0m0s"),
        ("1m0.000000001s", 60 * 10**9 + 1, "1m0.000000001s"), ("1h1h", 7200 * 10**9, "2h0m0s"),
    ],
)  # fmt: skip
def test_durations(text: str, nanoseconds: int, printed: str) -> None:
    assert parse_duration_ns(text) == nanoseconds
    assert format_duration_ns(nanoseconds) == printed


def test_durations_in_seconds() -> None:
    assert parse_duration("1m20s") == 80.0
    assert parse_duration("300ms") == 0.3
    assert format_duration(0.3) == "300ms"
    assert format_duration(3600) == "1h0m0s"
    with pytest.raises(TimeError, match="finite"):
        format_duration(float("inf"))
    with pytest.raises(TimeError, match="finite"):
        format_duration(float("nan"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must look like"), ("-", "must look like"), ("s", "must look like"), (".s", "must look like"),
        ("3", "unit is missing"), ("1h3", "unit is missing"), ("5 s", "unknown unit"), ("1d", "unknown unit"),
        ("1.2.3s", "unit is missing"), ("300000h1x", "unknown unit"), ("9" * 5000 + "s", "out of range"),
        ("3000000h", "out of range"), ("--1s", "must look like"), ("1s ", "unknown unit"), ("٣s", "must look like"),
    ],
)  # fmt: skip
def test_bad_durations_are_refused_with_the_reason(text: str, says: str) -> None:
    with pytest.raises(TimeError, match=says):
        parse_duration(text)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_duration_survives_a_round_trip(nanoseconds: int) -> None:
    assert parse_duration_ns(format_duration_ns(nanoseconds)) == nanoseconds


@given(st.text(max_size=20) | st.text("0123456789.+-hmsnuµ", max_size=12))
def test_any_text_is_a_duration_or_refused_in_our_words(text: str) -> None:
    try:
        parse_duration(text)
    except TimeError:
        return
