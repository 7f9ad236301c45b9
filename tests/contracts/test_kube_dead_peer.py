"""A peer that vanishes without a word (packets dropped) is noticed within 30 s, on a network of the test's own."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import ClusterEntry, Kubeconfig, UserEntry
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.model.errors import ApiDown
from tests.unit.clients.kube.api_server import as_it_is

pytestmark = [pytest.mark.node, pytest.mark.slow]

SERVER, CLIENT, PORT = "198.51.100.2", "198.51.100.1", 8080
# Answers one line of an endless chunked answer and then keeps quiet.
PROGRAM = f"""
import socket, time
listener = socket.create_server(("{SERVER}", {PORT}))
print("ready", flush=True)
kept = []
while True:
    peer, _ = listener.accept()
    peer.recv(65536)
    peer.sendall(b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n6\\r\\nhello\\n\\r\\n")
    kept.append(peer)
"""


def ip(*words: str) -> None:
    subprocess.run([shutil.which("ip") or "ip", *words], check=True, capture_output=True)


@pytest.fixture
def link() -> Iterator[str]:
    """The name of a link to another network namespace in which the server runs."""
    name = f"pkl{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", f"{CLIENT}/30", "dev", name)
        ip("link", "set", name, "up")
        ip("-n", name, "addr", "add", f"{SERVER}/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        command = [shutil.which("ip") or "ip", "netns", "exec", name, sys.executable, "-c", PROGRAM]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield name
            server.kill()
    finally:
        ip("netns", "del", name)


async def test_silent_loss_ends_a_watch_within_30_seconds(link: str) -> None:
    config = Kubeconfig(cluster=ClusterEntry(server=f"http://{SERVER}:{PORT}"), user=UserEntry())
    transport = Transport(ServerConnections(config, clock=SystemClock(), environ={}), agent="test")
    stream = transport.stream("/watch", silence=300, read=as_it_is)
    async with aclosing(stream):
        assert await anext(stream) == b"hello"
        ip("-n", link, "link", "set", "eth0", "down")
        ip("neigh", "replace", SERVER, "lladdr", "02:00:00:00:00:01", "dev", link)  # packets leave, and are lost
        before = asyncio.get_running_loop().time()
        with pytest.raises(ApiDown):
            await anext(stream)
        assert asyncio.get_running_loop().time() - before < 30
    await transport.close()
