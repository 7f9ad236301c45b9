"""The host's resolver file, read again only when it changed: pods started in a burst share one reading."""

from __future__ import annotations

import os

from pykubelet.runtime.problems import ConfigProblem
from pykubelet.runtime.spec.dns import Resolver, parse_resolv_conf

MAX_BYTES = 10 << 20


class HostResolver:
    """`path` '' means that pods get nothing of the host's settings."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._resolver = Resolver()

    def read(self) -> Resolver | None:
        """What the file says now; None without one. Raises ConfigProblem when it cannot be read."""
        if not self._path:
            return None
        try:
            info = os.stat(self._path)
            # Managers of this file replace it by rename or write it in place: inode, size and time tell both.
            mark = (info.st_ino, info.st_size, info.st_mtime_ns)
            if mark != self._seen:
                with open(self._path, encoding="utf-8", errors="replace") as file:
                    self._resolver = parse_resolv_conf(file.read(MAX_BYTES))
                self._seen = mark
        except OSError as error:
            raise ConfigProblem(f"cannot read the resolver file {self._path} (resolvConf): {error.strerror}") from error
        return self._resolver
