"""Texts for times, counts and first lines."""

from __future__ import annotations

from datetime import UTC, datetime


def span(seconds: float) -> str:
    """`40 ms`, `4.5 s`, `12 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`: two units at most."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms" if seconds > 0 else "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two(whole, 60, "min", "s")
    if whole < 86400:
        return _two(whole // 60, 60, "h", "min")
    return _two(whole // 3600, 24, "d", "h")


def _two(amount: int, size: int, big: str, small: str) -> str:
    rest = amount % size
    return f"{amount // size} {big} {rest} {small}" if rest else f"{amount // size} {big}"


def clock_time(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%H:%M:%S} UTC"


def when(seconds: float | None) -> str:
    if seconds is None:
        return "when something changes"
    return "now" if seconds < 1 else f"in {span(seconds)}"


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def ordinal(number: int) -> str:
    """1st, 2nd, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def first_line(text: str, limit: int = 300) -> str:
    line = text.strip().split("\n", 1)[0].strip()
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
