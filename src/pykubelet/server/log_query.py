"""The query of node log query: parsed, checked, and turned into a journalctl command. Pure.

Limits are upstream's: four services, names of 256 characters, one file alone, 100,000 lines.
"""

from __future__ import annotations

import re

from msgspec import Struct

from pykubelet.api.times import parse_nano_time
from pykubelet.server.calls import Call, Refused

MAX_SERVICES = 4
MAX_NAME = 256
MAX_LINES = 100_000
SERVICE = re.compile(r"[a-zA-Z\-_.:0-9@]+")
KNOWN = frozenset({"query", "sinceTime", "untilTime", "tailLines", "pattern", "boot"})
BILLION = 1_000_000_000


class NodeLogQuery(Struct, frozen=True, kw_only=True):
    services: tuple[str, ...] = ()
    file: str = ""
    since: int | None = None
    """Unix seconds, as journalctl takes them with an @."""
    until: int | None = None
    tail_lines: int | None = None
    pattern: str = ""
    boot: int | None = None


def node_log_query(call: Call) -> NodeLogQuery:
    """Raises Refused: 400 for what cannot be read, 406 for what is not allowed."""
    words = [word for word in call.all("query") if word]
    files = [word for word in words if "/" in word or "\\" in word]
    query = NodeLogQuery(
        services=tuple(word for word in words if word not in files),
        file=files[0] if files else "",
        since=_time(call, "sinceTime"),
        until=_time(call, "untilTime"),
        tail_lines=_integer(call, "tailLines"),
        pattern=call.get("pattern"),
        boot=_integer(call, "boot"),
    )
    if problem := _problem(query, files):
        raise Refused(406, problem + "\n")
    return query


def _problem(query: NodeLogQuery, files: list[str]) -> str:
    options = (query.since, query.until, query.tail_lines, query.boot)
    restricted = any(option is not None for option in options) or bool(query.pattern)
    checks = [
        (not files and not query.services, "query: Required value: at least one service or file"),
        (len(files) > 1, "query: Invalid value: cannot specify more than one file"),
        (bool(files) and bool(query.services), "query: Invalid value: cannot specify a file and a service"),
        (bool(files) and restricted, "query: Invalid value: cannot specify file with other options"),
        (".." in query.file.replace("\\", "/").split("/"), "query: Invalid value: path cannot leave the log folder"),
        (len(query.services) > MAX_SERVICES, f"query: Too many: {len(query.services)}: must have at most 4 items"),
        (any(len(name) > MAX_NAME for name in query.services), "query: Too long: must have at most 256 characters"),
        (
            any(not SERVICE.fullmatch(name) or name.startswith("-") for name in query.services),
            "query: Invalid value: input contains unsupported characters",
        ),
        (
            query.since is not None and query.until is not None and query.since > query.until,
            "untilTime: Invalid value: must be after `sinceTime`",
        ),
        (
            query.tail_lines is not None and not 0 <= query.tail_lines <= MAX_LINES,
            f"tailLines: Invalid value: {query.tail_lines}: must be between 0 and 100000, inclusive",
        ),
        (query.boot is not None and query.boot > 0, f"boot: Invalid value: {query.boot}: must be less than 1"),
        ("\0" in query.pattern + query.file, "pattern: Invalid value: input contains unsupported characters"),
    ]
    return next((text for wrong, text in checks if wrong), "")


def journal_command(program: str, query: NodeLogQuery, service: str) -> list[str]:
    words = [program, "--utc", "--no-pager", "--output=short-precise"]
    if query.since is not None:
        words.append(f"--since=@{query.since}")
    if query.until is not None:
        words.append(f"--until=@{query.until}")
    if query.tail_lines is not None:
        words += ["--pager-end", f"--lines={query.tail_lines}"]
    words.append(f"--unit={service}")
    if query.pattern:
        words.append(f"--grep={query.pattern}")
    if query.boot is not None:
        words += ["--boot", str(query.boot)]
    return words


def _time(call: Call, name: str) -> int | None:
    text = call.get(name)
    if not text:
        return None
    try:
        return parse_nano_time(text) // BILLION
    except ValueError:
        raise Refused(400, f"{name}: {text[:40]!r} is not a time\n") from None


def _integer(call: Call, name: str) -> int | None:
    text = call.get(name)
    if not text:
        return None
    if not re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII):
        raise Refused(400, f"{name}: {text[:40]!r} is not a number\n")
    return int(text)
