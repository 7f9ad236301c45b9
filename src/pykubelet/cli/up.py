"""`pykubelet up [FILE|FOLDER]…`: keep the pods of files running on this machine, with a runtime of its own.

Supervises a private containerd under the state folder and feeds the very same agent that joins clusters; there is
no second way of running pods. Ctrl-C leaves the agent and keeps the pods; `pykubelet down` ends both. What is shown
meanwhile is in up_view.py, the work itself in up_run.py.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.options import DEFAULT_STATE
from pykubelet.cli.problems import CommandFailed
from pykubelet.cli.up_state import UpState, need_root

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
def command(
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
    from pykubelet.cli.up_run import Wishes, run_up

    wishes = Wishes(
        paths=absolute,
        endpoint=endpoint,
        logs=logs,
        live=sys.stdout.isatty() and not plain and not verbose,
        verbose=verbose,
    )
    return run_up(state, wishes)


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
