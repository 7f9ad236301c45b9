"""`pykubelet top [pods|node]`: who uses cpu and memory, from the node's own figures."""

from __future__ import annotations

import time
from typing import Any

import click

from pykubelet.cli import table
from pykubelet.cli.client import NodeClient
from pykubelet.cli.options import namespace_option, on_node
from pykubelet.cli.problems import CommandFailed

MEBIBYTE = 1 << 20
BETWEEN_LOOKS = 1.2
"""Seconds; the node remembers a look for one."""


@click.command("top", short_help="show who uses cpu and memory")
@click.argument("kind", type=click.Choice(["pods", "pod", "node", "nodes"]), default="pods", metavar="[pods|node]")
@click.argument("name", required=False, metavar="[POD]")
@click.option("--containers", is_flag=True, help="Each container by itself.")
@click.option("--sort-by", type=click.Choice(["cpu", "memory", "name"]), default="name", help="Order of the rows.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Pods of every namespace.")
@click.option("--no-headers", is_flag=True, help="Rows only.")
@namespace_option
@on_node
def command(
    node: NodeClient,
    kind: str,
    name: str | None,
    containers: bool,
    sort_by: str,
    all_namespaces: bool,
    no_headers: bool,
    namespace: str,
) -> None:
    """Show what pods, or the whole node, use right now."""
    summary = _summary(node)
    if "usageNanoCores" not in summary["node"].get("cpu", {}):
        time.sleep(BETWEEN_LOOKS)  # a rate needs two looks, and nobody has looked before us
        summary = _summary(node)
    if kind.startswith("node"):
        head = ["NAME", "CPU(cores)", "MEMORY(bytes)", "AVAILABLE"]
        about = summary["node"]
        free = about.get("memory", {}).get("availableBytes")
        rows = [[about.get("nodeName", ""), *_use(about), "<unknown>" if free is None else f"{free // MEBIBYTE}Mi"]]
        table.show(head, rows, no_head=no_headers)
        return
    head = ["POD", "NAME"] if containers else ["NAME"]
    head = [*(["NAMESPACE"] if all_namespaces else []), *head, "CPU(cores)", "MEMORY(bytes)"]
    rows = []
    for pod in _sorted(summary.get("pods") or [], sort_by):
        ref = pod["podRef"]
        if not all_namespaces and ref["namespace"] != namespace:
            continue
        if name and ref["name"] != name and not ref["name"].startswith(f"{name}-"):
            continue
        place = [ref["namespace"]] if all_namespaces else []
        if containers:
            rows += [[*place, ref["name"], each["name"], *_use(each)] for each in pod.get("containers") or []]
        else:
            rows.append([*place, ref["name"], *_use(pod)])
    if not rows:
        raise CommandFailed(f"no figures for {'pod ' + name if name else 'any pod'} yet")
    table.show(head, rows, no_head=no_headers)


def _summary(node: NodeClient) -> dict[str, Any]:
    answer = node.get("/stats/summary", [("only_cpu_and_memory", "true")])
    if answer.status != 200:
        raise CommandFailed(f"the node has no figures: {answer.text}")
    found: dict[str, Any] = answer.json()
    return found


def _use(about: dict[str, Any]) -> list[str]:
    cpu = about.get("cpu", {}).get("usageNanoCores")
    memory = about.get("memory", {}).get("workingSetBytes")
    return [
        "<unknown>" if cpu is None else f"{-(-cpu // 1_000_000)}m",
        "<unknown>" if memory is None else f"{memory // MEBIBYTE}Mi",
    ]


def _sorted(pods: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    if by == "cpu":
        return sorted(pods, key=lambda pod: -(pod.get("cpu", {}).get("usageNanoCores") or 0))
    if by == "memory":
        return sorted(pods, key=lambda pod: -(pod.get("memory", {}).get("workingSetBytes") or 0))
    return sorted(pods, key=lambda pod: (pod["podRef"]["namespace"], pod["podRef"]["name"]))
