"""`pykubelet restart POD[/CONTAINER]`: stop in place by the grace; the agent starts it again at once."""

from __future__ import annotations

import click

from pykubelet.cli.client import NodeClient, path_of
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.options import bare_pod, complete_pods, namespace_option, on_node
from pykubelet.cli.pods import find_on
from pykubelet.model.pod import name_of


@click.command("restart", short_help="restart a pod or a container in place")
@click.argument("what", metavar="POD[/CONTAINER]", shell_complete=complete_pods)
@namespace_option
@on_node
def command(node: NodeClient, what: str, namespace: str) -> None:
    """Restart every container of a pod, or one of them, keeping the pod's address and volumes."""
    name, _, container = bare_pod(what).partition("/")
    pod = find_on(node, namespace, name)
    parts = ["local", "restart", namespace, name_of(pod), *([container] if container else [])]
    answer = node.ask("POST", path_of(*parts))
    if answer.status == 404 and "page not found" in answer.text:
        raise CommandFailed("this node does not restart pods on demand; only its local agent does")
    if answer.status != 200:
        raise CommandFailed(answer.text)
    for each in answer.json()["stopped"]:
        click.echo(f"pod/{name} container {each} restarted")
