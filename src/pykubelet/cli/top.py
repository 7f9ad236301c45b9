"""`pykubelet top [pods|node]`: who uses cpu and memory, from the node's own stats."""

from __future__ import annotations

import time
from typing import Any

import click

from pykubelet.cli import table
from pykubelet.cli.client import NodeClient
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.options import namespace_option, on_node

MEBIBYTE = 1 << 20
BETWEEN_SAMPLES = 1.2
"""Seconds; the node caches a sample for one."""


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
        time.sleep(BETWEEN_SAMPLES)  # a rate needs two samples
        summary = _summary(node)
    if kind.startswith("node"):
        head, rows = ["NAME", "CPU(cores)", "MEMORY(bytes)", "AVAILABLE"], [_node_row(summary["node"])]
    else:
        head = ["POD", "NAME"] if containers else ["NAME"]
        head = [*(["NAMESPACE"] if all_namespaces else []), *head, "CPU(cores)", "MEMORY(bytes)"]
        place = None if all_namespaces else namespace
        pods = [pod for pod in summary.get("pods") or [] if _is_wanted(pod, place, name)]
        rows = [row for pod in _sorted(pods, sort_by) for row in _rows(pod, namespaces=all_namespaces, each=containers)]
        if not rows:
            raise CommandFailed(f"no figures for {'pod ' + name if name else 'any pod'} yet")
    table.show(head, rows, no_head=no_headers)


def _node_row(about: dict[str, Any]) -> list[str]:
    free = about.get("memory", {}).get("availableBytes")
    return [about.get("nodeName", ""), *_use(about), "<unknown>" if free is None else f"{free // MEBIBYTE}Mi"]


def _is_wanted(pod: dict[str, Any], namespace: str | None, name: str | None) -> bool:
    ref = pod["podRef"]
    if namespace is not None and ref["namespace"] != namespace:
        return False
    return not name or ref["name"] == name or ref["name"].startswith(f"{name}-")


def _rows(pod: dict[str, Any], *, namespaces: bool, each: bool) -> list[list[str]]:
    ref = pod["podRef"]
    place = [ref["namespace"]] if namespaces else []
    if each:
        return [[*place, ref["name"], part["name"], *_use(part)] for part in pod.get("containers") or []]
    return [[*place, ref["name"], *_use(pod)]]


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
