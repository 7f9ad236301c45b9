"""`pykubelet up [FILE|FOLDER]…` keeps the pods of files running on this machine; `pykubelet down` ends them.

`up` supervises a private containerd under its state folder and feeds the same agent that joins clusters; there is no
second way of running pods. Ctrl-C leaves the agent and keeps the pods; `down` stops the pods by their grace, then the
runtime; images, logs and settings stay. The agent of a state folder is found by its pid file (standalone/daemon.py).
What is shown meanwhile is in up_view.py, the work itself in up_run.py.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.local_socket import local_socket
from pykubelet.cli.options import DEFAULT_STATE, root_of
from pykubelet.standalone import daemon
from pykubelet.standalone.daemon import Daemon
from pykubelet.standalone.layout import Layout

if TYPE_CHECKING:
    from pykubelet.standalone.launch import ContainerdLaunch


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
        draft = self.record_file.with_suffix(".new")
        draft.write_text(json.dumps(record))
        draft.replace(self.record_file)

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


DETACH_WITHIN = 120.0
LAST_LINES = 12


@click.command("up", short_help="run pods from files on this machine")
@click.argument("paths", metavar="[FILE|FOLDER]…", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    envvar="PYKUBELET_STATE_DIR",
    help="Where everything is kept.",
)
@click.option("-d", "--detach", is_flag=True, help="Go on in the background.")
@click.option("--container-runtime-endpoint", "endpoint", default="", help="Use this runtime instead of an own one.")
@click.option("--logs/--no-logs", default=True, help="Show what containers write.", show_default=True)
@click.option("--plain", is_flag=True, help="Lines instead of the live view.")
@click.option("-v", "--verbose", is_flag=True, help="Show the agent's own log, too.")
def up(
    paths: Sequence[Path], state_dir: Path, detach: bool, endpoint: str, logs: bool, plain: bool, verbose: bool
) -> int:
    """Run the pods of manifest files, and of all manifests in folders, and follow the files as they change.

    Without a path it watches the folder `manifests` below the state folder.
    """
    state = UpState(state_dir.resolve())
    absolute = check_paths(paths)
    need_root()
    if not absolute:
        state.manifests.mkdir(mode=0o755, parents=True, exist_ok=True)
        absolute = [state.manifests]
    if detach:
        return start_detached(state, absolute, endpoint)
    # `down` finds the agent from here on; until it listens to that signal it would be ended by it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    state.enter(absolute, endpoint)
    try:
        launch = None if endpoint else launched(state)
        from pykubelet.cli.up_run import UpOptions, run_up

        options = UpOptions(
            paths=absolute,
            endpoint=endpoint,
            logs=logs,
            live=sys.stdout.isatty() and not plain and not verbose,
            verbose=verbose,
        )
        return run_up(state, options, launch)
    finally:
        state.leave()


def launched(state: UpState) -> ContainerdLaunch:
    """The private containerd, which comes up while the agent is still being imported."""
    from pykubelet.standalone.launch import ContainerdLaunch
    from pykubelet.standalone.programs import find_runtime

    launch = ContainerdLaunch(state.runtime, find_runtime())
    launch.begin()
    return launch


def check_paths(paths: Sequence[Path]) -> list[Path]:
    for path in paths:
        if not path.exists():
            raise CommandFailed(f"{path}: no such file or folder")
    # Not resolve(): a path that is a link is followed when it is switched to another target.
    return list(dict.fromkeys(Path(os.path.abspath(path)) for path in paths))


def start_detached(state: UpState, paths: Sequence[Path], endpoint: str) -> int:
    from pykubelet.standalone import daemon

    other = state.agent()
    if other is not None:
        raise CommandFailed(f"`pykubelet up` runs already on {state.folder} (pid {other.pid}); see `pykubelet status`")
    state.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    begin = state.agent_log.stat().st_size if state.agent_log.exists() else 0
    words = [sys.executable, "-m", "pykubelet", "up", "--plain", "--no-logs", "--state-dir", str(state.folder)]
    words += ["--container-runtime-endpoint", endpoint] if endpoint else []
    begun = time.monotonic()
    process = daemon.spawn(
        [*words, *(str(path) for path in paths)],
        environment=dict(os.environ),
        log=state.agent_log,
        config_digest="",
    )
    node = NodeClient(Target(sockets=(state.socket,)))
    while not _answers(node, process.pid):
        if not process.alive():
            raise CommandFailed(
                f"the agent ended at once; the end of {state.agent_log}:{_tail(state.agent_log, begin)}"
            )
        if time.monotonic() - begun > DETACH_WITHIN:
            raise CommandFailed(f"the agent does not answer after {DETACH_WITHIN:g} s; see {state.agent_log}")
        time.sleep(0.05)
    took = time.monotonic() - begun
    click.echo(
        f"the agent runs in the background (pid {process.pid}) after {took:.1f} s; `pykubelet get pods` shows its pods"
    )
    return 0


def _answers(node: NodeClient, pid: int) -> bool:
    try:
        answer = node.ask("GET", "/healthz/ping", timeout=2.0)
    except CommandFailed:
        return False
    return answer.status == 200 and pid > 0


def _tail(log: Path, begin: int) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").splitlines()
    return "".join(f"\n  {line[:400]}" for line in lines[-LAST_LINES:]) or " (empty)"


@click.command("down", short_help="stop the pods, then the runtime that `up` started")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    default=DEFAULT_STATE,
    show_default=True,
    envvar="PYKUBELET_STATE_DIR",
    help="The state folder of `up`.",
)
@click.option("--timeout", type=float, default=600.0, show_default=True, help="Seconds to wait for the agent to end.")
def down(state_dir: Path, timeout: float) -> int:
    """Stop every pod that `up` runs, with hooks and grace, then the container runtime."""
    state = UpState(state_dir.resolve())
    need_root()
    agent = state.agent()
    if agent is not None:
        click.echo(f"asking the agent (pid {agent.pid}) to stop its pods")
        agent.signal(signal.SIGUSR1)
        deadline = time.monotonic() + timeout
        while agent.alive():
            if time.monotonic() > deadline:
                raise CommandFailed(f"the agent (pid {agent.pid}) has not ended after {timeout:g} s")
            time.sleep(0.05)
    if state.containerd() is None and not _containers_left(state):
        click.echo("everything is stopped" if agent is not None else f"nothing is running on {state.folder}")
        return 0
    if state.recorded()[1]:  # an endpoint was given to `up`
        click.echo("the agent is stopped; the runtime is not ours and goes on")
        return 0
    from pykubelet.cli.up_run import end_leftovers, on_a_loop
    from pykubelet.cli.up_view import PlainView

    async def end() -> int:
        await end_leftovers(state, PlainView(click.echo))
        return 0

    on_a_loop(end())
    click.echo("everything is stopped")
    return 0


def _containers_left(state: UpState) -> bool:
    from pykubelet.standalone.cleanup import shims

    return bool(shims(state.runtime.socket))
