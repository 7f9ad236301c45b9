"""Pods broken on purpose on the real runtime, and what the node says about each of them."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.explain import fetch_explanation
from pykubelet.cli.local_socket import local_socket
from pykubelet.cli.pods import find_on
from pykubelet.explain.view import Explanation
from pykubelet.wire import cri_pb2 as cri
from tests.bed.inside import Inside, container_manifest, looking_inside, pod_manifest
from tests.bed.parts import free_port, scratch_folder
from tests.bed.runtime import BedContainerd
from tests.grpc_services import Stub

pytestmark = pytest.mark.node

FAILING = "echo starting; echo 'no database at db:5432' >&2; exit 3"
HUNGRY = "a=x; while true; do a=$a$a$a$a; done"
STUBBORN = "trap '' TERM; while true; do sleep 1; done"
PROBE = {"periodSeconds": 1, "failureThreshold": 2}
NO = {"exec": {"command": ["sh", "-c", "echo the disk is read-only; exit 1"]}}


def broken(image: str) -> dict[str, Any]:
    return container_manifest(image=image, imagePullPolicy="IfNotPresent")


def pods(registry: str) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """The cause, the pod that has it, and what the answer must hold."""
    yield "image-missing", pod_manifest("missing", broken(f"{registry}/no/such:1")), ["no/such:1 does not exist"]
    yield (
        "registry-denied",
        pod_manifest("denied", broken(f"{registry}/denied/app:1")),
        ["not allowed", "imagePullSecrets"],
    )
    yield (
        "registry-unreachable",
        pod_manifest("unreachable", broken(f"127.0.0.1:{free_port()}/x/app:1")),
        ["cannot be reached", "connection refused"],
    )
    yield "image-pulling", pod_manifest("hanging", broken(f"{registry}/hang/app:1")), ["has been pulled for"]
    yield (
        "image-never-pulled",
        pod_manifest("never", container_manifest(image="localhost/none:1")),
        ["imagePullPolicy is Never"],
    )
    yield "image-name-invalid", pod_manifest("misnamed", broken("UPPER/Case:1")), ["is not the name of an image"]
    yield (
        "mount-failing",
        pod_manifest(
            "mount",
            container_manifest(volumeMounts=[{"name": "data", "mountPath": "/data"}]),
            volumes=[{"name": "data", "hostPath": {"path": "/nonexistent/folder", "type": "Directory"}}],
        ),
        ["volume data", "/nonexistent/folder"],
    )
    yield (
        "init-failed",
        pod_manifest("init", container_manifest(), initContainers=[container_manifest("prepare", FAILING)]),
        ["init container prepare", "exit code 3", "| no database at db:5432"],
    )
    yield (
        "crash-loop",
        pod_manifest("crash", container_manifest(script=FAILING)),
        ["exit code 3", "| no database at db:5432", "in "],
    )
    yield (
        "out-of-memory",
        pod_manifest("hungry", container_manifest(script=HUNGRY, resources={"limits": {"memory": "16Mi"}})),
        ["more memory than its limit (16Mi)"],
    )
    yield (
        "probe-kills",
        pod_manifest("unlively", container_manifest(livenessProbe=NO | PROBE)),
        ["liveness probe", "saw: the disk is read-only"],
    )
    yield (
        "probe-readiness",
        pod_manifest("unready", container_manifest(readinessProbe=NO | PROBE)),
        ["readiness probe of container app", "saw: the disk is read-only"],
    )
    yield (
        "probe-startup",
        pod_manifest("slow", container_manifest(startupProbe=NO | {"periodSeconds": 1, "failureThreshold": 1000})),
        ["startup probe", "1000 failures in a row"],
    )
    yield (
        "hook-failed",
        pod_manifest(
            "hook", container_manifest(lifecycle={"postStart": {"exec": {"command": ["sh", "-c", "echo no; exit 4"]}}})
        ),
        ["postStart hook failed", "exited with 4"],
    )
    yield (
        "hook-hangs",
        pod_manifest(
            "hanging-hook", container_manifest(lifecycle={"postStart": {"exec": {"command": ["sleep", "1000"]}}})
        ),
        ["postStart hook has been running for"],
    )
    yield "command-missing", pod_manifest("command", container_manifest(command=["/nope"])), ["command is not in image"]
    yield (
        "failed-for-good",
        pod_manifest("failed", container_manifest(script=FAILING), restartPolicy="Never"),
        ["restartPolicy Never", "exit code 3", "| no database at db:5432"],
    )
    yield (
        "node-short",
        pod_manifest("large", container_manifest(resources={"requests": {"cpu": "5000"}})),
        ["too little cpu", "cores are missing"],
    )
    yield (
        "not-admitted",
        pod_manifest("elsewhere", container_manifest(), nodeSelector={"disk": "ssd"}),
        ["NodeAffinity", "not tried again"],
    )
    yield (
        "config-error",
        pod_manifest("rootless", container_manifest(securityContext={"runAsNonRoot": True})),
        ["CreateContainerConfigError", "run as root"],
    )
    yield (
        "create-failed",
        pod_manifest(
            "covered",
            container_manifest(volumeMounts=[{"name": "folder", "mountPath": "/bin/busybox"}]),
            volumes=[{"name": "folder", "emptyDir": {}}],
        ),
        ["the runtime said", "error mounting"],
    )
    yield (
        "sandbox-failed",
        pod_manifest(
            "untuned", container_manifest(), securityContext={"sysctls": [{"name": "fs.mqueue.none", "value": "1"}]}
        ),
        ["cannot make its sandbox", "mqueue/none"],
    )
    yield (
        "init-running",
        pod_manifest("busy", container_manifest(), initContainers=[container_manifest("prepare")]),
        ["wait for init container prepare", "has been running for"],
    )
    yield (
        "probe-liveness",
        pod_manifest("ailing", container_manifest(livenessProbe=NO | {"periodSeconds": 1, "failureThreshold": 1000})),
        ["will soon be restarted", "1000 failures in a row"],
    )
    yield (
        "readiness-gate",
        pod_manifest("gated", container_manifest(), readinessGates=[{"conditionType": "example.com/up"}]),
        ["somebody else must set the condition: example.com/up"],
    )
    yield (
        "deadline",
        pod_manifest("deadline", container_manifest(), activeDeadlineSeconds=1),
        ["activeDeadlineSeconds allows (1 s)"],
    )


class Registry(http.server.BaseHTTPRequestHandler):
    """Has nothing; says so, refuses, or hangs, by the first part of the image's name."""

    held = threading.Event()

    def do_GET(self) -> None:
        status = 200 if self.path in ("/v2/", "/v2") else 404
        if "/denied/" in self.path:
            status = 403
        if "/hang/" in self.path:
            self.held.wait(600)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *ignored: object) -> None:
        return


@contextmanager
def a_registry() -> Iterator[str]:
    Registry.held.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        Registry.held.set()
        server.shutdown()
        server.server_close()
        thread.join()


class Asked:
    def __init__(self, inside: Inside) -> None:
        self.inside = inside
        self._node = NodeClient(Target(sockets=(local_socket(inside.agent.root),)))

    def explained(self, pod: str, cause: str, says: Sequence[str] = (), within: float = 60.0) -> Explanation:
        """The node's answer once it is this cause and says all that; between two restarts it may say less."""
        last: list[Explanation] = []

        def asked() -> Explanation | None:
            try:
                found = fetch_explanation(self._node, "default", pod)
            except CommandFailed:
                return None
            last[:] = [found]
            named = any(view.id == cause for view in found.causes)
            return found if named and all(words in found.to_text() for words in says) else None

        try:
            found = self.inside.wait(asked, f"{pod} is explained by {cause}", within)
        except AssertionError as error:
            raise AssertionError(
                f"{pod} is not explained by {cause}: {last[0].to_text() if last else error}"
            ) from error
        assert found is not None
        return found

    def unready(self, pod: str) -> str:
        """The message of the pod's Ready condition."""
        found = find_on(self._node, "default", pod)
        return next((each.message or "" for each in found.status.conditions if each.type == "Ready"), "")


@pytest.fixture(scope="module")
def asked(containerd: BedContainerd) -> Iterator[Asked]:
    with scratch_folder("pklx-") as folder, a_registry() as registry:
        made = [pod for _, pod, _ in pods(registry)]
        _CASES.update({cause: (pod["metadata"]["name"], says) for cause, pod, says in pods(registry)})
        changes = {"serializeImagePulls": False, "allowedUnsafeSysctls": ["fs.mqueue.none"]}
        with looking_inside(folder, containerd, *made, **changes) as inside:
            yield Asked(inside)
            Registry.held.set()


_CASES: dict[str, tuple[str, list[str]]] = {}
CAUSES = [cause for cause, _, _ in pods("127.0.0.1:1")]


@pytest.mark.parametrize("cause", CAUSES)
def test_a_broken_pod_is_explained(asked: Asked, cause: str) -> None:
    pod, says = _CASES[cause]
    found = asked.explained(pod, cause, says)
    text = found.to_text()
    assert found.pod == f"default/{pod}"
    assert not found.healthy
    assert found.timeline, text
    for view in found.causes:
        assert view.brief and "?" not in view.brief, text
        assert "?" not in view.next + "".join(view.chain), text


def test_a_healthy_pod_is_healthy(asked: Asked) -> None:
    asked.inside.put(pod_manifest("fine", container_manifest()))
    asked.inside.said("fine")
    found = asked.inside.wait(lambda: _healthy(asked, "fine"), "fine is healthy")
    steps = [moment.step for moment in found.timeline]
    assert steps.index("sandbox") < steps.index("start")
    assert all(moment.seconds is not None for moment in found.timeline if moment.step == "start")


def _healthy(asked: Asked, pod: str) -> Explanation | None:
    try:
        found = fetch_explanation(asked._node, "default", pod)
    except CommandFailed:  # the agent has not read the manifest yet
        return None
    return found if found.healthy and found.state == "healthy" else None


def test_the_end_waits_for_a_hook_and_for_a_container(asked: Asked) -> None:
    hook = {"preStop": {"exec": {"command": ["sleep", "1000"]}}}
    asked.inside.put(
        pod_manifest("hooked", container_manifest(lifecycle=hook), terminationGracePeriodSeconds=20),
        pod_manifest(
            "stubborn",
            container_manifest(script=STUBBORN, command=["sh", "-c", STUBBORN]),
            terminationGracePeriodSeconds=20,
        ),
    )
    asked.inside.said("hooked")
    asked.inside.wait(lambda: _healthy(asked, "stubborn"), "stubborn runs")
    asked.inside.drop("hooked", "stubborn")
    assert "preStop hook has been running for" in asked.explained("hooked", "stopping-hook").to_text()
    found = asked.explained("stubborn", "stopping-container")
    assert found.state == "ending"
    assert "it is killed" in found.to_text()


def test_the_cause_is_in_the_conditions_and_events_too(asked: Asked) -> None:
    said = asked.inside.event("crash", "Explained", "The program of container app keeps ending (exit code 3")
    assert "You can: see what it said" in said

    def said_of(pod: str, words: str) -> str:
        # Between two tries the condition may say less: each look is judged by itself.
        return message if words in (message := asked.unready(pod)) else ""

    why = asked.inside.wait(lambda: said_of("crash", "keeps ending (exit code 3"), "the Ready condition says why")
    assert why.startswith("containers with unready status: [app]: ")
    asked.inside.wait(lambda: said_of("missing", "no/such:1 does not exist in its registry"), "missing says why")


def _network_of(asked: Asked) -> str:
    """The pod network that containerd uses now."""
    with grpc.insecure_channel(f"unix:{asked.inside.containerd.socket}") as channel:
        stub = Stub(channel, cri, "RuntimeService")
        return str(stub.Status(cri.StatusRequest(verbose=True), timeout=60).info.get("cniconfig", ""))


def test_a_broken_pod_network_is_explained(asked: Asked) -> None:
    """First plugins that fail, then none at all; both as a person would break them."""
    folder = asked.inside.containerd.state_dir / "cni"
    (real,) = folder.glob("*.conflist")
    broken = folder / "00-broken.conflist"
    plugin = {"type": "no-such-plugin"}
    broken.write_text(json.dumps({"cniVersion": "0.4.0", "name": "broken", "plugins": [plugin]}))
    text = real.read_text()
    try:
        # Earlier the pod would get the network that works.
        asked.inside.wait(lambda: "no-such-plugin" in _network_of(asked), "containerd has read the broken file")
        asked.inside.put(pod_manifest("unplugged", container_manifest()))
        asked.explained("unplugged", "sandbox-network", ["the network plugin failed", "no-such-plugin"])
        real.unlink()
        broken.unlink()
        asked.inside.put(pod_manifest("offline", container_manifest()))
        asked.explained("offline", "network-not-ready", ["no pod with a network of its own can start"])
    finally:
        broken.unlink(missing_ok=True)
        # containerd looks again when a file is written, not when one is moved in.
        real.write_text(text)
    asked.inside.wait(lambda: _healthy(asked, "offline"), "the network is back")
    asked.inside.wait(lambda: _healthy(asked, "unplugged"), "its sandbox is made at last")
    asked.inside.drop("offline", "unplugged")


def test_a_dead_runtime_is_explained(asked: Asked) -> None:
    asked.inside.put(pod_manifest("left", container_manifest()))
    asked.inside.said("left")
    asked.inside.containerd.kill()
    try:
        assert "does not answer" in asked.explained("left", "runtime-down").to_text()
    finally:
        asked.inside.containerd.restart()
    asked.inside.wait(lambda: _healthy(asked, "left"), "the runtime is back")
