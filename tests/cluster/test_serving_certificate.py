"""serverTLSBootstrap on the real control plane: ask, wait for approval, serve, renew while connections stay."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bed.cluster import Cluster
from tests.bed.runtime import BedContainerd
from tests.cluster.joined import joined

pytestmark = [pytest.mark.cluster, pytest.mark.node]

SIGNER = "kubernetes.io/kubelet-serving"
NODE = "signed"


def until(what: str, found: Callable[[], Any], within: float = 60.0) -> Any:
    deadline = time.monotonic() + within
    while not (seen := found()):
        assert time.monotonic() < deadline, f"not after {within:g} s: {what}"
        time.sleep(0.1)
    return seen


def pending(cluster: Cluster) -> list[str]:
    """Requests of our node for a serving certificate that nobody has answered."""
    return [
        each["metadata"]["name"]
        for each in cluster.get("csr")["items"]
        if each["spec"]["signerName"] == SIGNER
        and each["spec"]["username"] == f"system:node:{NODE}"
        and not each.get("status", {}).get("conditions")
    ]


def shown(address: str, port: int, context: ssl.SSLContext) -> bytes:
    """The certificate the server shows; raises OSError when there is none or it cannot be trusted."""
    with (
        socket.create_connection((address, port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname=address) as secured,
    ):
        return secured.getpeercert(binary_form=True) or b""


def test_a_serving_certificate_from_the_cluster(cluster: Cluster, containerd: BedContainerd, tmp_path: Path) -> None:
    address = containerd.gateway_ip
    context = ssl.create_default_context(cafile=str(cluster.ca_file))
    changes: dict[str, Any] = {"address": address, "serverTLSBootstrap": True}
    with joined(cluster, containerd, tmp_path, name=NODE, **changes) as node:
        port = int(node.agent.settings["port"])
        (first,) = until("the agent asks", lambda: pending(cluster))
        with pytest.raises(OSError):
            shown(address, port, context)
        cluster.kubectl("certificate", "approve", first)
        before = until("it serves", lambda: _served(address, port, context))
        current = node.agent.certificates / "kubelet-server-current.pem"
        assert current.is_symlink() and current.stat().st_mode & 0o777 == 0o600

        # Certificates of this cluster live so shortly that the next one is due at once.
        (second,) = until("the agent asks again", lambda: pending(cluster))
        with (
            socket.create_connection((address, port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=address) as kept,
        ):
            cluster.kubectl("certificate", "approve", second)
            until("the new one is shown", lambda: _served(address, port, context) not in (None, before))
            kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b"200 OK" in kept.recv(1000), "connections outlive the certificate"


def _served(address: str, port: int, context: ssl.SSLContext) -> bytes | None:
    try:
        return shown(address, port, context)
    except OSError:
        return None
