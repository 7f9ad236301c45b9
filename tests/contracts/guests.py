"""Subjects of contracts that need a machine with systemd of its own: they restart its services and stop its shutdowns.

They run in guests only (hosts/checks/test_contracts.py), never on the machine of a developer, which may have systemd,
too: the check says in the environment that this is a guest.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

VARIABLE = "PYKUBELET_GUEST"
guest = [
    pytest.mark.guest,
    pytest.mark.skipif(
        VARIABLE not in os.environ or not Path("/run/systemd/system").exists(),
        reason="only in a guest with systemd, by `make hosts`",
    ),
]


def run(*command: str) -> str:
    """A program of the guest; its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
