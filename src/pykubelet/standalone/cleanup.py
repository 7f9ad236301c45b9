"""Ending every container of one private containerd without asking it: for when it is down or must not be trusted.

Finds shims by the socket they were given, ends what they run, then unmounts and removes what is left under the
state folder, and the cgroups that runc noted for these containers, and the groups of all pods that an agent made.
Touches nothing that it cannot tie to the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import re
import shutil
import signal
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pykubelet.kit.clock import Clock
from pykubelet.kit.files import write_atomic
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.cgroups import ROOT_NAME
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.layout import Layout

logger = logging.getLogger(__name__)

DETACH = 2
CGROUPS = Path("/sys/fs/cgroup")
_libc = ctypes.CDLL(None, use_errno=True)


async def remove_containers(layout: Layout, *, clock: Clock, within: float = 30.0) -> None:
    """End every container, then remove mounts, cgroups, sockets and the run folder. Safe to repeat."""
    cgroups = await host_calls.run(partial(noted_cgroups, layout.runc_root), name="finding cgroups", within=60.0)
    sockets = noted_sockets(layout.run)
    try:
        async with asyncio.timeout(within):
            await _end_shims(layout, clock)
            await _remove_cgroups(cgroups, clock)
    except TimeoutError:
        left = [pid for shim in shims(layout.socket) for pid in (shim, *children(shim))]
        raise StandaloneError(f"containers do not end after {within:g} s; processes left: {left}") from None
    await host_calls.run(partial(unmount_below, layout.state_dir), name="unmounting", within=120.0)
    for path in sockets:
        path.unlink(missing_ok=True)
    await host_calls.run(
        partial(shutil.rmtree, layout.run, ignore_errors=True), name="removing the run folder", within=120.0
    )


async def _end_shims(layout: Layout, clock: Clock) -> None:
    while found := shims(layout.socket):
        idle = True
        for shim in found:
            for pid in children(shim):
                # A container's first process takes its namespace with it; without one, orphans become the shim's
                # children and are met in the next round. The shim must live until then, to reap them.
                idle = False
                _kill(pid)
        if idle:
            for shim in found:
                _kill(shim)
        await clock.sleep(0.02)


def shims(containerd_socket: Path) -> list[int]:
    """The shims that were started for this containerd."""
    found = []
    for pid in _processes():
        words = _read(f"/proc/{pid}/cmdline").split(b"\0")
        if b"containerd-shim" in words[0] and bytes(containerd_socket) in words and _state(pid) not in "ZX":
            found.append(pid)
    return found


def children(pid: int) -> list[int]:
    found = []
    for task in _names(f"/proc/{pid}/task"):
        found += [int(word) for word in _read(f"/proc/{pid}/task/{task}/children").split()]
    return found


def noted_cgroups(runc_root: Path) -> list[Path]:
    """The cgroups that runc made for the containers it still knows."""
    found: set[Path] = set()
    for state in runc_root.glob("*/*/state.json"):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.update(Path(path) for path in json.loads(state.read_text())["cgroup_paths"].values() if path)
    return sorted(found, reverse=True)


def noted_sockets(run: Path) -> list[Path]:
    """The sockets of shims, which live outside of our folder."""
    found = []
    for name in run.glob("io.containerd.runtime.v2.task/*/*/address"):
        with contextlib.suppress(OSError):
            found.append(Path(name.read_text().removeprefix("unix://")))
    return found


async def _remove_cgroups(cgroups: Iterable[Path], clock: Clock) -> None:
    for cgroup in cgroups:
        while cgroup.is_dir():
            try:
                cgroup.rmdir()
            except OSError:
                if _has_cgroups(cgroup):  # a nested runtime's, say; not ours to judge
                    break
                await clock.sleep(0.02)


def note_pod_groups(file: Path, root: Path = CGROUPS) -> None:
    """Note, before an agent starts, in which hierarchies it will make the group of all pods.

    A noted group that still exists stays ours; a group without a note belongs to another agent.
    """
    own = {str(group) for group in _noted_groups(file) if group.is_dir()}
    own |= {str(group) for each in hierarchies(root) if not (group := each / ROOT_NAME).exists()}
    write_atomic(file, json.dumps(sorted(own)).encode(), durable=False)


def remove_pod_groups(file: Path) -> None:
    """Remove the groups of pods in our own, from below; one in which something lives stays. Safe to repeat."""
    for top in _noted_groups(file):
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    file.unlink(missing_ok=True)


def hierarchies(root: Path = CGROUPS) -> list[Path]:
    """The one of cgroup v2, or all of v1, each once however many names it has."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return sorted({(root / name).resolve() for name in _names(str(root)) if (root / name).is_dir()})


def _noted_groups(file: Path) -> list[Path]:
    try:
        return [Path(each) for each in json.loads(file.read_text()) if Path(each).name == ROOT_NAME]
    except (OSError, ValueError, TypeError):
        return []


def _has_cgroups(cgroup: Path) -> bool:
    return any(entry.is_dir() for entry in cgroup.iterdir())


def mounts_below(folder: Path, mountinfo: str) -> list[str]:
    """Mount points under `folder` from the text of /proc/self/mountinfo, the last one mounted first."""
    points = [_unescape(line.split(" ")[4]) for line in mountinfo.splitlines()]
    return [point for point in reversed(points) if point.startswith(f"{folder}/")]


def unmount_below(folder: Path) -> None:
    """Unmount everything under the folder."""
    for point in mounts_below(folder, Path("/proc/self/mountinfo").read_text()):
        if _libc.umount2(os.fsencode(point), DETACH) != 0:
            logger.warning("cannot unmount", extra={"path": point, "error": os.strerror(ctypes.get_errno())})


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _processes() -> list[int]:
    return [int(name) for name in _names("/proc") if name.isdigit()]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _state(pid: int) -> str:
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return words[0].decode() if words else "X"
