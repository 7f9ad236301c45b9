"""What the kernel says when it kills a process for memory. Pure; one line of its log in, a kill out.

Since 5.0 one line says it all (`oom-kill:constraint=...`). Older kernels say it in two: in which group, then whom.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

MODERN: Final = re.compile(
    r"^oom-kill:constraint=(?P<constraint>[^,]*),nodemask=.*,mems_allowed=.*?,"
    r"(?:global_oom|oom_memcg=(?P<limit>.*?)),task_memcg=(?P<group>.*?),task=(?P<comm>.*),pid=(?P<pid>\d+),uid=\d+$"
)
OLD_GROUP: Final = re.compile(r"^Task in (?P<group>.*) killed as a result of limit of (?P<limit>.*)$")
KILLED: Final = re.compile(r"(?:^|: )Killed process (?P<pid>\d+),? \((?P<comm>.*?)\)")


class Kill(Struct, frozen=True, kw_only=True):
    process: str
    """Its name, as the kernel keeps it: 15 characters at most."""
    pid: int
    group: str
    """The cgroup the process was in."""
    limit: str
    """The cgroup whose limit was hit; '/' when the machine itself was out of memory."""


class KillReader:
    """Turns lines into kills; remembers only what an older kernel said in the line before."""

    def __init__(self) -> None:
        self._group: re.Match[str] | None = None
        self._told: int | None = None
        """The pid that a modern line told; the line that follows it repeats it."""

    def read(self, line: str) -> Kill | None:
        if (found := MODERN.match(line)) is not None:
            self._group, self._told = None, int(found["pid"])
            return Kill(process=found["comm"], pid=int(found["pid"]), group=found["group"], limit=found["limit"] or "/")
        if (found := OLD_GROUP.match(line)) is not None:
            self._group = found
            return None
        if (found := KILLED.search(line)) is None:
            return None
        group, self._group = self._group, None
        if self._told == int(found["pid"]):
            self._told = None
            return None
        where, limit = (group["group"], group["limit"]) if group is not None else ("/", "/")
        return Kill(process=found["comm"], pid=int(found["pid"]), group=where, limit=limit)
