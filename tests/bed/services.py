"""Programs that the bed keeps running: started with a log file, waited for, always ended, even if pytest is killed."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.bed.parts import cannot

LAST_LINES = 15


class Service:
    """One program of the bed."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.log_file = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not started"
        return self._process.pid

    def start(self) -> None:
        # The kernel ends the program when pytest is gone: nothing of ours may outlive a killed run.
        guard = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, *self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    def wait_for(self, what: str, holds: Callable[[], bool], within: float = 60.0) -> None:
        deadline = time.monotonic() + within
        while not holds():
            if not self.running:
                cannot(f"{self.name} ended while waiting for {what}:{self.last_lines()}")
            if time.monotonic() > deadline:
                cannot(f"{self.name}: no {what} after {within:g} s:{self.last_lines()}")
            time.sleep(0.05)

    def stop(self, grace: float = 20.0) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None, f"{self.name} is not started"
        self._process.send_signal(number)

    def last_lines(self) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return "".join(f"\n  {line[:300]}" for line in lines[-LAST_LINES:])
