"""`pykubelet get pods`: the table kubectl prints, or the objects as JSON or YAML; `-w` goes on with what changes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from pykubelet.api.codec import encode_json
from pykubelet.api.types import Pod
from pykubelet.cli import table
from pykubelet.cli.client import NodeClient
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.options import bare_pod, complete_pods, namespace_option, on_node
from pykubelet.cli.pods import age_text, born, find, list_pods, ready_text, restarts, status_text
from pykubelet.model.pod import name_of, namespace_of, uid_of

Labelled = Callable[[Mapping[str, str]], bool]

WATCH_EVERY = 0.5
"""Seconds between lists: any kubelet can be watched this way."""
KINDS = ("pods", "pod", "po", "events", "images")
STATUS = "STATUS"
FIRM = ("RESTARTS", "AGE", "IP")


@click.command("get", short_help="list pods")
@click.argument("kind", metavar="pods")
@click.argument("names", metavar="[POD]…", nargs=-1, shell_complete=complete_pods)
@click.option("-o", "--output", type=click.Choice(["wide", "json", "yaml", "name"]), help="Form of the answer.")
@click.option("-w", "--watch", is_flag=True, help="Go on with every change.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of every namespace.")
@click.option("-l", "--selector", default="", metavar="LABELS", help="Only pods with these labels: app=web,tier!=db.")
@click.option("--no-headers", is_flag=True, help="Rows only.")
@namespace_option
@on_node
def command(
    node: NodeClient,
    kind: str,
    names: Sequence[str],
    output: str | None,
    watch: bool,
    all_namespaces: bool,
    selector: str,
    no_headers: bool,
    namespace: str,
) -> None:
    """List the pods of this node: pykubelet get pods [POD…]."""
    choice = Choice(
        kind, names, namespace=None if all_namespaces else namespace, labels=parse_selector(selector), default=namespace
    )
    pods = choice.of(list_pods(node))
    if output in ("json", "yaml"):
        click.echo(as_objects(pods, output, single=len(choice.names) == 1), nl=False)
    elif output == "name":
        for pod in pods:
            click.echo(f"pod/{name_of(pod)}")
    elif not pods and not watch:
        click.echo("No resources found" + ("" if all_namespaces else f" in {namespace} namespace") + ".", err=True)
    else:
        form = Form(wide=output == "wide", namespaces=all_namespaces)
        rows = [form.row(pod) for pod in pods]
        table.show(form.head, rows, coloured=form.status_column, firm=FIRM, no_head=no_headers)
        if watch:
            _watch(node, form, pods, choice)


class Choice:
    """Which pods the command is about: those it names, else those that fit namespace and labels."""

    def __init__(
        self, kind: str, names: Sequence[str], *, namespace: str | None, labels: Labelled, default: str
    ) -> None:
        word, _, first = kind.partition("/")
        if word not in KINDS[:3]:
            raise click.UsageError(f"get knows pods, not {word}; see also: pykubelet events, pykubelet image ls")
        self.names = [bare_pod(name) for name in ((first, *names) if first else names)]
        self._namespace, self._labels, self._default = namespace, labels, default

    def fits(self, pod: Pod) -> bool:
        return self._namespace in (None, namespace_of(pod)) and self._labels(pod.metadata.labels)

    def of(self, pods: Sequence[Pod]) -> list[Pod]:
        if self.names:
            return [find(pods, self._default, name) for name in self.names]
        return sorted((pod for pod in pods if self.fits(pod)), key=lambda pod: (namespace_of(pod), name_of(pod)))


class Form:
    """Which columns, and a pod's cells for them."""

    def __init__(self, *, wide: bool, namespaces: bool) -> None:
        self._wide, self._namespaces = wide, namespaces
        self.head = ["NAMESPACE"] if namespaces else []
        self.head += ["NAME", "READY", STATUS, "RESTARTS", "AGE"]
        self.head += ["IP", "NODE"] if wide else []
        self.status_column = self.head.index(STATUS)

    def row(self, pod: Pod) -> list[str]:
        now = datetime.now(UTC)
        count, last = restarts(pod)
        again = f"{count} ({age_text(last, now)} ago)" if count and last is not None else str(count)
        cells = [namespace_of(pod)] if self._namespaces else []
        cells += [name_of(pod), ready_text(pod), status_text(pod), again, age_text(born(pod), now)]
        return cells + ([pod.status.pod_ip or "<none>", pod.spec.node_name or "<none>"] if self._wide else [])


def _watch(node: NodeClient, form: Form, pods: Sequence[Pod], choice: Choice) -> None:
    names = {name_of(pod) for pod in pods} if choice.names else None
    shown = {uid_of(pod): _essence(form, pod) for pod in pods}
    widths = [max(len(cell), 9) for cell in form.head]
    while True:
        time.sleep(WATCH_EVERY)
        try:
            found = [pod for pod in list_pods(node) if choice.fits(pod) and (names is None or name_of(pod) in names)]
        except CommandFailed as problem:
            raise CommandFailed(f"the watch ended: {problem}", problem.status) from problem
        for pod in found:
            essence = _essence(form, pod)
            if shown.get(uid_of(pod)) != essence:
                shown[uid_of(pod)] = essence
                row = form.row(pod)
                widths = [max(room, len(cell)) for room, cell in zip(widths, row, strict=True)]
                head = [title.ljust(room) for title, room in zip(form.head, widths, strict=True)]
                click.echo(table.lines(head, [row], limit=table.width(), coloured=form.status_column, firm=FIRM)[1])


def _essence(form: Form, pod: Pod) -> tuple[str, ...]:
    """What makes a new row worth printing; ages change all the time."""
    return (*form.row(pod)[: form.status_column + 1], str(restarts(pod)[0]), pod.status.pod_ip or "")


def as_objects(pods: Sequence[Pod], output: str, *, single: bool) -> str:
    items = [{"apiVersion": "v1", "kind": "Pod", **msgspec.json.decode(encode_json(pod))} for pod in pods]
    whole: Any = items[0] if single else {"apiVersion": "v1", "kind": "List", "items": items}
    if output == "json":
        return msgspec.json.format(msgspec.json.encode(whole), indent=4).decode() + "\n"
    import yaml

    return yaml.safe_dump(whole, sort_keys=False, allow_unicode=True)


_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<verb>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUAL = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<verb>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
_THERE = re.compile(r"(?P<no>!\s*)?(?P<key>[^\s!=,()]+)")
_BETWEEN = re.compile(r",(?![^()]*\))")


def parse_selector(text: str) -> Labelled:
    """A label selector as kubectl takes it with `-l`: `app=web,tier!=db,track in (a,b),!old`.

    Raises click.UsageError for what is no selector.
    """
    parts = [_requirement(part.strip()) for part in _BETWEEN.split(text)] if text.strip() else []
    return lambda labels: all(fits(labels) for fits in parts)


def _requirement(text: str) -> Labelled:
    if found := _SET.fullmatch(text):
        key, values = found["key"], {value.strip() for value in found["values"].split(",")}
        if found["verb"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.fullmatch(text):
        key, value = found["key"], found["value"]
        if found["verb"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _THERE.fullmatch(text):
        key, wanted = found["key"], found["no"] is None
        return lambda labels: (key in labels) is wanted
    raise click.UsageError(f"-l {text!r} is no label selector; examples: app=web, tier!=db, track in (a,b), !old")
