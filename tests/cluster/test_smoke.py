"""The control plane of the bed proves itself: it is healthy, knows no node yet, and tells users apart."""

from __future__ import annotations

import json

import pytest

from tests.bed.cluster import VERSION, Cluster
from tests.bed.machine import wait_for

pytestmark = pytest.mark.cluster


def test_apiserver_is_ready(cluster: Cluster) -> None:
    assert "readyz check passed" in cluster.kubectl("get", "--raw", "/readyz?verbose")


def test_versions_are_the_wanted_ones(cluster: Cluster) -> None:
    versions = json.loads(cluster.kubectl("version", "-o", "json"))
    assert versions["serverVersion"]["gitVersion"] == VERSION
    assert versions["clientVersion"]["gitVersion"] == VERSION
    assert (versions["serverVersion"]["major"], versions["serverVersion"]["minor"]) == ("1", "36")


def test_no_node_is_there_at_first(cluster: Cluster) -> None:
    """Tests that register nodes remove them again."""
    assert cluster.get("nodes")["items"] == []


def test_node_login_is_the_node_and_nothing_more(cluster: Cluster) -> None:
    login = cluster.node_kubeconfig("smoke")
    who = json.loads(cluster.kubectl("auth", "whoami", "-o", "json", kubeconfig=login))["status"]["userInfo"]
    assert who["username"] == "system:node:smoke"
    assert "system:nodes" in who["groups"]
    refused = cluster.kubectl("get", "secrets", "-A", kubeconfig=login, check=False)
    assert "can only read resources of this type with specific" in refused or "forbidden" in refused


def test_node_may_register_only_itself(cluster: Cluster) -> None:
    login = cluster.node_kubeconfig("smoke")
    other = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}})
    assert "not allowed to modify node" in cluster.kubectl(
        "create", "-f", "-", stdin=other, kubeconfig=login, check=False
    )
    cluster.kubectl("create", "-f", "-", stdin=other.replace("other", "smoke"), kubeconfig=login)
    cluster.kubectl("delete", "node", "smoke")


def test_bootstrap_token_may_ask_for_a_certificate(cluster: Cluster) -> None:
    login = cluster.bootstrap_kubeconfig
    words = ("auth", "can-i", "create", "certificatesigningrequests")
    wait_for(
        lambda: "yes" in cluster.kubectl(*words, kubeconfig=login, check=False).splitlines(),
        "the API server knows the grant",
    )
    assert "forbidden" in cluster.kubectl("get", "nodes", kubeconfig=login, check=False)


def test_pods_get_a_service_account(cluster: Cluster) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "smoke"},
        "spec": {"nodeName": "nowhere", "containers": [{"name": "main", "image": "pykubelet.local/busybox:1"}]},
    }
    cluster.apply(pod)
    try:
        assert cluster.get("pod", "smoke")["spec"]["serviceAccountName"] == "default"
    finally:
        cluster.kubectl("delete", "pod", "smoke", "--grace-period=0", "--force")


def test_apiserver_comes_back_with_its_data(cluster: Cluster) -> None:
    cluster.kubectl("create", "configmap", "smoke", "--from-literal=a=b")
    cluster.stop_apiserver()
    assert "refused" in cluster.kubectl("get", "configmap", "smoke", check=False)
    cluster.start_apiserver()
    assert cluster.get("configmap", "smoke")["data"] == {"a": "b"}
    cluster.kubectl("delete", "configmap", "smoke")
    cluster.restart_controllers()  # whoever comes next should not wait for their own recovery
