"""A machine that `pykubelet up` runs on: one state folder, and every command in a process of its own, as people use it.

`a_machine` makes one and sees to it that nothing of it is left in the end. Every method blocks.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pykubelet.cli.up import UpState
from pykubelet.standalone.cleanup import unmount_below
from tests.bed import leaks
from tests.bed.parts import need_root

REPO = Path(__file__).parents[2]
PYKUBELET = [sys.executable, "-m", "pykubelet"]
HELLO = REPO / "examples" / "hello.yaml"
T = TypeVar("T")


class Machine:
    """One state folder; every command runs in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.state = UpState(folder / "s")
        self.folder = folder
        self.manifests = folder / "manifests"
        self.manifests.mkdir()
        self.environment = {**os.environ, "PYKUBELET_STATE_DIR": str(self.state.folder)}
        self._foreground: subprocess.Popen[str] | None = None

    def run(self, *words: str, status: int | None = 0, stdin: str = "", within: float = 90.0) -> str:
        """What the command said; standard error follows standard output."""
        done = subprocess.run(
            [*PYKUBELET, *words], input=stdin, capture_output=True, text=True, timeout=within, env=self.environment,
            cwd=REPO, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert "Traceback" not in said, said
        assert status is None or done.returncode == status, f"{words} ended with {done.returncode}: {said}"
        return said

    def start(self, *paths: Path) -> subprocess.Popen[str]:
        """`up` in the foreground, its output in a file."""
        with (self.folder / "out").open("a") as out:
            self._foreground = subprocess.Popen(
                [*PYKUBELET, "up", *(str(path) for path in paths)], stdout=out, stderr=out, text=True,
                env=self.environment, cwd=REPO,
            )  # fmt: skip
        return self._foreground

    def said(self) -> str:
        return (self.folder / "out").read_text()

    def put(self, pod: dict[str, Any]) -> None:
        draft = self.folder / "draft"
        draft.write_text(json.dumps(pod))
        draft.rename(self.manifests / f"{pod['metadata']['name']}.json")

    def pods(self) -> dict[str, dict[str, Any]]:
        listed = json.loads(self.run("get", "pods", "-o", "json"))
        return {pod["metadata"]["name"].rpartition("-")[0]: pod for pod in listed["items"]}

    def container_ids(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, pod in self.pods().items():
            found[name] = [each.get("containerID", "") for each in pod["status"].get("containerStatuses", [])]
        return found

    def until_running(self, *names: str, within: float = 120.0) -> None:
        def all_run() -> bool:
            try:
                pods = self.pods()
            except AssertionError:
                return False
            return all(
                name in pods
                and any(c["type"] == "Ready" and c["status"] == "True" for c in pods[name]["status"]["conditions"])
                for name in names
            )

        wait_for(all_run, f"{names} run", within)

    def clean(self) -> None:
        agent = self.state.agent()
        if agent is not None:
            os.kill(agent.pid, signal.SIGKILL)
        if self._foreground is not None:
            self._foreground.wait(20)
        self.run("down", status=None)
        unmount_below(self.state.folder)


def wait_for(question: Callable[[], T], what: str, within: float = 60.0) -> T:
    end = time.monotonic() + within
    while not (answer := question()):
        assert time.monotonic() < end, f"not within {within:g} s: {what}"
        time.sleep(0.05)
    return answer


@contextmanager
def a_machine() -> Iterator[Machine]:
    need_root()
    before = leaks.snapshot()
    folder = Path(tempfile.mkdtemp(prefix="pklup-"))
    machine = Machine(folder)
    try:
        yield machine
    finally:
        machine.clean()
        network = machine.state.runtime.network_name
        shutil.rmtree(folder, ignore_errors=True)
    leaks.check(folder, network, before)
