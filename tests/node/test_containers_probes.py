"""Probes on real containers: restarts at the right moment and only then, gating, timeouts, words of the events.

Probes that run inside append a word to a file of the diary folder; the order and times of the words are the proof.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import PodStatus
from tests.bed.health_server import health_server_in
from tests.bed.inside import (
    Inside,
    Manifest,
    Run,
    container_manifest,
    in_this_process,
    looking_inside,
    pod_manifest,
    status_when,
)
from tests.bed.runtime import TESTSERVER, BedContainerd

pytestmark = pytest.mark.node

POD = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}
QUICK = {"periodSeconds": 1, "failureThreshold": 1}
PATIENT = {"timeoutSeconds": 20}
"""For probes that are to bring their own answer: on a busy machine a second is not enough for a command."""
HEALTH: dict[str, dict[str, Any]] = {
    "serving": {"port": 9090},
    "sick": {"port": 9090, "service": "sick"},
    "nobody": {"port": 9090, "service": "nobody"},
    "closed": {"port": 9091},
}


def says(word: str, result: str = "true") -> dict[str, Any]:
    """The container always has the first word: a probe may be there before it."""
    script = f"until [ -e /tmp/begun ]; do sleep 0.05; done; echo {word} >> /diary/$POD; {result}"
    return {"exec": {"command": ["sh", "-c", script]}, **PATIENT}


def http(path: str, port: int | str = "web", **more: Any) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port, **more}}


def server(**probes: Any) -> Manifest:
    return {
        "name": "app",
        "image": TESTSERVER,
        "imagePullPolicy": "Never",
        "ports": [{"name": "web", "containerPort": 8080}],
        **probes,
    }


def the_pods(diary: Path) -> list[Manifest]:
    def noting(name: str, script: str = "", *, spec: dict[str, Any] | None = None, **probes: Any) -> Manifest:
        container = container_manifest(
            script=f"echo start >> /diary/$POD; touch /tmp/begun\n{script}",
            env=[POD, {"name": "FILE", "value": "/tmp/there"}],
            volumeMounts=[{"name": "diary", "mountPath": "/diary"}],
            **probes,
        )
        volume = {"name": "diary", "hostPath": {"path": str(diary)}}
        return pod_manifest(name, container, labels={"app": name}, volumes=[volume], **(spec or {}))

    return [
        noting("live-ok", livenessProbe=says("live") | QUICK),
        noting("live-fails", "sleep 3; touch /tmp/dead", livenessProbe=says("live", "[ ! -e /tmp/dead ]") | QUICK),
        noting(
            "live-never",
            livenessProbe=says("live", "echo broken; false") | QUICK,
            spec={"restartPolicy": "Never"},
        ),
        noting("threshold", livenessProbe=says("live", "false") | {"periodSeconds": 1, "failureThreshold": 3}),
        pod_manifest(
            "own-grace",
            container_manifest(
                command=["sh", "-c", "trap '' TERM; while :; do sleep 1; done"],
                livenessProbe={"exec": {"command": ["false"]}, "terminationGracePeriodSeconds": 1} | QUICK,
            ),
            container_manifest("other"),  # without it the pod would end, by its own grace
            restartPolicy="Never",
            terminationGracePeriodSeconds=100,
        ),
        noting(
            "startup",
            "sleep 2; touch /tmp/up",
            startupProbe=says("startup", "[ -e /tmp/up ]") | {"periodSeconds": 1, "failureThreshold": 30},
            livenessProbe=says("live") | QUICK,
            readinessProbe=says("ready") | {"periodSeconds": 1},
        ),
        noting("startup-fails", startupProbe=says("startup", "false") | QUICK),
        noting("delayed", livenessProbe=says("live") | QUICK | {"initialDelaySeconds": 2}),
        noting(
            "expanded",
            "touch /tmp/there",
            readinessProbe={"exec": {"command": ["ls", "$(FILE)", "$(NOBODY)$$(FILE)"]}, "periodSeconds": 1},
        ),
        noting("hangs", readinessProbe={"exec": {"command": ["sleep", "100"]}, "timeoutSeconds": 1} | QUICK),
        noting("hangs-dead", livenessProbe={"exec": {"command": ["sleep", "100"]}, "timeoutSeconds": 1} | QUICK),
        noting("closed-tcp", readinessProbe={"tcpSocket": {"port": 81}} | QUICK),
        noting("closed-http", readinessProbe=http("/x", 81) | QUICK),
        noting("closed-grpc", readinessProbe={"grpc": {"port": 81}} | QUICK),
        pod_manifest(
            "http",
            server(
                readinessProbe=http("/readyz?deep=yes") | QUICK,
                livenessProbe=http("/redirect/healthz") | QUICK | PATIENT | {"initialDelaySeconds": 1},
                startupProbe={"tcpSocket": {"port": "web"}, "periodSeconds": 1, "failureThreshold": 30},
            ),
        ),
        pod_manifest("http-500", server(readinessProbe=http("/status/500") | QUICK)),
        pod_manifest("http-slow", server(readinessProbe=http("/delay/9") | {"timeoutSeconds": 1} | QUICK)),
        pod_manifest(
            "grpc",
            *[
                container_manifest(name, readinessProbe={"grpc": question, "periodSeconds": 1, "timeoutSeconds": 5})
                for name, question in HEALTH.items()
            ],
        ),
    ]


class Notes:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def of(self, pod: str) -> list[str]:
        file = self.folder / pod
        return file.read_text().split() if file.exists() else []


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd, notes: Notes) -> Iterator[Inside]:
    with looking_inside(tmp_path_factory.mktemp("probes"), containerd, *the_pods(notes.folder)) as found:
        yield found


def test_a_container_that_stops_living_is_restarted(inside: Inside, notes: Notes) -> None:
    inside.wait(lambda: notes.of("live-fails").count("start") >= 2, "it is started again")
    words = notes.of("live-fails")
    first = words[1 : words.index("start", 1)]
    assert len(first) >= 2 and set(first) == {"live"}, "it lived through at least one probe"
    assert inside.event("live-fails", "Unhealthy").startswith("Liveness probe failed:")
    assert inside.event("live-fails", "Killing") == "Container app failed liveness probe, will be restarted"

    def both_started() -> list[Run]:  # the new program may speak before the runtime calls it running
        found = inside.runs("live-fails")[:2]
        return found if len(found) == 2 and all(run.started for run in found) else []

    old, new = inside.wait(both_started, "the runtime knows both")
    # A second less than the container needs: it may be at work before the runtime notes the time of its start.
    assert old.finished - old.started >= 2.0 and new.started >= old.finished


def test_a_container_that_must_not_restart_stays_dead(inside: Inside) -> None:
    assert inside.event("live-never", "Unhealthy") == "Liveness probe failed: broken\n"
    assert inside.event("live-never", "Killing") == "Stopping container app", "nothing is left of the pod, so it ends"
    inside.wait(lambda: not any(run.running for run in inside.runs("live-never")), "it ends")
    assert not inside.has_run("live-never", 1)


def test_failures_below_the_threshold_do_nothing(inside: Inside, notes: Notes) -> None:
    inside.wait(lambda: notes.of("threshold").count("start") >= 2, "it is started again")
    words = notes.of("threshold")
    assert words[:5] == ["start", "live", "live", "live", "start"]


def test_a_probe_may_bring_its_own_grace(inside: Inside) -> None:
    def ends() -> list[int]:
        return [run.exit_code for run in inside.runs("own-grace") if run.finished]

    assert inside.wait(ends, "it is killed after the probe's grace, not the pod's", 60) == [137]


def test_nothing_is_probed_before_the_start_up_is_over(inside: Inside, notes: Notes) -> None:
    inside.wait(lambda: {"live", "ready"} <= set(notes.of("startup")), "other probes begin")
    words = notes.of("startup")
    begun = min(words.index("live"), words.index("ready"))
    assert set(words[1:begun]) == {"startup"} and "startup" not in words[begun:]
    assert not inside.has_run("startup", 1)


def test_a_start_up_that_fails_is_a_reason_to_restart(inside: Inside, notes: Notes) -> None:
    inside.wait(lambda: notes.of("startup-fails").count("start") >= 2, "it is started again")
    assert inside.event("startup-fails", "Killing") == "Container app failed startup probe, will be restarted"
    assert inside.event("startup-fails", "Unhealthy").startswith("Startup probe failed:")


def test_the_first_probe_comes_after_its_delay(inside: Inside, notes: Notes) -> None:
    inside.wait(lambda: "live" in notes.of("delayed"), "it is probed")
    assert time.time() - inside.runs("delayed")[0].started >= 2.0


def test_variables_of_the_spec_are_filled_into_commands(inside: Inside) -> None:
    text = inside.event("expanded", "Unhealthy", "/tmp/there\n")  # the first probe may come before the file
    assert "ls: $(NOBODY)$(FILE): No such file or directory" in text


def test_a_probe_that_hangs_is_a_failure(inside: Inside) -> None:
    text = 'probe failed: command timed out: "sleep 100" timed out after 1s'
    assert inside.event("hangs", "Unhealthy") == f"Readiness {text}"
    assert inside.event("hangs-dead", "Unhealthy") == f"Liveness {text}"
    inside.wait(lambda: inside.has_run("hangs-dead", 1), "it is started again")
    assert not inside.has_run("hangs", 1)


def test_closed_ports(inside: Inside) -> None:
    refused = r"dial tcp (10\.[0-9.]+):81: connect: connection refused"
    assert re.fullmatch(f"Readiness probe failed: {refused}", inside.event("closed-tcp", "Unhealthy", "refused"))
    assert re.fullmatch(
        rf'Readiness probe failed: Get "http://10\.[0-9.]+:81/x": {refused}',
        inside.event("closed-http", "Unhealthy", "refused"),
    )
    assert re.fullmatch(
        r'Readiness probe failed: timeout: failed to connect service "10\.[0-9.]+:81" within 1s: '
        "context deadline exceeded",
        inside.event("closed-grpc", "Unhealthy"),
    )


@pytest.fixture(scope="module")
def health(inside: Inside) -> Iterator[None]:
    """A real gRPC server at the address of the pod `grpc`."""
    inside.wait(lambda: all(inside.log("grpc", name) for name in HEALTH), "the pod runs")
    with health_server_in(inside.first_process("grpc", "serving"), 9090):
        yield


def test_questions_by_grpc(inside: Inside, health: None) -> None:
    sick = inside.event("grpc", "Unhealthy", "NOT_SERVING")
    assert sick == 'Readiness probe failed: service unhealthy (responded with "NOT_SERVING")'
    nobody = inside.event("grpc", "Unhealthy", "NotFound")
    assert (
        nobody
        == "Readiness probe failed: error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"
    )
    closed = inside.event("grpc", "Unhealthy", ":9091")
    assert re.fullmatch(
        r'Readiness probe failed: timeout: failed to connect service "10\.[0-9.]+:9091" within 5s: '
        "context deadline exceeded",
        closed,
    )
    assert not any(inside.has_run("grpc", 1, name) for name in HEALTH)


def test_requests_go_to_the_pods_address(inside: Inside) -> None:
    for path in ("/readyz?deep=yes", "/redirect/healthz", "/healthz"):
        inside.wait(lambda path=path: f"GET {path}\n" in inside.log("http"), f"{path} is asked for")
    assert (
        inside.event("http-500", "Unhealthy", "statuscode")
        == "Readiness probe failed: HTTP probe failed with statuscode: 500"
    )
    assert re.fullmatch(
        r'Readiness probe failed: Get "http://10\.[0-9.]+:8080/delay/9": '
        r"(context deadline exceeded|net/http: request canceled) \(Client\.Timeout exceeded while awaiting headers\)",
        inside.event("http-slow", "Unhealthy", "exceeded"),
    )


def is_ready(status: PodStatus) -> bool:
    return any(each.type == "Ready" and each.status == "True" for each in status.conditions)


async def test_readiness_reaches_the_status_and_others_are_unharmed(inside: Inside, health: None) -> None:
    inside.wait(lambda: "GET /healthz\n" in inside.log("http"), "the server is probed")
    async with in_this_process(inside) as node:
        ready = await status_when(node, "http", is_ready)
        assert ready.pod_ip and ready.container_statuses[0].started
        for pod in ("live-ok", "startup"):
            assert is_ready(await status_when(node, pod, is_ready))
        for pod in ("http-500", "closed-tcp", "hangs"):
            status = await status_when(node, pod, lambda status: status.phase == "Running")
            message = next(each.message for each in status.conditions if each.type == "Ready")
            assert message is not None and message.startswith("containers with unready status: [app]")
        asked = await status_when(node, "grpc", lambda status: any(each.ready for each in status.container_statuses))
        assert [each.name for each in asked.container_statuses if each.ready] == ["serving"]
        assert 'kubelet_runtime_operations_total{operation_type="exec_sync"} ' in node.ctx.metrics.expose()
    assert not inside.has_run("live-ok", 1) and not inside.has_run("http", 1)
    assert not inside.has_event("live-ok", "Unhealthy")
