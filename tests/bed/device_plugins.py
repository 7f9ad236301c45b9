"""Kubernetes' own sample device plugin and driver of dynamic resources as processes beside an agent.

The driver is found by its socket in the folder of plugins, the plugin registers by itself; both end with the test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bed.cluster import go_programs

USUAL_FOLDER = "/var/lib/kubelet/device-plugins"
RESOURCE = "example.com/resource"
DRA_DRIVER = "test-driver.cdi.k8s.io"
CDI_FOLDER = Path("/var/run/cdi")


class Program:
    """One program that a test may kill and start again."""

    def __init__(self, words: list[str], log: Path, *, environment: dict[str, str] | None = None) -> None:
        self._words = words
        self._log = log
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        guard = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, *self._words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment, cwd="/"
            )

    def kill9(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""


def sample_plugin(folder: Path, root: Path, sockets_in: str = USUAL_FOLDER) -> Program:
    """Two devices of example.com/resource, each a file below /tmp of the container."""
    program = go_programs("plugins") / "sample-device-plugin"
    sockets = {"PLUGIN_SOCK_DIR": sockets_in}
    # It registers in the usual folder, which in its own view of the machine is the agent's.
    Path(USUAL_FOLDER).mkdir(parents=True, exist_ok=True)
    script = f"mount --make-rprivate / && mount --bind {root}/device-plugins {USUAL_FOLDER} && exec {program}"
    words = ["unshare", "--mount", "sh", "-c", script]
    return Program(words, folder / "sample-device-plugin.log", environment={**os.environ, **sockets})


def dra_driver(folder: Path, root: Path, kubeconfig: Path, node: str) -> Program:
    program = go_programs("plugins") / "test-driver"
    data = root / "plugins" / DRA_DRIVER
    data.mkdir(parents=True, exist_ok=True)
    CDI_FOLDER.mkdir(parents=True, exist_ok=True)
    words = [str(program), "-v=5", f"--kubeconfig={kubeconfig}", f"--drivername={DRA_DRIVER}", "kubelet-plugin"]
    words += [f"--datadir={data.parent}", f"--plugin-registration-path={root / 'plugins_registry'}"]
    words += [f"--node-name={node}", f"--cdi-dir={CDI_FOLDER}"]
    return Program(words, folder / "dra-test-driver.log")


@contextmanager
def running(program: Program) -> Iterator[Program]:
    program.start()
    try:
        yield program
    finally:
        program.kill9()
        for left in CDI_FOLDER.glob(f"{DRA_DRIVER}-*.json"):
            left.unlink()
