"""`pykubelet explain POD`: the node's own answer to "what is wrong with it?", on paper or as JSON.

Ends with 0 for a healthy pod and 4 for one in trouble, for scripts.
"""

from __future__ import annotations

import click
import msgspec

from pykubelet.cli import table
from pykubelet.cli.client import NodeClient, path_of
from pykubelet.cli.errors import TROUBLE, CommandFailed
from pykubelet.cli.options import bare_pod, namespace_option, on_node, pod_argument
from pykubelet.cli.pods import find_on
from pykubelet.explain.view import Explanation
from pykubelet.model.pod import name_of


@click.command("explain", short_help="say why a pod is not well, and what to do")
@pod_argument
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the answer.")
@click.option("--timeline/--no-timeline", default=True, help="With or without everything that happened to it.")
@namespace_option
@on_node
def command(node: NodeClient, pod: str, output: str, timeline: bool, namespace: str) -> int:
    """Say what is wrong with a pod, since when, what the agent does next and what you can do.

    \b
    Takes the names of pods (`pod web` and `pod/web` work, too) and ends with
      0  it is healthy or has done its work
      4  it is not
    """
    found = fetch_explanation(node, namespace, bare_pod(pod))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found.to_json()), indent=2).decode())
    else:
        head, *rest = found.to_text(timeline=timeline).splitlines()
        click.echo(click.style(head.partition(": ")[0] + ": ", bold=True) + table.styled(found.state))
        for line in rest:
            click.echo(click.style(line, bold=True) if line and not line[0].isspace() and _is_title(line) else line)
    return 0 if found.healthy and found.state != "failed" else TROUBLE


def _is_title(line: str) -> bool:
    return line.startswith("Why (") or line == "Timeline"


def fetch_explanation(node: NodeClient, namespace: str, name: str) -> Explanation:
    """The node's explanation of a pod. Raises CommandFailed."""
    full = name_of(find_on(node, namespace, name))
    answer = node.get(path_of("explain", namespace, full))
    if answer.status == 404:
        raise CommandFailed(answer.text or "this node's agent does not explain pods")
    if answer.status != 200:
        raise CommandFailed(answer.text)
    return Explanation.from_json(answer.json())
