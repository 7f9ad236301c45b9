"""The agent's own process: what it uses and may use, its lock file, and the host ids set aside for its pods."""

from __future__ import annotations

import fcntl
import logging
import os
import pwd
import resource
import shutil
import subprocess
from pathlib import Path

from asyncinotify import Inotify, Mask

from pykubelet.clients.host.port import AlarmRefused
from pykubelet.model.errors import PykubeletError


def set_oom_score(score: int, proc: Path = Path("/proc")) -> None:
    """Set our oom_score_adj; lowering it needs CAP_SYS_RESOURCE. Raises AlarmRefused."""
    path = proc / "self" / "oom_score_adj"
    try:
        path.write_text(str(score))
    except OSError as error:
        raise AlarmRefused(f"{path}: {error.strerror}") from error


def allow_open_files(wanted: int) -> int:
    """Let this process have that many files open, or as many as the host allows; returns how many it may.

    Raising the hard limit needs a right that containers and some hosts do not give.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limits in ((wanted, wanted), (min(wanted, hard) if hard != resource.RLIM_INFINITY else wanted, hard)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        except (OSError, ValueError):
            continue
        return limits[0]
    return soft


def own_cgroup(proc: Path = Path("/proc")) -> str:
    """The group the agent runs in, if its CPU and memory are counted there; empty when only the machine's are."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return ""
    groups: dict[str, str] = {}
    for line in lines:
        _, controllers, path = line.split(":", 2)
        groups.update({name: path for name in controllers.split(",")} if controllers else {"": path})
    if "memory" in groups or "cpu" in groups:  # v1, where each controller has its own tree
        group = groups.get("memory", "") if groups.get("memory") == groups.get("cpu") else ""
    else:
        group = groups.get("", "")
    return group if group != "/" else ""


PROC = Path("/proc")


def process_stats(proc: Path = PROC) -> dict[str, float]:
    """Names without the prefix `process_`."""
    fields = (proc / "self/stat").read_text().rpartition(")")[2].split()
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    boot = next(line for line in (proc / "stat").read_text().splitlines() if line.startswith("btime"))
    return {
        "cpu_seconds_total": (int(fields[11]) + int(fields[12])) / tick,
        "resident_memory_bytes": float(int(fields[21]) * page),
        "virtual_memory_bytes": float(fields[20]),
        "start_time_seconds": int(boot.split()[1]) + int(fields[19]) / tick,
        "open_fds": float(len(os.listdir(proc / "self/fd"))),
        "max_fds": float(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
    }


logger = logging.getLogger(__name__)


class LockFailed(PykubeletError):
    """The lock file cannot be opened, watched or locked."""


class LockFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._watch: Inotify | None = None

    def acquire(self, *, watch: bool = False) -> None:
        """Hold the lock until the process ends; waits for the current holder. Raises LockFailed.

        With `watch` every opening of the file from here on is noticed (`contended`).
        """
        try:
            descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            if watch:
                self._watch = Inotify()
                self._watch.add_watch(self.path, Mask.OPEN | Mask.DELETE_SELF)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                logger.warning("waiting for the lock file, another agent holds it", extra={"path": str(self.path)})
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            raise LockFailed(f"--lock-file: {self.path}: {error.strerror}") from error

    async def contended(self) -> None:
        """Returns when another process opened or removed the file since it was acquired with `watch`."""
        if self._watch is None:
            raise RuntimeError("the lock file is not watched")
        await self._watch.get()


USER = "kubelet"
TOOL = "getsubids"
ANSWER_WITHIN = 30.0


def subordinate_ids() -> tuple[int, int] | None:
    """(first, length); None when nothing is set aside. A user without a readable range is an error."""
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return None
    tool = shutil.which(TOOL)
    if tool is None:
        return None
    uids, gids = _ask(tool, USER), _ask(tool, "-g", USER)
    if uids != gids:
        raise PykubeletError(f'mismatched subuids and subgids for user "{USER}": {uids!r} and {gids!r}')
    return parse_subids(uids)


def parse_subids(text: str) -> tuple[int, int]:
    """The one line of `getsubids`: `0: kubelet 65536 7208960`."""
    lines = text.strip("\n").split("\n")
    words = lines[0].split()
    if len(lines) != 1:
        raise PykubeletError(f"{TOOL}: {text!r} must be a single line")
    if len(words) != 4 or not (words[2].isdigit() and words[3].isdigit()):
        raise PykubeletError(f"{TOOL}: invalid line {lines[0]!r}")
    first, length = int(words[2]), int(words[3])
    if first + length > 1 << 32:
        raise PykubeletError(f"{TOOL}: {lines[0]!r} goes beyond 32 bits")
    return first, length


def _ask(*command: str) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_WITHIN, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PykubeletError(f'error retrieving additional ids for user "{USER}": {error}') from error
    return answer.stdout
