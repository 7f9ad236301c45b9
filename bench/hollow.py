"""What hollow nodes cost at rest, and what a control plane can carry with a thousand of them.

`python -m bench.hollow rest [N…]` measures memory and processor time of N idle nodes and of the control plane below
them; `python -m bench.hollow schedule` gives 1,000 nodes 10,000 pods and finds what limits their start. Each keeps its
figures in bench/results/hollow.json and the table of docs/hollow.md is made from these.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop
from bench.hollow_stage import RESULTS, Costs, FleetProcess, Scrape, control_plane, fleet, keep, mean_ms
from bench.report import update_document
from tests.bed.cluster import Cluster

from pykubelet.api.types import Container, ObjectMeta, Pod, PodSpec, Toleration
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import ApiError

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "hollow.md"
SECTIONS = ("rest", "schedule", "node", "kubemark")
MARKS = {section: (f"<!-- {section}: begin -->", f"<!-- {section}: end -->") for section in SECTIONS}
SIZES = (10, 100, 300, 1000)
SETTLE, MEASURED = 20.0, 60.0
NODES, PODS = 1000, 10_000
FAST = "1000"
"""Requests a second that the controllers may make where they are not to be the limit."""
VARIANTS: dict[str, tuple[dict[str, list[str]], dict[str, tuple[int, bool]]]] = {
    "usual": ({}, {"Deployments, usual limits": (1_000, True), "pods, usual limits": (2_500, False)}),
    "fast": (
        {"kube-scheduler": ["--kube-api-qps", FAST, "--kube-api-burst", FAST]},
        {"pods, scheduler's client not limited": (PODS, False)},
    ),
}
"""Flags of the control plane; how many pods are made on it, and whether Deployments make them."""
WORKLOAD = """
runtime: {sandbox: {median: 0.3, p99: 2}, create: {median: 0.05, p99: 0.4}, start: {median: 0.08, p99: 0.6}}
images: {size: 20Mi, latency: 0.2}
"""
CREATED_AT_ONCE = 32
ENDS_WITHIN = 600.0


# --- at rest ------------------------------------------------------------------------------------------------------


def rest(sizes: Sequence[int]) -> None:
    found = []
    for nodes in sizes:
        with control_plane() as cluster, fleet(cluster, nodes) as hollow:
            started = hollow.wait_ready()
            time.sleep(SETTLE)
            costs = Costs(cluster, hollow.pid)
            time.sleep(MEASURED)
            found.append({"nodes": nodes, "ready_after": started, **costs.so_far(), "warnings": hollow.warnings()})
            print(json.dumps(found[-1]))
    keep("rest", {"sizes": found})


# --- many pods ----------------------------------------------------------------------------------------------------


def schedule(names: Sequence[str]) -> None:
    for name in names:
        flags, variants = VARIANTS[name]
        with control_plane(flags) as cluster:
            (cluster.folder / "workload.yaml").write_text(WORKLOAD)
            with fleet(cluster, NODES, "--workload", str(cluster.folder / "workload.yaml")) as hollow:
                hollow.wait_ready()
                for variant, (pods, deployments) in variants.items():
                    time.sleep(SETTLE)
                    found = uvloop.run(started(cluster, hollow, pods, deployments=deployments))
                    known = json.loads(RESULTS.read_text()).get("schedule", {}) if RESULTS.exists() else {}
                    keep("schedule", {"nodes": NODES, "variants": {**known.get("variants", {}), variant: found}})


async def started(cluster: Cluster, hollow: FleetProcess, pods: int, *, deployments: bool) -> dict[str, Any]:
    """Make the pods and wait until all run."""
    server = ServerConnections(load_kubeconfig(ordinary_login(cluster)), clock=SystemClock())
    client = RestKubeClient(Transport(server, agent="bench", qps=-1, burst=1))
    try:
        before = scraped(cluster)
        costs, began = Costs(cluster, hollow.pid), time.monotonic()
        await (make_deployments(cluster, pods) if deployments else make_pods(client, pods))
        made = time.monotonic() - began
        await until_running(client, pods)
        took, after, spent = time.monotonic() - began, scraped(cluster), costs.so_far()
        found = await listed(client)
        gone = await deleted(cluster, client, deployments=deployments)
    finally:
        await server.close()
    return {
        "pods": pods,
        "running": pods,
        "created_after": round(made, 1),
        "all_running_after": round(took, 1),
        "pods_a_second": round(pods / took, 1),
        **times(found),
        "costs": spent,
        "control_plane": figures(before, after, took),
        "deleted_after": gone,
        "warnings": hollow.warnings(),
        "load": round(os.getloadavg()[0], 1),
    }


def ordinary_login(cluster: Cluster) -> Path:
    """May do everything, but has no priority at the API server: an administrator's requests would starve the nodes'."""
    api = "rbac.authorization.k8s.io"
    cluster.apply(
        {
            "apiVersion": f"{api}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "load"},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": api, "kind": "User", "name": "load"}],
        }
    )
    return cluster.kubeconfig("load")


async def make_deployments(cluster: Cluster, pods: int) -> None:
    for number in range(10):
        labels = {"app": f"load-{number}"}
        spec = {"containers": [{"name": "app", "image": "busybox:1"}], "terminationGracePeriodSeconds": 1}
        made = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"load-{number}"},
            "spec": {
                "replicas": pods // 10,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
        await asyncio.to_thread(cluster.apply, made)


async def make_pods(client: RestKubeClient, pods: int) -> None:
    room = asyncio.Semaphore(CREATED_AT_ONCE)

    async def make(number: int) -> None:
        spec = PodSpec(
            containers=[Container(name="app", image="busybox:1")],
            termination_grace_period_seconds=1,
            tolerations=[Toleration(key="node.kubernetes.io/not-ready", operator="Exists")],
        )
        async with room:
            await client.create(Pod(metadata=ObjectMeta(name=f"load-{number}", namespace="default"), spec=spec))

    await gather_all(*(make(number) for number in range(pods)))


async def listed(client: RestKubeClient, selector: str = "") -> list[Pod]:
    page = await client.list(Pod, "default", field_selector=selector, resource_version="0")
    return list(page.items)


async def until_running(client: RestKubeClient, pods: int) -> None:
    """Asks for a single pod that does not run: a list of thousands would cost more than what is measured."""
    async with asyncio.timeout(ENDS_WITHIN):
        while True:
            try:
                waiting = await client.list(Pod, "default", field_selector="status.phase!=Running", limit=1)
                if not waiting.items and len(await listed(client)) >= pods:
                    return
            except ApiError as error:
                print(f"bench: {error}", file=sys.stderr)
            await asyncio.sleep(1.0)


async def deleted(cluster: Cluster, client: RestKubeClient, *, deployments: bool) -> float:
    """Seconds until nothing is left."""
    began = time.monotonic()
    if deployments:
        await asyncio.to_thread(cluster.kubectl, "delete", "deployments", "--all", "--wait=false")
    else:
        room = asyncio.Semaphore(CREATED_AT_ONCE)

        async def delete(name: str) -> None:
            async with room:
                await client.delete(Pod, name, "default")

        await gather_all(*(delete(str(pod.metadata.name)) for pod in await listed(client)))
    async with asyncio.timeout(ENDS_WITHIN):
        left = True
        while left:
            await asyncio.sleep(1.0)
            left = bool((await client.list(Pod, "default", limit=1)).items)
    return round(time.monotonic() - began, 1)


def times(pods: Sequence[Pod]) -> dict[str, Any]:
    """When pods were made, scheduled and ran, by the second; the API shows no finer times."""
    began = min(second(str(pod.metadata.creation_timestamp)) for pod in pods)
    shown: dict[str, list[float]] = {"scheduled": [], "running": []}
    waited: dict[str, list[float]] = {"to_scheduled": [], "scheduled_to_running": []}
    for pod in pods:
        made = second(str(pod.metadata.creation_timestamp))
        bound = next(second(str(c.last_transition_time)) for c in pod.status.conditions if c.type == "PodScheduled")
        state = pod.status.container_statuses[0].state
        assert state is not None and state.running is not None
        runs = second(str(state.running.started_at))
        shown["scheduled"].append(bound - began)
        shown["running"].append(runs - began)
        waited["to_scheduled"].append(bound - made)
        waited["scheduled_to_running"].append(runs - bound)
    return {
        **{f"{name}_last": round(max(values), 1) for name, values in shown.items()},
        **{f"{name}_most_a_second": busiest(values) for name, values in shown.items()},
        **{f"{name}_{part}": quantile(values, at) for name, values in waited.items() for part, at in QUANTILES},
    }


QUANTILES = (("p50", 0.5), ("p99", 0.99))


def second(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def quantile(values: list[float], at: float) -> float:
    return sorted(values)[min(len(values) - 1, int(at * len(values)))]


def busiest(values: list[float], window: int = 10) -> float:
    """The most in a second, over ten of them."""
    ordered, best = sorted(values), 0
    first = 0
    for last, value in enumerate(ordered):
        while ordered[first] <= value - window:
            first += 1
        best = max(best, last - first + 1)
    return best / window


# --- what the control plane says ----------------------------------------------------------------------------------


def scraped(cluster: Cluster) -> dict[str, Scrape]:
    urls = {"apiserver": cluster.url, "scheduler": cluster.scheduler_url, "manager": cluster.manager_url}
    return {name: Scrape(cluster, url) for name, url in urls.items()}


def figures(before: dict[str, Scrape], after: dict[str, Scrape], seconds: float) -> dict[str, Any]:
    verbs = {
        verb: after["apiserver"].by("apiserver_request_total", "verb").get(verb, 0.0)
        - before["apiserver"].by("apiserver_request_total", "verb").get(verb, 0.0)
        for verb in ("POST", "PUT", "PATCH", "GET", "LIST", "WATCH", "DELETE")
    }
    server, scheduler, manager = ((before[name], after[name]) for name in ("apiserver", "scheduler", "manager"))
    waited = "rest_client_rate_limiter_duration_seconds"
    return {
        "requests_a_second": {verb: round(count / seconds, 1) for verb, count in verbs.items()},
        "request_ms": {
            verb: mean_ms(*server, "apiserver_request_duration_seconds", verb=verb) for verb in ("POST", "PUT", "PATCH")
        },
        "etcd_request_ms": mean_ms(*server, "etcd_request_duration_seconds"),
        "flow_control_wait_ms": mean_ms(*server, "apiserver_flowcontrol_request_wait_duration_seconds"),
        "scheduling_attempt_ms": mean_ms(*scheduler, "scheduler_scheduling_attempt_duration_seconds"),
        "scheduling_algorithm_ms": mean_ms(*scheduler, "scheduler_scheduling_algorithm_duration_seconds"),
        "scheduler_client_wait_ms": mean_ms(*scheduler, waited),
        "manager_client_wait_ms": mean_ms(*manager, waited),
    }


# --- the tables ---------------------------------------------------------------------------------------------------


def tables(results: dict[str, Any]) -> dict[str, str]:
    return {section: make(results[section]) for section, make in TABLES.items() if section in results}


def rest_table(found: dict[str, Any]) -> str:
    lines = [
        "| nodes | ready after | memory | a node more | processor time | API server | etcd | controllers, scheduler |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    sizes = found["sizes"]
    grown = {
        after["nodes"]: 1024 * (memory(after) - memory(before)) / (after["nodes"] - before["nodes"])
        for before, after in pairwise(sizes)
    }
    for each in sizes:
        cores, nodes = each["cores"], each["nodes"]
        controllers = cores["kube-controller-manager"] + cores["kube-scheduler"]
        more = f"{grown[nodes]:.0f} KiB" if nodes in grown else ""
        lines.append(
            f"| {nodes:,} | {each['ready_after']:.0f} s | {memory(each):.0f} MiB | {more} | {share(cores['hollow'])} "
            f"| {share(cores['kube-apiserver'])}, {each['rss_mib']['kube-apiserver']:.0f} MiB | {share(cores['etcd'])} "
            f"| {share(controllers)} |"
        )
    return "\n".join([*lines, "", where(found)])


def schedule_table(found: dict[str, Any]) -> str:
    order = ("kube-apiserver", "etcd", "kube-scheduler", "kube-controller-manager", "hollow")
    lines = [
        f"| {found['nodes']:,} nodes | pods made | scheduled (most a second) | waited for that, p50, p99 | running "
        "(most a second) | ms of processor time a pod: API server, etcd, scheduler, controllers, nodes |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, each in found["variants"].items():
        spent, pods = each["costs"]["cpu_seconds"], each["pods"]
        lines.append(
            f"| {name} | {pods:,} in {each['created_after']:.0f} s "
            f"| after {each['scheduled_last']:.0f} s ({each['scheduled_most_a_second']:.0f}) "
            f"| {each['to_scheduled_p50']:.0f} s, {each['to_scheduled_p99']:.0f} s "
            f"| {each['running']:,} after {each['all_running_after']:.0f} s ({each['running_most_a_second']:.0f}) "
            f"| {', '.join(f'{1000 * spent[part] / pods:.1f}' for part in order)} |"
        )
    ended = [f"`{name}` ended {each['ended']}." for name, each in found["variants"].items() if "ended" in each]
    return "\n".join([*lines, "", *ended, where(found)])


def node_table(found: dict[str, Any]) -> str:
    start, steady, again, churn = (found[part] for part in ("start", "steady", "restart", "churn"))
    before, after = churn["before"], churn["after"]
    kept = f"{again['containers_kept']} containers kept"
    lines = [
        f"| {found['pods']} pods on one node | |",
        "|---|---:|",
        f"| first, median, last pod ready | {start['first_ready_after']:.1f}, {start['median_ready_after']:.1f}, "
        f"{start['last_ready_after']:.1f} s |",
        f"| processor time of their start | {start['cpu_seconds']:.1f} s |",
        f"| at rest, two probes a pod every 10 s | {share(steady['cores'])} of a core, {steady['rss_mib']:.0f} MiB "
        f"({found['idle_rss_mib']:.0f} MiB without pods) |",
        f"| a new agent has synced all, and all are ready | {again['all_synced_after']:.2f} s, "
        f"{again['all_ready_after']:.2f} s; {kept} |",
        f"| churn of {churn['pods']:,} pods beside them | {churn['pods_a_second']:.0f} a second, "
        f"{churn['cpu_ms_a_pod']:.1f} ms of processor time each |",
        f"| memory, tasks, descriptors before and after it | {before['rss_mib']:.0f} and {after['rss_mib']:.0f} MiB, "
        f"{before['tasks']} and {after['tasks']}, {before['descriptors']} and {after['descriptors']}; "
        f"{churn['folders_left']} folders left |",
    ]
    return "\n".join([*lines, "", where(found)])


def kubemark_table(found: dict[str, Any]) -> str:
    rest, pods = ({name: found[name][part] for name in ("pykubelet", "kubemark")} for part in ("rest", "pods"))
    started = "first, median, last of {pods} pods running (seen by the API)".format(**pods["pykubelet"])

    def row(what: str, text: str, figures: dict[str, Any]) -> str:
        return f"| {what} | {text.format(**figures['pykubelet'])} | {text.format(**figures['kubemark'])} |"

    for each in rest.values():
        each["percent"] = 100 * each["cores_a_node"]
    for each in pods.values():
        each["percent"] = 100 * each["cores"]
    lines = [
        f"| | pykubelet hollow | kubemark {found['version']} |",
        "|---|---:|---:|",
        row(f"memory of a node at rest ({rest['kubemark']['nodes']} nodes)", "{rss_mib_a_node:.1f} MiB", rest),
        row("processor time of a node at rest", "{percent:.2f} % of a core", rest),
        row(started, "{first_running_after:.1f}, {median_running_after:.1f}, {last_running_after:.1f} s", pods),
        row("processor time of their start", "{cpu_seconds:.1f} s", pods),
        row("with them at rest", "{percent:.2f} % of a core, {rss_mib:.0f} MiB", pods),
    ]
    return "\n".join([*lines, "", where(found)])


TABLES = {"rest": rest_table, "schedule": schedule_table, "node": node_table, "kubemark": kubemark_table}


def memory(each: dict[str, Any]) -> float:
    return float(each["rss_mib"]["hollow"])


def share(cores: float) -> str:
    return f"{100 * cores:.1f} %"


def where(found: dict[str, Any]) -> str:
    on = found["machine"]
    return f"Measured {on['date']} at commit {found['commit']}, {on['cpus']} × {on['cpu']}, load average {on['load']}."


def main(words: list[str]) -> None:
    what, rest_of = (words[0], words[1:]) if words else ("tables", [])
    if what == "rest":
        rest([int(word) for word in rest_of] or SIZES)
    elif what == "schedule":
        schedule(rest_of or list(VARIANTS))
    for section, text in tables(json.loads(RESULTS.read_text())).items():
        update_document(text, DOCUMENT, MARKS[section])


if __name__ == "__main__":
    main(sys.argv[1:])
