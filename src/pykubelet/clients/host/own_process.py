"""What the agent may know and change about its own process."""

from __future__ import annotations

import resource
from pathlib import Path

from pykubelet.clients.host.port import AlarmRefused


def set_oom_score(score: int, proc: Path = Path("/proc")) -> None:
    """How gladly the kernel kills the agent when memory is out. Raises AlarmRefused; lowering needs a right."""
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
