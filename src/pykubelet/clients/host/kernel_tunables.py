"""The kernel settings that a node relies on: set at the start, or only checked (`protectKernelDefaults`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PROC_SYS = Path("/proc/sys")

WANTED: Mapping[str, int] = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""Memory is given on trust, since limits bound it; no panic for one process, a reboot after a real one; and a key for
each of many containers."""


def check_tunables(root: Path = PROC_SYS) -> list[str]:
    """One line for each setting that is not as wanted."""
    return [problem for name, value in WANTED.items() if (problem := _difference(root, name, value))]


def set_tunables(root: Path = PROC_SYS) -> list[str]:
    """Set what differs; one line for each that the host did not let us set."""
    problems = []
    for name, value in WANTED.items():
        if not _difference(root, name, value):
            continue
        try:
            (root / name).write_text(f"{value}\n")
        except OSError as error:
            problems.append(f"{name} cannot be set to {value}: {error.strerror}")
    return problems


def _difference(root: Path, name: str, wanted: int) -> str:
    try:
        found = (root / name).read_text().strip()
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    return "" if found == str(wanted) else f"{name} is {found}, expected {wanted}"
