"""`pykubelet hollow` on a real control plane: nodes are ready, the scheduler's pods run on them and go again."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.cluster import Cluster
from tests.bed.watching import Objects, watching
from tests.cluster.joined import a_workload, condition, is_ready, of_app, pod_manifest

pytestmark = pytest.mark.cluster

NODES = 10
WORKLOAD = """
machine: {zones: 2, pods: 20}
runtime: {sandbox: {median: 0.05, p99: 0.3}, start: 0.02}
images: {size: 5Mi, latency: 0.05}
programs:
- {pods: "job-*", runs: 1}
- {pods: "web-*", readyAfter: 0.5}
"""


@pytest.fixture
def hollow_nodes(cluster: Cluster, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    (tmp_path / "workload.yaml").write_text(WORKLOAD)
    (tmp_path / "config.yaml").write_text(
        "{apiVersion: kubelet.config.k8s.io/v1beta1, kind: KubeletConfiguration, nodeLeaseDurationSeconds: 8}"
    )
    words = [
        *("hollow", "--nodes", str(NODES), "--kubeconfig", cluster.admin_kubeconfig, "--folder", tmp_path),
        *("--workload", tmp_path / "workload.yaml", "--config", tmp_path / "config.yaml"),
    ]
    with subprocess.Popen([sys.executable, "-m", "pykubelet", *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
            cluster.kubectl("delete", "deployment,job,pod", "--all", "--force", "--grace-period=0", check=False)
            cluster.kubectl("delete", "nodes", "-l", "pykubelet.local/hollow=true", check=False)


def ready(nodes: Objects) -> list[dict[str, Any]]:
    """Nodes that pods are scheduled to."""
    return [each for each in nodes.values() if condition(each, "Ready") == "True" and not each["spec"].get("taints")]


def test_hollow_nodes_run_the_pods_of_the_cluster(cluster: Cluster, hollow_nodes: subprocess.Popen[str]) -> None:
    with watching(cluster, "/api/v1/nodes") as nodes, watching(cluster, "/api/v1/pods") as pods:
        nodes.wait(f"{NODES} hollow nodes ready", lambda found: len(ready(found)) == NODES, 90)
        zones = {each["metadata"]["labels"]["topology.kubernetes.io/zone"] for each in nodes.objects.values()}
        assert zones == {"zone-0", "zone-1"}

        cluster.apply(a_workload("Deployment", "web", replicas=40), pod_manifest("one", node="hollow-3"))
        cluster.apply(a_workload("Job", "job", pod={"restartPolicy": "Never"}, completions=3, parallelism=3))
        pods.wait("40 pods ready", lambda found: sum(map(is_ready, of_app(found, "web"))) == 40, 60)
        pods.wait("the bound pod ready", lambda found: is_ready(found["default/one"]), 60)
        used = {pod["spec"]["nodeName"] for pod in of_app(pods.objects, "web")}
        addresses = {pod["status"]["podIP"] for pod in of_app(pods.objects, "web")}
        assert len(used) == NODES and len(addresses) == 40
        pods.wait(
            "three jobs done",
            lambda found: [p["status"]["phase"] for p in of_app(found, "job")].count("Succeeded") == 3,
        )

        cluster.kubectl("delete", "deployment,job,pod", "--all")
        pods.wait("all pods gone", lambda found: not found, 60)

    hollow_nodes.send_signal(signal.SIGTERM)
    said, _ = hollow_nodes.communicate(timeout=30)
    assert hollow_nodes.returncode == 0 and f"{NODES} of {NODES} nodes ready" in said
