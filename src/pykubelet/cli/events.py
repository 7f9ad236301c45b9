"""`pykubelet events [POD]`: what happened on this node, oldest first, as the node itself remembers it."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from pykubelet.cli import table
from pykubelet.cli.client import NodeClient
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.options import bare_pod, complete_pods, namespace_option, on_node
from pykubelet.cli.pods import age_text, find_on
from pykubelet.model.pod import name_of

WATCH_EVERY = 0.5
HEAD = ["LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]


@click.command("events", short_help="show what happened on this node")
@click.argument("pod", required=False, metavar="[POD]", shell_complete=complete_pods)
@click.option("--for", "subject", metavar="pod/NAME", help="Events of one pod.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Of every namespace.")
@click.option("-w", "--watch", is_flag=True, help="Go on with what happens.")
@click.option("--types", metavar="TYPE[,TYPE]", help="Only Normal or only Warning.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="Form of the answer.")
@namespace_option
@on_node
def command(
    node: NodeClient,
    pod: str | None,
    subject: str | None,
    all_namespaces: bool,
    watch: bool,
    types: str | None,
    output: str | None,
    namespace: str,
) -> None:
    """Show the events this node remembers, of everything or of one pod."""
    kinds = set(types.split(",")) if types else set()
    query = [] if all_namespaces else [("namespace", namespace)]
    if wanted := bare_pod(pod or subject or ""):
        query.append(("pod", _full_name(node, namespace, wanted)))

    def listed() -> list[dict[str, Any]]:
        return [event for event in fetch(node, query) if not kinds or event["kind"] in kinds]

    events = listed()
    if output == "json":
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(events), indent=2).decode())
    elif not events and not watch:
        click.echo("No events found.", err=True)
    else:
        # As with kubectl, the namespace is a column only when there may be several.
        form = Form(namespaces=all_namespaces)
        table.show(form.head, [form.row(event) for event in events], coloured=form.kind_column)
        if watch:
            _watch(form, events, listed)


class Form:
    """Which columns, and the cells of an event for them."""

    def __init__(self, *, namespaces: bool) -> None:
        self._namespaces = namespaces
        self.head = [*(["NAMESPACE"] if namespaces else []), *HEAD]
        self.kind_column = self.head.index("TYPE")

    def row(self, event: dict[str, Any]) -> list[str]:
        return [*([event["namespace"] or "<node>"] if self._namespaces else []), *row(event)]


def _watch(form: Form, events: list[dict[str, Any]], listed: Callable[[], list[dict[str, Any]]]) -> None:
    widths = {"TYPE": 7, "REASON": 16, "OBJECT": 20}
    head = [title.ljust(widths.get(title, 0)) for title in form.head]
    seen = {_key(event) for event in events}
    while True:
        time.sleep(WATCH_EVERY)
        fresh = [event for event in listed() if _key(event) not in seen]
        seen.update(_key(event) for event in fresh)
        for event in fresh:
            click.echo(table.lines(head, [form.row(event)], limit=table.width(), coloured=form.kind_column)[1])


def _full_name(node: NodeClient, namespace: str, name: str) -> str:
    try:
        return name_of(find_on(node, namespace, name))
    except CommandFailed:
        return name  # a pod that is gone may still have events


def fetch(node: NodeClient, query: list[tuple[str, str]]) -> list[dict[str, Any]]:
    answer = node.get("/local/events", query)
    if answer.status == 404:
        raise CommandFailed("this node does not give out its events; ask the API server: kubectl get events")
    if answer.status != 200:
        raise CommandFailed(answer.text)
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def row(event: dict[str, Any]) -> list[str]:
    now = datetime.now(UTC)
    last = age_text(datetime.fromtimestamp(event["last"], UTC), now)
    first = age_text(datetime.fromtimestamp(event["first"], UTC), now)
    seen = f"{last} (x{event['count']} over {first})" if event["count"] > 1 else last
    subject = f"{event['object_kind'].lower()}/{event['name']}"
    return [seen, event["kind"], event["reason"], subject, event["message"]]


def _key(event: dict[str, Any]) -> tuple[Any, ...]:
    return (event["uid"], event["reason"], event["message"], event["field_path"], event["count"])
