"""The test run does not depend on how it was started: a background job of a shell has SIGINT ignored."""

from __future__ import annotations

import signal
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


@pytest.mark.parametrize("inherited", [signal.SIG_IGN, signal.SIG_DFL])
def test_programs_of_tests_can_be_interrupted(inherited: signal.Handlers) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        cwd=REPO,
        env={"PYTHONPATH": f"{REPO}:{REPO / 'src'}"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited) and None,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
