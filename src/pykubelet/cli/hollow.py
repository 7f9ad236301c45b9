"""`pykubelet hollow --nodes N --kubeconfig F`: many nodes of a cluster in one process, without machines.

Each is the whole agent on a container runtime in memory; docs/hollow.md says what is real and what is not.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pykubelet.cli.errors import CommandFailed

if TYPE_CHECKING:
    from pykubelet.hollow.fleet import FleetPlan


@click.command("hollow", short_help="run many nodes without machines, to test a control plane")
@click.option("--nodes", type=click.IntRange(1), required=True, metavar="N", help="How many.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, exists=True),
    required=True,
    metavar="FILE",
    help="A login that may impersonate nodes, such as an administrator's.",
)
@click.option("--workload", "program", type=click.Path(path_type=Path), metavar="FILE", help="What nodes and pods do.")
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="FILE|FOLDER",
    help="Recorded lives of pods to replay: what `pykubelet explain POD -o json` printed. Can be repeated.",
)
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="A KubeletConfiguration for all nodes.")
@click.option("--prefix", default="hollow-", show_default=True, help="Of the nodes' names.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="Number of the first node.")
@click.option("--seed", default="0", show_default=True, help="The same one draws the same latencies and failures.")
@click.option(
    "--impersonate/--no-impersonate",
    default=True,
    show_default=True,
    help="Make requests as system:node:NAME, or as the login itself.",
)
@click.option("--folder", type=click.Path(path_type=Path), help="For pods' folders; a temporary one otherwise.")
@click.option("-v", "--verbose", is_flag=True, help="Log what the agents log.")
def command(
    nodes: int,
    kubeconfig: Path,
    program: Path | None,
    history: Sequence[Path],
    config: Path | None,
    prefix: str,
    first: int,
    seed: str,
    impersonate: bool,
    folder: Path | None,
    verbose: bool,
) -> int:
    """Run N nodes that have no machine: the agent's own code on a container runtime in memory.

    They register, keep their leases, run pods (with the latencies, ends and failures that the workload file says) and
    report their statuses, so that thousands of nodes stand on a real control plane. Ctrl-C ends the agents; their Nodes
    stay: kubectl delete nodes -l pykubelet.local/hollow=true.
    """
    from pykubelet.hollow.fleet import FleetPlan
    from pykubelet.hollow.history import load_histories
    from pykubelet.hollow.workload import Workload, load_workload

    workload = load_workload(program) if program is not None else Workload()
    with tempfile.TemporaryDirectory(prefix="pykubelet-hollow-", dir=folder) as scratch:
        plan = FleetPlan(
            nodes=nodes,
            kubeconfig=kubeconfig.resolve(),
            folder=Path(scratch),
            config=config.resolve() if config is not None else None,
            workload=workload,
            history=load_histories(history) if history else None,
            prefix=prefix,
            first=first,
            impersonate=impersonate,
            seed=seed,
        )
        return _run(plan, verbose)


def _run(plan: FleetPlan, verbose: bool) -> int:
    import uvloop

    from pykubelet.kit import log
    from pykubelet.kit.memory import limit_arenas
    from pykubelet.settings.errors import SettingsError

    log.set_up()
    if not verbose:
        logging.getLogger(log.PACKAGE).setLevel(logging.WARNING)
    limit_arenas()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_run_fleet(plan))
    except SettingsError as error:
        raise CommandFailed("\n".join(error.problems)) from error


async def _run_fleet(plan: FleetPlan) -> int:
    from pykubelet.cli.agent import stop_requested
    from pykubelet.hollow.fleet import running
    from pykubelet.kit.clock import SystemClock
    from pykubelet.kit.tasks import first_of

    stop = stop_requested()
    clock = SystemClock()

    async def stay() -> bool:
        async with running(plan, clock=clock, say=click.echo):
            return await asyncio.Event().wait()

    await first_of(stay(), stop.wait())
    click.echo("the agents are stopped; their Nodes stay")
    return 0
