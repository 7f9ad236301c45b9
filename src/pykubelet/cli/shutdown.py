"""`pykubelet shutdown`: have the agent end all pods in order, as it does when logind announces a shutdown.

For machines without logind, and for the unit that runs it when the machine goes down (packaging/). Returns when the
pods have ended or their time is over. The agent goes on, takes no new pods, and says that the node is not ready.
"""

from __future__ import annotations

import click

from pykubelet.cli.client import NodeClient
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.options import on_node
from pykubelet.settings.kinds import WrongValue, duration_of


@click.command("shutdown", short_help="end all pods in order before this machine goes down")
@click.option(
    "--grace", metavar="DURATION", help="Time for all pods, such as 60s; without it the agent's settings count."
)
@click.option("--grace-critical", metavar="DURATION", help="Part of it that only critical pods get.")
@click.option("--cancel", is_flag=True, help="The machine stays up: take pods again, start static pods anew.")
@click.option("--if-running", is_flag=True, help="No agent here is no failure; for use in units.")
@on_node
def command(node: NodeClient, grace: str | None, grace_critical: str | None, cancel: bool, if_running: bool) -> int:
    """End all pods of this machine, ordinary ones before critical ones, each within its time.

    The node is not ready and takes no new pods from then on, until the machine or the agent is restarted.
    """
    query = _periods(grace, grace_critical)
    if cancel and query:
        raise click.UsageError("--cancel takes no periods")
    try:
        answer = node.ask("DELETE" if cancel else "POST", "/local/shutdown", query)
    except CommandFailed:
        if if_running:
            click.echo("no agent is running here; nothing to end")
            return 0
        raise
    if answer.status == 404:
        raise CommandFailed("this node cannot be asked to end its pods; only its local agent can")
    if answer.status != 200:
        raise CommandFailed(answer.text)
    outcome = answer.json()
    if cancel:
        click.echo("the shutdown is cancelled" if outcome["cancelled"] else "no shutdown was going on")
        return 0
    for pod in outcome["stopped"]:
        click.echo(f"pod {pod} ended")
    for pod in outcome["left"]:
        click.echo(f"pod {pod} did not end in time", err=True)
    click.echo(f"{len(outcome['stopped'])} pods ended in {outcome['seconds']:.1f} s; the machine may go down")
    return 1 if outcome["left"] else 0


def _periods(grace: str | None, critical: str | None) -> list[tuple[str, str]]:
    if critical is not None and grace is None:
        raise click.UsageError("--grace-critical needs --grace")
    found = []
    for option, name, text in (("--grace", "grace", grace), ("--grace-critical", "graceCritical", critical)):
        if text is None:
            continue
        try:
            duration_of(text)
        except WrongValue as error:
            raise click.UsageError(f"{option}: {error}") from error
        found.append((name, text))
    return found
