"""Troubles that only a cluster makes: ConfigMaps and Secrets that are not there; and where kubectl shows the cause."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.explain import fetch_explanation
from pykubelet.cli.local_socket import local_socket
from tests.bed.machine import wait_for
from tests.bed.watching import Objects
from tests.cluster.joined import Joined, Manifest, container_manifest, is_ready, pod_manifest

pytestmark = pytest.mark.cluster

SECRET = {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}}


def ready_message(pod: Manifest) -> str:
    conditions: list[dict[str, Any]] = pod["status"].get("conditions", [])
    return next((str(each.get("message", "")) for each in conditions if each["type"] == "Ready"), "")


def test_what_is_missing_is_named_by_the_node_in_the_status_and_in_events(node: Joined) -> None:
    mounts = [{"name": "settings", "mountPath": "/settings"}]
    node.apply(
        pod_manifest(
            "unsettled",
            containers=[container_manifest(volumeMounts=mounts)],
            volumes=[{"name": "settings", "configMap": {"name": "web"}}],
        ),
        pod_manifest("locked-out", containers=[container_manifest(env=[SECRET])]),
    )
    prefix = "containers with unready status: [app]: "
    for name, cause, missing in (
        ("unsettled", "object-missing", "volume settings needs configmap default/web, which does not exist"),
        ("locked-out", "config-missing", "its environment needs secret login, which does not exist"),
    ):
        pod = node.wait_pod(name, lambda pod, missing=missing: missing in ready_message(pod), "the status says why", 60)
        assert ready_message(pod).startswith(prefix)
        answer = fetch_explanation(NodeClient(Target(sockets=(local_socket(node.agent.root),))), "default", name)
        assert [view.id for view in answer.causes] == [cause]
        assert missing in answer.to_text()
        wait_for(lambda name=name: "Explained" in node.event_reasons(name), f"{name} is explained by an event")  # type: ignore[misc]
    made = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "web"}, "data": {"a": "b"}}]
    made.append({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "stringData": {"password": "x"}})
    node.apply(*made)

    def both_run(pods: Objects) -> bool:
        return all(is_ready(pods[f"default/{name}"]) for name in ("unsettled", "locked-out"))

    node.wait("both run once it is there", both_run, within=120)
    assert not ready_message(node.pod("unsettled"))
    node.delete("configmap/web", "secret/login")
