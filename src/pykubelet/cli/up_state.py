"""What one `up` keeps under its state folder beside the runtime: where things are, and who runs.

The agent of a state folder is found by its pid file, which names one process for good (standalone/daemon.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from pykubelet.cli.local_socket import local_socket
from pykubelet.cli.options import root_of
from pykubelet.cli.problems import CommandFailed
from pykubelet.kit.files import write_atomic
from pykubelet.standalone import daemon
from pykubelet.standalone.daemon import Daemon
from pykubelet.standalone.layout import Layout


class UpState(Struct, frozen=True):
    folder: Path

    @property
    def runtime(self) -> Layout:
        return Layout(self.folder / "runtime")

    @property
    def root(self) -> Path:
        """The agent's --root-dir."""
        return root_of(self.folder)

    @property
    def logs(self) -> Path:
        return self.folder / "logs" / "pods"

    @property
    def socket(self) -> Path:
        return local_socket(self.root)

    @property
    def manifests(self) -> Path:
        """What is watched when `up` names nothing."""
        return self.folder / "manifests"

    @property
    def pid_file(self) -> Path:
        return self.folder / "agent.pid"

    @property
    def agent_log(self) -> Path:
        return self.folder / "agent.log"

    @property
    def groups_file(self) -> Path:
        """Where the agent was the one who made the group of all pods."""
        return self.folder / "cgroups.json"

    @property
    def record_file(self) -> Path:
        return self.folder / "up.json"

    def agent(self) -> Daemon | None:
        """The agent that runs on this state folder."""
        return daemon.load(self.pid_file)

    def containerd(self) -> Daemon | None:
        return daemon.load(self.runtime.pid_file)

    def enter(self, paths: Sequence[Path], endpoint: str) -> None:
        """This process is the agent now. Raises CommandFailed when another one is."""
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        other = self.agent()
        if other is not None and other.pid != os.getpid():
            raise CommandFailed(
                f"`pykubelet up` runs already on {self.folder} (pid {other.pid}); see `pykubelet status`, end it with "
                "`pykubelet down`, or choose another --state-dir"
            )
        start = daemon.process_start(os.getpid())
        Daemon(pid=os.getpid(), start_time=start or 0, config_digest="").save(self.pid_file)
        record = {"paths": [str(path) for path in paths], "endpoint": endpoint}
        write_atomic(self.record_file, json.dumps(record).encode(), durable=False)

    def leave(self) -> None:
        mine = self.agent()
        if mine is not None and mine.pid == os.getpid():
            self.pid_file.unlink(missing_ok=True)

    def recorded(self) -> tuple[list[Path], str]:
        """The paths and the runtime endpoint ('' = the private one) of the last `up`."""
        try:
            record = json.loads(self.record_file.read_text())
            return [Path(path) for path in record["paths"]], str(record["endpoint"])
        except (OSError, ValueError, KeyError, TypeError):
            return [], ""


def need_root() -> None:
    if os.geteuid() != 0:
        raise CommandFailed("running containers needs root: start it as root or with sudo")
