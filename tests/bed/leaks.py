"""Whether a run left something behind: processes, mounts (network namespaces are mounts), its bridge, firewall rules.

Does not cover cgroups of pods: other runs on the machine use the same parents, so their tests check their own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Snapshot:
    cgroups: frozenset[str]


def snapshot() -> Snapshot:
    return Snapshot(cgroups=frozenset(_top_cgroups()))


def check(state_dir: Path, network: str, before: Snapshot) -> None:
    """Fail when anything that belongs to `state_dir` is still there. Takes away empty cgroups made meanwhile."""
    found = [f"process {line}" for line in processes_naming(str(state_dir))]
    found += [f"mount {line}" for line in _mounts() if str(state_dir) in line]
    if Path("/sys/class/net", network).exists():
        found.append(f"bridge {network}")
    found += [f"firewall rule {rule}" for rule in _firewall_rules() if network in rule]
    _remove_empty(frozenset(_top_cgroups()) - before.cgroups)
    if found:
        pytest.fail("left behind by the test run:\n  " + "\n  ".join(found), pytrace=False)


def processes_naming(text: str) -> list[str]:
    """Processes whose command line holds `text`, but for this one."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                command = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in command:
                found.append(f"{name} {command[:200]}")
    return found


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _firewall_rules() -> list[str]:
    try:
        listed = subprocess.run(["iptables", "-w", "-t", "nat", "-S"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return listed.stdout.splitlines()


def _top_cgroups() -> list[str]:
    """The cgroup in which containerd puts containers without a parent, in each hierarchy, v1 or v2."""
    return [str(path) for pattern in ("k8s.io", "*/k8s.io") for path in CGROUPS.glob(pattern)]


def _remove_empty(folders: frozenset[str]) -> None:
    """Another run on this machine may be using them, too: then they are not empty and stay."""
    for folder in folders:
        with contextlib.suppress(OSError):
            Path(folder).rmdir()
