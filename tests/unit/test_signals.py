"""The test run does not depend on how it was started: a background job of a shell has SIGINT ignored."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bed.machine import REPO

CHILD = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
PARENT = f"""
import subprocess, sys
from tests.conftest import give_children_signals
give_children_signals()
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""


@pytest.mark.parametrize("before", ["trap '' INT; ", ""])
def test_programs_of_tests_can_be_interrupted(before: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'{before}exec "$0" -c "$1"', sys.executable, PARENT],
        cwd=REPO,
        env={"PYTHONPATH": f"{REPO}:{REPO / 'src'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
