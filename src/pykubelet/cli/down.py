"""`pykubelet down`: stop the pods of `up` by their grace, then the runtime. Images, logs and settings stay."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import click

from pykubelet.cli.options import DEFAULT_STATE
from pykubelet.cli.problems import CommandFailed
from pykubelet.cli.up_state import UpState, need_root


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
def command(state_dir: Path, timeout: float) -> int:
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
