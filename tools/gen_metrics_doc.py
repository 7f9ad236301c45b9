"""Writes docs/metrics.md: every metric of a Go kubelet, with how it looks here, or why it is not there.

    tools/gen_metrics_doc.py                                 the page
    tools/gen_metrics_doc.py "$(go env GOMODCACHE)"          first the list, from Kubernetes' own list of its metrics

A metric is there when the source makes one of that name. What a kubelet lists and has no use here needs a reason in
WITHOUT; tests/unit/test_metrics.py checks names, kinds and labels, and that no reason is left over.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "pykubelet"
LIST = ROOT / "tools" / "data" / "metrics-1.36.4.json"
PAGE = ROOT / "docs" / "metrics.md"
UPSTREAM = "k8s.io/kubernetes@v1.36.4/test/instrumentation/documentation/documentation-list.yaml"
KINDS = {"counter": "Counter", "gauge": "Gauge", "histogram": "Histogram"}

PLUGIN_SAYS = "a plugin says itself when it must be asked again; its certificate is not looked into"
WITHOUT = {
    "disabled_metrics_total": "no flag switches single metrics off",
    "hidden_metrics_total": "metrics have no stages here",
    "registered_metrics_total": "metrics have no stages here",
    "informer_": "objects have no queue between the watch and who uses them",
    "kubelet_imagemanager_inmemory_": "all records are in memory, not a part of them that could be full",
    "kubelet_pleg_discard_events": "nothing is discarded: events go straight to the sync loop",
    "kubelet_started_host_process_containers_": "only Windows has such containers",
    "leader_election_": "a kubelet takes no part in elections; a Go kubelet never shows it either",
    "rest_client_dns_resolution_duration_seconds": "a name is looked up when a connection is opened, not for a request",
    "rest_client_exec_plugin_certificate_rotation_age": PLUGIN_SAYS,
    "rest_client_exec_plugin_policy_call_total": "a kubelet has no list of allowed plugins",
    "rest_client_exec_plugin_ttl_seconds": PLUGIN_SAYS,
    "rest_client_transport_": "there is one transport for each login, and no cache of them",
    "running_managed_controllers": "a kubelet runs no controllers; a Go kubelet never shows it either",
    "version_info": "a Go kubelet does not register it",
    "volume_manager_selinux_container_": "a label is put together of what the pod says, which cannot fail",
    "volume_operation_total_seconds": "only volume controllers measure it, as upstream",
    "workqueue_": "there are no work queues",
}
"""Name, or the beginning of names -> why it is not there."""

HEAD = """# Metrics

Every metric that Kubernetes lists for a kubelet of 1.36, by the path it is shown at. The page is made by
`tools/gen_metrics_doc.py`; a test compares names, kinds and labels with the source. What differs is in
[parity](parity.md#metrics). Metrics of containers on `/metrics/cadvisor` have cAdvisor's names and labels.
"""


class Metric(NamedTuple):
    name: str
    kind: str
    labels: tuple[str, ...]
    endpoint: str


def upstream() -> list[Metric]:
    """The committed list."""
    return [
        Metric(row["name"], row["kind"], tuple(row["labels"]), row["endpoint"]) for row in json.loads(LIST.read_text())
    ]


def reason(name: str) -> str:
    """Why it is not there, as far as WITHOUT says."""
    return next(
        (why for start, why in WITHOUT.items() if name == start or (start[-1] == "_" and name.startswith(start))), ""
    )


def named() -> set[str]:
    """Every text in the source that could be the name of a metric."""
    return {
        node.value
        for tree in _trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"[a-z][a-z0-9_]+", node.value)
    }


def registered() -> Iterator[Metric]:
    """What the source makes with name and labels in place; labels that are computed are not compared."""
    for tree in _trees():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in KINDS):
                continue
            name = node.args[0] if node.args else None
            if not (isinstance(name, ast.Constant) and isinstance(name.value, str)):
                continue
            by_name = next((each.value for each in node.keywords if each.arg == "labels"), ast.Tuple([], ast.Load()))
            labels = node.args[2] if len(node.args) > 2 else by_name
            try:
                yield Metric(name.value, KINDS[node.func.attr], tuple(ast.literal_eval(labels)), "")
            except ValueError:
                continue


def _trees() -> Iterator[ast.Module]:
    for path in sorted(SOURCE.rglob("*.py")):
        if "wire" not in path.parts:
            yield ast.parse(path.read_text())


def render() -> str:
    found = named()
    parts = [HEAD]
    metrics = upstream()
    here = [each for each in metrics if each.name in found]
    parts.append(f"\n{len(here)} of {len(metrics)} are here.\n")
    for endpoint in sorted({each.endpoint for each in metrics}):
        rows = [each for each in here if each.endpoint == endpoint]
        parts.append(f"\n## {endpoint}\n| metric | kind | labels |\n|---|---|---|\n")
        parts += [f"| `{each.name}` | {each.kind.lower()} | {', '.join(each.labels)} |\n" for each in rows]
    parts.append("\n## Not here\n| metric | because |\n|---|---|\n")
    parts += [f"| `{each.name}` | {reason(each.name)} |\n" for each in metrics if each.name not in found]
    return "".join(parts)


def read_upstream(modules: Path) -> None:
    rows = {}
    for metric in yaml.safe_load((modules / UPSTREAM).read_text()):
        name = "_".join(part for part in (metric.get("namespace"), metric.get("subsystem"), metric["name"]) if part)
        for place in metric.get("componentEndpoints") or ():
            if place["component"] == "kubelet":
                labels = sorted(metric.get("labels") or ())
                rows[name] = {"name": name, "kind": metric["type"], "labels": labels, "endpoint": place["endpoint"]}
    text = "[\n" + ",\n".join(json.dumps(rows[name]) for name in sorted(rows)) + "\n]\n"
    LIST.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:]:
        read_upstream(Path(sys.argv[1]))
    PAGE.write_text(render(), encoding="utf-8")
    print(f"wrote {PAGE}")
