"""Stock kubectl on pods of a real node, through the real API server, by SPDY and by WebSocket.

The agent is set up as in a cluster: callers are known by certificate or token and the API server is asked what they
may do. Sizes are small; PYKUBELET_STREAM_MB=100 PYKUBELET_FORWARDS=1000 make them big.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.cluster import Cluster
from tests.bed.machine import wait_for
from tests.bed.metrics_server import metrics_server
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.cluster.joined import Joined, container_manifest, is_ready, joined, pod_manifest, state_of
from tests.cluster.kubectl import TRANSPORTS, Kubectl

pytestmark = [pytest.mark.cluster, pytest.mark.node]

MEGABYTES = int(os.environ.get("PYKUBELET_STREAM_MB", "10"))
FORWARDS = int(os.environ.get("PYKUBELET_FORWARDS", "200"))
PARALLEL = 20
LIVES = "if [ -e /data/been ]; then for n in 1 2 3 4 5; do echo line $n; usleep 2000; done; exec sleep 100000; fi; "
"""What the second life does; the first one only says so."""
FIRST = LIVES + "touch /data/been; echo first life; exit 3"
LISTEN = "while read x; do [ $x = end ] && exit 4; echo got $x; done"
SERVE = "echo hello from web > /tmp/index.html; httpd -p 8080 -h /tmp; echo serving; exec nc -ll -p 9000 -e cat"
"""A server of HTTP, and one that says back what it hears."""


@pytest.fixture(scope="module")
def node(cluster: Cluster, containerd: BedContainerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    changes: dict[str, Any] = {
        "address": containerd.gateway_ip,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(cluster.ca_file)},
        },
        "authorization": {"mode": "Webhook"},
    }
    with joined(cluster, containerd, tmp_path_factory.mktemp("node"), name="streamer", **changes) as made:
        data = {"name": "data", "emptyDir": {}}
        mount: dict[str, Any] = {"volumeMounts": [{"name": "data", "mountPath": "/data"}]}
        made.apply(
            pod_manifest("lives", node="streamer", volumes=[data], containers=[container_manifest(FIRST, **mount)]),
            pod_manifest(
                "shell",
                node="streamer",
                restartPolicy="Never",
                containers=[container_manifest(LISTEN, stdin=True)],
            ),
            pod_manifest("web", node="streamer", containers=[container_manifest(SERVE)]),
        )
        for name in ("lives", "shell", "web"):
            made.wait_running(name, within=60)
        made.wait_pod(
            "lives", lambda pod: is_ready(pod) and state_of(pod)["restartCount"] == 1, "was restarted", within=60
        )
        made.wait_log("lives", "line 5")
        made.wait_log("web", "serving")
        yield made


@pytest.fixture(params=TRANSPORTS)
def kubectl(node: Joined, request: pytest.FixtureRequest) -> Kubectl:
    return Kubectl(node.cluster, request.param)


@pytest.fixture
def plain(node: Joined) -> Kubectl:
    return Kubectl(node.cluster)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def some_bytes(megabytes: int) -> bytes:
    return random.Random(megabytes).randbytes(1 << 20) * megabytes


# --- logs ------------------------------------------------------------------------------------------


def test_logs(plain: Kubectl) -> None:
    lines = [f"line {n}".encode() for n in range(1, 6)]
    whole = b"\n".join(lines) + b"\n"
    assert plain.ok("logs", "lives") == whole
    assert plain.ok("logs", "lives", "--previous") == b"first life\n"
    assert plain.ok("logs", "lives", "--tail=2") == b"line 4\nline 5\n"
    assert plain.ok("logs", "lives", "--limit-bytes=9") == whole[:9]
    assert plain.ok("logs", "lives", "--since=1000s") == whole
    stamped = [line.split(b" ", 1) for line in plain.ok("logs", "lives", "--timestamps").splitlines()]
    assert [line for _, line in stamped] == lines
    third = stamped[2][0].decode()
    since = plain.ok("logs", "lives", f"--since-time={third}")  # whole seconds arrive
    assert whole.endswith(since) and b"line 3\n" in since, since
    assert plain.ok("logs", "lives", "--since-time=2100-01-01T00:00:00Z") == b""
    done = plain.run("logs", "shell", "--previous")
    assert (done.code, b"previous terminated container" in done.err) == (1, True), done.err


def test_logs_are_followed_to_the_end_of_the_container(node: Joined, plain: Kubectl) -> None:
    script = "echo begin; until [ -e /tmp/go ]; do usleep 50000; done; for n in 1 2 3; do echo more $n; done"
    node.apply(pod_manifest("brief", script, node="streamer", restartPolicy="Never"))
    node.wait_running("brief")
    with plain.running("logs", "-f", "--timestamps", "brief") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline().endswith(b" begin\n")
        # The container may end, and this with it, before it can say that it went well.
        plain.run("exec", "brief", "--", "touch", "/tmp/go")
        rest = follower.stdout.read()
        assert [line.split(b" ", 1)[1] for line in rest.splitlines()] == [b"more 1", b"more 2", b"more 3"]
        assert follower.wait(30) == 0
    node.delete("pod", "brief")


# --- exec and attach -------------------------------------------------------------------------------


def test_exec_passes_streams_and_exit_code_on(kubectl: Kubectl) -> None:
    done = kubectl.run("exec", "lives", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.code, done.out, done.err.splitlines()[0]) == (7, b"out\n", b"err")
    done = kubectl.run("exec", "lives", "--", "no-such-program")
    assert (done.code, b"executable file not found" in done.err) == (1, True), done.err
    done = kubectl.run("exec", "lives", "-c", "nobody", "--", "true")
    assert (done.code, b"nobody" in done.err) == (1, True), done.err


def test_exec_pipes_both_ways(kubectl: Kubectl) -> None:
    data = some_bytes(MEGABYTES)
    out = kubectl.ok("exec", "-i", "lives", "--", "cat", stdin=data, within=300)
    assert (len(out), digest(out)) == (len(data), digest(data))
    counted = kubectl.ok("exec", "-i", "lives", "--", "sha256sum", stdin=data, within=300)
    assert counted.split()[0].decode() == digest(data)


def test_a_terminal_is_resized(kubectl: Kubectl) -> None:
    loop = "while :; do stty size; usleep 100000; done"
    with kubectl.terminal("exec", "-it", "lives", "--", "sh", "-c", loop, size=(43, 132)) as terminal:
        terminal.wait_for(b"43 132")
        terminal.resize(50, 99)
        terminal.wait_for(b"50 99")
        terminal.type(b"\x03")
        assert terminal.end() == 130


def test_attach(kubectl: Kubectl) -> None:
    with kubectl.running("attach", "-i", "shell") as attached:
        assert attached.stdin is not None and attached.stdout is not None
        attached.stdin.write(b"one\n")
        attached.stdin.flush()
        lines = iter(attached.stdout.readline, b"")
        assert next(line for line in lines if line.startswith(b"got")) == b"got one\n"


# --- port-forward and cp ---------------------------------------------------------------------------


async def fetch(port: int) -> bytes:
    """Ends as soon as it has all: when the server ends first, containerd waits a second for the caller."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /index.html HTTP/1.1\r\nHost: x\r\n\r\n")
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head[:15] + await reader.readexactly(length)
    finally:
        writer.close()
        await writer.wait_closed()


async def echoed(port: int, data: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    found = bytearray()

    async def send() -> None:
        writer.write(data)
        await writer.drain()

    sending = asyncio.create_task(send())
    while len(found) < len(data) and (block := await reader.read(1 << 20)):
        found += block
    await sending
    writer.close()
    await writer.wait_closed()
    return bytes(found)


async def test_port_forward_serves_many_at_once(kubectl: Kubectl) -> None:
    async with kubectl.forwarding("web", 8080) as port, asyncio.timeout(600):
        limit = asyncio.Semaphore(PARALLEL)

        async def one() -> bytes:
            async with limit:
                try:
                    return await fetch(port)
                except (OSError, asyncio.IncompleteReadError) as error:
                    return repr(error).encode()

        answers = await asyncio.gather(*(one() for _ in range(FORWARDS)))
    wrong = [answer for answer in answers if answer != b"http/1.1 200 ok" + b"hello from web\n"]
    assert not wrong, (len(wrong), wrong[:3])


async def test_port_forward_carries_much(kubectl: Kubectl) -> None:
    data = some_bytes(MEGABYTES)
    async with kubectl.forwarding("web", 9000) as port, asyncio.timeout(300):
        out = await echoed(port, data)
    assert (len(out), digest(out)) == (len(data), digest(data))


def test_cp_both_ways(kubectl: Kubectl, tmp_path: Path) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    data = some_bytes(3)
    (folder / "big").write_bytes(data)
    (folder / "with blanks").write_text("hello")
    kubectl.ok("cp", str(folder), "lives:/tmp/copied")
    kubectl.ok("cp", "lives:/tmp/copied", str(tmp_path / "back"))
    assert digest((tmp_path / "back" / "big").read_bytes()) == digest(data)
    assert (tmp_path / "back" / "with blanks").read_text() == "hello"
    kubectl.ok("exec", "lives", "--", "rm", "-r", "/tmp/copied")


def test_debug_with_an_ephemeral_container(node: Joined, kubectl: Kubectl, request: pytest.FixtureRequest) -> None:
    name = f"look-{request.node.callspec.params['kubectl']}"
    script = "read x; echo saw $x; ps | grep -c 'sleep 10000[0]'; sleep 1"
    words = ("debug", "-i", "lives", f"--image={BUSYBOX}", f"--container={name}", "--target=app")
    with kubectl.running(*words, "--", "sh", "-c", script) as debugging:
        assert debugging.stdin is not None and debugging.stdout is not None
        node.wait_pod("lives", lambda pod: "running" in state_of(pod, name).get("state", {}), "runs the debugger")
        debugging.stdin.write(b"you\n")
        debugging.stdin.flush()
        said = [line for line in iter(debugging.stdout.readline, b"")]
    assert b"saw you\n" in said, said
    assert said[said.index(b"saw you\n") + 1] == b"1\n", said  # it sees the processes of its target
    node.wait_pod("lives", lambda pod: "terminated" in state_of(pod, name).get("state", {}), "ended the debugger")
    assert b"saw you" in kubectl.ok("logs", "lives", "-c", name)


# --- figures ---------------------------------------------------------------------------------------


def test_top_through_metrics_server(node: Joined, plain: Kubectl) -> None:
    node.apply(pod_manifest("busy", "while :; do :; done", node="streamer"))
    node.wait_running("busy")
    with metrics_server(node.cluster):

        def figures(*words: str) -> dict[str, list[str]]:
            done = plain.run("top", *words, "--no-headers")
            lines = done.out.decode().splitlines() if done.code == 0 else []
            return {line.split()[0]: line.split()[1:] for line in lines}

        cores, _, memory, _ = wait_for(lambda: figures("node").get("streamer", []), "figures of nodes", within=90)
        assert int(cores.removesuffix("m")) > 100 and int(memory.removesuffix("Mi")) > 10
        wanted, deadline = {"busy", "lives", "shell", "web"}, time.monotonic() + 60
        pods: dict[str, list[str]] = {}
        while not wanted <= pods.keys():
            assert time.monotonic() < deadline, f"no figures of {wanted - pods.keys()}"
            pods = figures("pod")
        assert pods.keys() == wanted
        assert int(pods["busy"][0].removesuffix("m")) > 100, pods
        assert int(pods["lives"][0].removesuffix("m")) < 100, pods
        by_container = wait_for(lambda: figures("pod", "busy", "--containers"), "figures of containers")
        assert by_container["busy"][0] == "app"
    summary = json.loads(plain.ok("get", "--raw", "/api/v1/nodes/streamer/proxy/stats/summary"))
    found = {pod["podRef"]["name"]: pod for pod in summary["pods"]}
    assert found["busy"]["cpu"]["usageCoreNanoSeconds"] > 10**9 < summary["node"]["cpu"]["usageCoreNanoSeconds"]
    assert found["busy"]["containers"][0]["memory"]["workingSetBytes"] > 0
    node.delete("pod", "busy")
