"""A real metrics-server on loopback, with the rights its own manifest gives it, registered at the API server.

It asks the nodes' servers (/metrics/resource) as a user of the cluster, which is what `kubectl top` shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bed.cluster import Cluster, go_programs
from tests.bed.parts import free_port
from tests.bed.services import Service

USER = "metrics-server"
RBAC = "rbac.authorization.k8s.io"
API_SERVICE = "v1beta1.metrics.k8s.io"
RESOLUTION = 10
"""Seconds between its rounds; it takes no less."""


@contextmanager
def metrics_server(cluster: Cluster) -> Iterator[Service]:
    """Runs for as long as the block lasts; its figures come a round or two later."""
    port = free_port()
    login = cluster.kubeconfig(USER)
    command: list[str | Path] = [
        go_programs("metricsserver") / "metrics-server",
        f"--kubeconfig={login}",
        f"--authentication-kubeconfig={login}",
        f"--authorization-kubeconfig={login}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={cluster.folder / 'metrics-server-tls'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--kubelet-use-node-status-port",
        "--kubelet-insecure-tls",
        "--kubelet-request-timeout=8s",  # must be less than a round
        f"--metric-resolution={RESOLUTION}s",
    ]
    service = Service("metrics-server", command, cluster.folder)
    cluster.apply(*_rights(), *_registration(port))
    service.start()
    try:
        yield service
    finally:
        service.kill()
        cluster.kubectl("delete", "apiservice", API_SERVICE)


def _rights() -> list[dict[str, Any]]:
    rules = [
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]},
    ]
    role = {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": {"name": USER}, "rules": rules}
    reader = "extension-apiserver-authentication-reader"
    return [
        role,
        _binding("ClusterRoleBinding", USER, "ClusterRole", USER),
        _binding("ClusterRoleBinding", f"{USER}:auth", "ClusterRole", "system:auth-delegator"),
        _binding("RoleBinding", f"{USER}:reader", "Role", reader, namespace="kube-system"),
    ]


def _binding(kind: str, name: str, role_kind: str, role: str, **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "roleRef": {"apiGroup": RBAC, "kind": role_kind, "name": role},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": USER}],
    }


def _registration(port: int) -> list[dict[str, Any]]:
    place = {"name": "metrics-server", "namespace": "kube-system"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": place,
            "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API_SERVICE},
            "spec": {
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {**place, "port": port},
            },
        },
    ]
