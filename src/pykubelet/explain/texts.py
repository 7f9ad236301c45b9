"""Texts for times, counts, steps of a pod's life and first lines."""

from __future__ import annotations

from datetime import UTC, datetime

from pykubelet.recorder import Step


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


def step_text(step: Step, subject: str) -> str:
    text = STEP_TEXTS[step]
    return f"{text} ({subject})" if subject else text


STEP_TEXTS = {
    Step.SEEN: "the agent saw it",
    Step.ADMISSION: "admission",
    Step.CGROUP: "making its cgroup",
    Step.VOLUMES: "mounting volumes",
    Step.CLAIMS: "getting its devices and claims",
    Step.TURN: "waiting for its turn at the runtime",
    Step.SANDBOX: "making the sandbox",
    Step.PULL: "getting the image",
    Step.CREATE: "creating the container",
    Step.START: "starting the container",
    Step.HOOK: "running a hook",
    Step.PROBE: "probing",
    Step.EXIT: "a container ended",
    Step.BACKOFF: "waiting before the next start",
    Step.OOM: "the kernel killed a process",
    Step.EVICTION: "eviction",
    Step.KILL: "stopping",
    Step.CLEANUP: "giving back what it held",
    Step.SYNC: "bringing it to what its spec says",
}
