"""A cgroup of our own above all pods of one run (`cgroupRoot`), in every hierarchy of the machine, v1 or v2.

Gives runs that share a machine a private place, and makes "no cgroup is left over" a question that can be answered.
Needs no part of the agent and no pytest: the benchmark uses it as well.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


class CgroupTree:
    """`/NAME` in each cgroup file system; `make` before use, `remove` after it."""

    def __init__(self, name: str) -> None:
        self.name = name
        """As `cgroupRoot` wants it."""
        self._roots = [mount / name.strip("/") for mount in cgroup_mounts()]

    def make(self) -> None:
        for root in self._roots:
            root.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):
                # A v1 cpuset without processors takes no process at all.
                if root.parent.name == "cpuset" and not (root / file).read_text().strip():
                    (root / file).write_text((root.parent / file).read_text())

    def groups(self) -> dict[str, set[str]]:
        """Every cgroup below, whatever the hierarchy, as paths from here; with the commands that run in it."""
        found: dict[str, set[str]] = {}
        for root in self._roots:
            for folder, _, _ in os.walk(root):
                path = os.path.relpath(folder, root)
                found.setdefault(path, set()).update(_commands(Path(folder)))
        found.pop(".", None)
        return found

    def processes(self, name: str) -> set[int]:
        """Of the cgroups with this name, whatever they are in."""
        found: set[int] = set()
        for root in self._roots:
            for folder, _, _ in os.walk(root):
                if os.path.basename(folder) == name:
                    found.update(map(int, Path(folder, "cgroup.procs").read_text().split()))
        return found

    def remove(self, within: float = 30.0) -> None:
        """End what still runs in here and take the tree away."""
        deadline = time.monotonic() + within
        while left := [root for root in self._roots if root.exists()]:
            for root in left:
                for folder, _, _ in os.walk(root, topdown=False):
                    _end(Path(folder))
            if time.monotonic() > deadline:
                raise RuntimeError(f"cgroups do not go away: {', '.join(map(str, left))}")
            time.sleep(0.02)


def cgroup_mounts() -> list[Path]:
    """Mount points of cgroup file systems, v1 and v2."""
    lines = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(words[1]) for words in lines if words[2] in ("cgroup", "cgroup2")]


def _commands(folder: Path) -> list[str]:
    try:
        pids = (folder / "cgroup.procs").read_text().split()
        return [Path("/proc", pid, "cmdline").read_text().replace("\0", " ").strip()[:100] for pid in pids]
    except OSError:  # gone meanwhile
        return []


def _end(folder: Path) -> None:
    try:
        for pid in (folder / "cgroup.procs").read_text().split():
            os.kill(int(pid), signal.SIGKILL)
        folder.rmdir()
    except OSError:
        pass  # still busy, or gone: the next round shows
