"""The query of /containerLogs as upstream understands it: what is undecodable (400) and what is not allowed (422).

Pure. Does not cover: which container's log is meant (logs.py).
"""

from __future__ import annotations

from msgspec import Struct

from pykubelet.api.times import parse_nano_time
from pykubelet.server.calls import Call, Refused

STREAMS = {"All": None, "Stdout": "stdout", "Stderr": "stderr"}
MAX_INT64 = (1 << 63) - 1
BILLION = 1_000_000_000


class LogOptions(Struct, frozen=True, kw_only=True):
    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    since_ns: int | None = None
    """Unix nanoseconds."""
    tail_lines: int | None = None
    limit_bytes: int | None = None
    stream: str | None = None
    """stdout or stderr; None is both."""


def log_options(call: Call, *, now_ns: int, split_streams: bool) -> LogOptions:
    """Raises Refused: 400 for what cannot be read, 422 for what makes no sense."""
    since_seconds = _number(call, "sinceSeconds")
    since_time = call.get("sinceTime")
    tail = _number(call, "tailLines")
    if (legacy := call.get("tail")) and tail is None and legacy != "all":
        tail = _int64(legacy, "tail")
    limit = _number(call, "limitBytes")
    stream = call.get("stream") or "All"
    problems = []
    if stream not in STREAMS:
        problems.append(f'stream: Unsupported value: "{stream[:40]}": supported values: "All", "Stdout", "Stderr"')
    elif stream != "All" and not split_streams:
        problems.append("stream: Forbidden: may not be specified")
    elif stream != "All" and tail is not None:
        problems.append("tailLines: Forbidden: `tailLines` and specific `stream` are mutually exclusive for now")
    if tail is not None and tail < 0:
        problems.append(f"tailLines: Invalid value: {tail}: must be greater than or equal to 0")
    if limit is not None and limit < 1:
        problems.append(f"limitBytes: Invalid value: {limit}: must be greater than 0")
    if since_seconds is not None and since_time:
        problems.append("sinceSeconds: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified")
    elif since_seconds is not None and since_seconds < 1:
        problems.append(f"sinceSeconds: Invalid value: {since_seconds}: must be greater than 0")
    if problems:
        raise Refused(422, _invalid(problems))
    return LogOptions(
        follow=_flag(call, "follow"),
        previous=_flag(call, "previous"),
        timestamps=_flag(call, "timestamps"),
        since_ns=now_ns - since_seconds * BILLION if since_seconds is not None else _time(since_time),
        tail_lines=tail,
        limit_bytes=limit,
        stream=STREAMS[stream],
    )


def _invalid(problems: list[str]) -> str:
    text = problems[0] if len(problems) == 1 else "[" + ", ".join(problems) + "]"
    return f'PodLogOptions "" is invalid: {text}'


def _flag(call: Call, name: str) -> bool:
    """Upstream's reading: present is true unless the value says otherwise."""
    if not call.has(name):
        return False
    return call.get(name).lower() not in ("false", "0")


def _number(call: Call, name: str) -> int | None:
    text = call.get(name)
    return _int64(text, name) if text else None


def _int64(text: str, name: str) -> int:
    try:
        # int() also takes underscores and blanks, which no other reader of this query does.
        value = int(text) if text.removeprefix("-").isascii() and text.removeprefix("-").isdigit() else None
    except ValueError:
        value = None
    if value is None or not -MAX_INT64 - 1 <= value <= MAX_INT64:
        raise Refused(400, f'{{"message": "Unable to decode query.", "field": "{name}"}}')
    return value


def _time(text: str) -> int | None:
    if not text:
        return None
    try:
        return parse_nano_time(text)
    except ValueError:
        raise Refused(400, '{"message": "Unable to decode query.", "field": "sinceTime"}') from None
