"""Stock kubectl through the real API server to our server and a real containerd: logs, exec, attach, port-forward.

The node and its pod are only told to the API server, not run by an agent: what is tested is the server alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pty
import random
import subprocess
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pykubelet.settings.schema_server import Authentication, X509Authentication
from tests.bed.cluster import Cluster
from tests.bed.parts import free_port
from tests.bed.runtime import BUSYBOX, TESTSERVER, BedContainerd
from tests.node.test_server import served

pytestmark = [pytest.mark.cluster, pytest.mark.node]

NODE = "served"
POD = "streams"


def node_object(address: str, port: int) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }


def pod_object(image: str) -> dict[str, Any]:
    container = {"name": "main", "image": image, "stdin": True}
    spec = {"nodeName": NODE, "containers": [container], "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": "default"}, "spec": spec}


class Kubectl:
    def __init__(self, cluster: Cluster) -> None:
        self._base = [
            str(cluster.programs / "kubectl"),
            f"--kubeconfig={cluster.kubeconfig('root', ['system:masters'])}",
        ]

    def command(self, *words: str) -> list[str]:
        return [*self._base, *words]

    async def run(self, *words: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        process = await asyncio.create_subprocess_exec(
            *self.command(*words), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return process.returncode, out, err


@asynccontextmanager
async def reachable(
    cluster: Cluster, containerd: BedContainerd, folder: Path, image: str, *command: str
) -> AsyncIterator[Kubectl]:
    """A pod behind our server, known to the API server."""
    address, port = containerd.gateway_ip, free_port()
    authentication = Authentication(x509=X509Authentication(client_ca_file=str(cluster.ca_file)))
    changes = {"address": address, "port": port, "authentication": authentication}
    user = "kube-apiserver-kubelet-client"
    serving = cluster.serving_certificate(f"system:node:{NODE}", [address])
    async with served(containerd, folder, image, *command, settings=changes, user=user, serving=serving):
        kubectl = Kubectl(cluster)
        kinds = (node_object(address, port), pod_object(image))
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": kinds}).encode()
        code, _, problem = await kubectl.run("create", "-f", "-", stdin=text)
        assert code == 0, problem
        status = json.dumps({"status": kinds[0]["status"]})
        await kubectl.run("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", status)
        try:
            yield kubectl
        finally:
            await kubectl.run("delete", "pod", POD, "--force", "--grace-period=0")
            await kubectl.run("delete", "node", NODE)


async def test_logs_and_exec(cluster: Cluster, containerd: BedContainerd, tmp_path: Path) -> None:
    data = random.Random(1).randbytes(1024 * 1024) * 20
    script = "for n in 1 2 3; do echo line $n; sleep 0.1; done; sleep 1000"
    async with reachable(cluster, containerd, tmp_path, BUSYBOX, "sh", "-c", script) as kubectl:
        assert (await kubectl.run("exec", POD, "--", "echo", "hi")) == (0, b"hi\n", b"")
        code, _, err = await kubectl.run("exec", POD, "--", "sh", "-c", "exit 7")
        assert (code, b"exit code 7" in err) == (7, True)
        code, out, err = await kubectl.run("exec", "-i", POD, "--", "cat", stdin=data)
        assert (code, hashlib.sha256(out).digest()) == (0, hashlib.sha256(data).digest()), err
        assert (await kubectl.run("logs", POD, "--tail=2"))[1] == b"line 2\nline 3\n"
        code, _, err = await kubectl.run("logs", POD, "--previous")
        assert (code, b"not found" in err) == (1, True)
        code, _, err = await kubectl.run("exec", POD, "-c", "nope", "--", "true")
        assert code == 1, err


async def test_a_terminal(cluster: Cluster, containerd: BedContainerd, tmp_path: Path) -> None:
    async with reachable(cluster, containerd, tmp_path, BUSYBOX, "sleep", "1000") as kubectl:
        controller, terminal = pty.openpty()
        termios.tcsetwinsize(terminal, (43, 132))
        command = kubectl.command("exec", "-it", POD, "--", "sh", "-c", "sleep 0.5; stty size; exit 5")
        process = await asyncio.create_subprocess_exec(*command, stdin=terminal, stdout=terminal, stderr=terminal)
        async with asyncio.timeout(30):
            code = await process.wait()
        os.close(terminal)
        shown = os.read(controller, 10_000)
        os.close(controller)
        assert (code, b"43 132" in shown) == (5, True), shown


async def test_port_forward(cluster: Cluster, containerd: BedContainerd, tmp_path: Path) -> None:
    async with reachable(cluster, containerd, tmp_path, TESTSERVER) as kubectl:
        # kubectl forwards only to pods that run.
        await kubectl.run(
            "patch", "pod", POD, "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Running"}}'
        )
        process = await asyncio.create_subprocess_exec(
            *kubectl.command("port-forward", POD, ":8080"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(30):
                first = (await process.stdout.readline()).decode()
                assert "Forwarding from 127.0.0.1:" in first, first
                port = first.split("127.0.0.1:")[1].split(" ")[0]

                async def ask(session: aiohttp.ClientSession) -> int:
                    async with session.get(f"http://127.0.0.1:{port}/hostname") as answer:
                        await answer.read()
                        return answer.status

                connector = aiohttp.TCPConnector(force_close=True, limit=20)
                async with aiohttp.ClientSession(connector=connector) as session:
                    found = await asyncio.gather(*(ask(session) for _ in range(100)))
                assert found == [200] * 100
        finally:
            process.terminate()
            await process.communicate()
