"""/metrics/resource: the few figures autoscaling lives on, each with the time it was measured. Pure.

A container without CPU and memory figures is left out whole: metrics-server drops a pod of which it sees half.
"""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.kit.metrics import render_labels
from pykubelet.stats.snapshot import Group, PodFigures, Snapshot

FAMILIES = (
    ("container_cpu_usage_seconds_total", "counter", "CPU time the container used, in core-seconds"),
    ("container_memory_working_set_bytes", "gauge", "Memory of the container that cannot be dropped, in bytes"),
    ("container_start_time_seconds", "gauge", "When the container was created, in unix seconds"),
    ("container_swap_limit_bytes", "gauge", "Swap the container may use, in bytes"),
    ("container_swap_usage_bytes", "gauge", "Swap the container uses, in bytes"),
    ("node_cpu_usage_seconds_total", "counter", "CPU time the node used, in core-seconds"),
    ("node_memory_working_set_bytes", "gauge", "Memory of the node that cannot be dropped, in bytes"),
    ("node_swap_usage_bytes", "gauge", "Swap the node uses, in bytes"),
    ("pod_cpu_usage_seconds_total", "counter", "CPU time the pod used, in core-seconds"),
    ("pod_memory_working_set_bytes", "gauge", "Memory of the pod that cannot be dropped, in bytes"),
    ("pod_swap_usage_bytes", "gauge", "Swap the pod uses, in bytes"),
    ("resource_scrape_error", "gauge", "1 if the figures could not be had, else 0"),
)


def render_resource(snapshot: Snapshot | None) -> str:
    """Without a snapshot only the news that there is none."""
    lines: dict[str, list[str]] = {name: [] for name, _, _ in FAMILIES}
    lines["resource_scrape_error"].append(f"resource_scrape_error {0 if snapshot is not None else 1}")
    if snapshot is not None:
        _group(lines, "node", snapshot.node.root, "")
        for pod in snapshot.pods:
            _pod(lines, pod)
    return "\n".join(_text(lines)) + "\n"


def _text(lines: dict[str, list[str]]) -> Iterator[str]:
    for name, kind, help_text in FAMILIES:
        if lines[name]:
            yield f"# HELP {name} {help_text}"
            yield f"# TYPE {name} {kind}"
            yield from lines[name]


def _pod(lines: dict[str, list[str]], pod: PodFigures) -> None:
    item = pod.item
    _group(lines, "pod", pod.group, render_labels(("namespace", "pod"), (item.namespace, item.name)))
    for container in pod.containers:
        group, usage = container.group, container.group.usage
        if usage is None or usage.cpu_ns is None or usage.memory is None:
            continue
        names = (container.item.name, item.namespace, item.name)
        labels = render_labels(("container", "namespace", "pod"), names)
        _group(lines, "container", group, labels)
        if container.item.created_ns > 0:
            lines["container_start_time_seconds"].append(
                f"container_start_time_seconds{labels} {container.item.created_ns / 1e9!r}"
            )
        if group.bounds is not None and group.bounds.swap is not None:
            lines["container_swap_limit_bytes"].append(
                f"container_swap_limit_bytes{labels} {group.bounds.swap} {usage.time_ns // 1_000_000}"
            )


def _group(lines: dict[str, list[str]], kind: str, group: Group, labels: str) -> None:
    usage = group.usage
    if usage is None:
        return
    at = usage.time_ns // 1_000_000
    if usage.cpu_ns is not None:
        name = f"{kind}_cpu_usage_seconds_total"
        lines[name].append(f"{name}{labels} {usage.cpu_ns / 1e9!r} {at}")
    if usage.memory is not None:
        name = f"{kind}_memory_working_set_bytes"
        lines[name].append(f"{name}{labels} {usage.memory.working_set} {at}")
        if usage.memory.swap is not None:
            name = f"{kind}_swap_usage_bytes"
            lines[name].append(f"{name}{labels} {usage.memory.swap} {at}")
