"""README and docs as a reader works through them: every command of ours, typed into a shell as it is written."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pykubelet.standalone.packer import File, Image, architecture, pack
from tests.bed.documents import commands, documents, filled, is_run
from tests.bed.machine import REPO, Machine, a_machine, wait_for

pytestmark = pytest.mark.node

GOES_ON = re.compile(r" (-w|-f)\b|port-forward")
"""Until a person has seen enough."""
FOREGROUND = re.compile(r"pykubelet up (?!.*--detach)")


class Reader:
    """Types commands into a shell on a machine of its own."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        folder = Path(sys.executable).parent
        tar = machine.folder / "image.tar"
        image = Image(name="localhost/loaded:1", entries={"hello": File(b"hello")})
        tar.write_bytes(pack(image, architecture()).data)
        self._environment = machine.environment | {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "IMAGE_TAR": str(tar),
            "IMAGE": "localhost/loaded:1",
        }
        self._foreground: subprocess.Popen[str] | None = None

    def types(self, command: str) -> None:
        print(f"$ {command}")
        words = filled(command).replace(".venv/bin/", f"{shlex.quote(str(Path(sys.executable).parent))}/")
        if FOREGROUND.search(command):
            self._foreground = self._open(words)
            self.machine.until_running("hello")
            return
        if re.search(r"exec|logs|explain|describe|restart|top|port-forward", command):
            self.machine.until_running("hello")
        if GOES_ON.search(command):
            self._looks(words)
        elif "restart" in command:
            before = self.machine.container_ids()["hello"]
            self._runs(words)
            wait_for(lambda: self.machine.container_ids()["hello"] != before, "the old container is told to be gone")
        else:
            self._runs(words)

    def _runs(self, words: str) -> None:
        stdin = subprocess.DEVNULL
        if "-it " in words:
            words = shlex.join([shutil.which("script") or "script", "-qec", f"{words} -c 'exit 0'", "/dev/null"])
        done = subprocess.run(
            ["bash", "-c", words], env=self._environment, cwd=REPO, stdin=stdin, capture_output=True, text=True,
            timeout=180, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        # `explain` ends with 4 for a pod that is not well; one that was just restarted may be such a one.
        refused = "image pull" in words and "not found" not in said
        good = (0, 4) if "explain" in words else (1,) if refused else (0,)
        assert done.returncode in good, f"{words} ended with {done.returncode}: {said}"
        assert "Traceback" not in said, said

    def _looks(self, words: str) -> None:
        """Until something is shown, then Ctrl-C."""
        process = self._open(words.replace("port-forward hello 8080", "port-forward hello :8080"))
        assert process.stdout is not None
        too_late = threading.Timer(60, os.killpg, (process.pid, signal.SIGKILL))
        too_late.start()
        try:
            assert process.stdout.readline(), f"{words} shows nothing"
            time.sleep(0.1)  # a reader's eye needs longer than that
        finally:
            too_late.cancel()
            os.killpg(process.pid, signal.SIGINT)
            status = process.wait(30)
            rest = process.stdout.read()
            process.stdout.close()
        assert status in (0, 130, -signal.SIGINT), f"{words} ended with {status}: {rest}"
        assert "Traceback" not in rest, rest

    def _open(self, words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f"exec {words}"], env=self._environment, cwd=REPO, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def leaves(self) -> None:
        """Whatever was started in the foreground has ended."""
        if self._foreground is not None and self._foreground.stdout is not None:
            self._foreground.communicate(timeout=60)


def test_every_command_works_as_written() -> None:
    told = {path.name: [each for each in commands(path.read_text()) if is_run(each)] for path in documents(REPO)}
    assert len(told["README.md"]) > 5 and len(told["standalone.md"]) > 15 and len(told["troubleshooting.md"]) > 10
    last = told["standalone.md"].pop(told["standalone.md"].index("pykubelet down"))
    readme = told.pop("README.md")
    with a_machine() as machine:
        reader = Reader(machine)
        for command in readme:
            reader.types(command)
        reader.leaves()
        begin = told.pop("standalone.md")
        for command in [*begin, *(each for of in told.values() for each in of if each not in begin)]:
            reader.types(command)
        reader.types(last)
        wait_for(lambda: machine.state.agent() is None, "the agent is gone")
