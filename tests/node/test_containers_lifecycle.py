"""Hooks, the order of starting and stopping, and the time both take, seen from inside and by the runtime.

Containers leave empty files in a shared folder, the diary; the times of those files tell who did what when.
"""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bed.agent import NODE
from tests.bed.inside import Inside, Manifest, container_manifest, looking_inside, pod_manifest
from tests.bed.runtime import TESTSERVER, BedContainerd

pytestmark = pytest.mark.node

DIARY = [{"name": "diary", "mountPath": "/diary"}]
ENDING = ("pre-exec", "pre-sleep", "pre-hangs", "pre-fails", "pre-http", "sidecars", "stubborn", "post-hangs")
SLACK = 15.0
"""Seconds that a busy machine may add to a stop."""


def noting(name: str, fields: dict[str, Any] | None = None, *, before: str = "") -> Manifest:
    """A container that writes into the diary when it starts and when it is told to stop."""
    script = f"trap 'touch /diary/$POD.{name}.stop; exit 0' TERM\ntouch /diary/$POD.{name}.start; {before}"
    more = fields or {}
    return container_manifest(name, script, ends=True, volumeMounts=DIARY, env=[POD]) | {
        "command": ["sh", "-c", f"{script}\nsleep 100000 & wait"],
        **more,
    }


POD = {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}


def shell(script: str) -> dict[str, Any]:
    return {"exec": {"command": ["sh", "-c", script]}}


def hooked(kind: str, hook: dict[str, Any]) -> dict[str, Any]:
    return {"lifecycle": {kind: hook}}


def the_pods(diary: Path, port: int) -> list[Manifest]:
    def noted(name: str, *containers: Manifest, **spec: Any) -> Manifest:
        volume = {"name": "diary", "hostPath": {"path": str(diary)}}
        return pod_manifest(name, *containers, labels={"app": name}, volumes=[volume], **spec)

    def hears(path: str, **more: Any) -> dict[str, Any]:
        return {"httpGet": {"host": "127.0.0.1", "port": port, "path": path, **more}}

    wait_for_hook = "until [ -s /tmp/hook ]; do sleep 0.05; done; cat /tmp/hook"
    patient = {"terminationGracePeriodSeconds": 20}  # for hooks that are to come to their end
    server = {
        "name": "app",
        "image": TESTSERVER,
        "imagePullPolicy": "Never",
        "ports": [{"name": "web", "containerPort": 8080}],
    }
    return [
        noted("bystander", noting("app")),
        pod_manifest(
            "post-exec",
            container_manifest(script=wait_for_hook, env=[{"name": "A", "value": "b"}])
            | hooked("postStart", shell("echo $A '$(A)' > /tmp/hook")),
        ),
        pod_manifest(
            "post-http",
            container_manifest()
            | hooked("postStart", hears("/post?x=1", httpHeaders=[{"name": "X-Key", "value": "v"}])),
        ),
        pod_manifest("post-http-500", container_manifest() | hooked("postStart", hears("/fail"))),
        noted("post-sleep", noting("one", hooked("postStart", {"sleep": {"seconds": 1}})), noting("two")),
        pod_manifest("post-fails", container_manifest() | hooked("postStart", shell("echo oops; exit 7"))),
        pod_manifest(
            "post-refused",
            container_manifest() | hooked("postStart", {"httpGet": {"host": "127.0.0.1", "port": 1, "path": "/"}}),
            restartPolicy="Never",
        ),
        pod_manifest(
            "post-tcp",
            container_manifest() | hooked("postStart", {"tcpSocket": {"port": port, "host": "127.0.0.1"}}),
            restartPolicy="Never",
        ),
        noted("post-hangs", noting("one", hooked("postStart", shell("sleep 100000"))), noting("two")),
        noted("pre-exec", noting("app", hooked("preStop", shell("touch /diary/pre-exec.hook"))), **patient),
        noted(
            "pre-sleep", noting("app", hooked("preStop", {"sleep": {"seconds": 1}})), terminationGracePeriodSeconds=9
        ),
        noted("pre-hangs", noting("app", hooked("preStop", shell("sleep 100000")))),
        noted("pre-fails", noting("app", hooked("preStop", shell("touch /diary/pre-fails.hook; exit 3"))), **patient),
        pod_manifest("pre-http", server | hooked("preStop", {"httpGet": {"port": "web", "path": "/bye"}}), **patient),
        noted(
            "sidecars",
            noting("app", hooked("preStop", {"sleep": {"seconds": 1}})),
            initContainers=[
                noting("side1", {"restartPolicy": "Always"}),
                noting("side2", {"restartPolicy": "Always"}),
            ],
            terminationGracePeriodSeconds=20,
        ),
        noted(
            "stubborn",
            noting("app")
            | {"command": ["sh", "-c", "touch /diary/stubborn.start; trap '' TERM; while :; do sleep 1; done"]},
            terminationGracePeriodSeconds=3,
        ),
        noted(
            "init",
            noting("app"),
            initContainers=[
                noting("first") | {"command": ["sh", "-c", "touch /diary/init.first; sleep 0.2"]},
                noting("second") | {"command": ["sh", "-c", "touch /diary/init.second; sleep 0.2"]},
            ],
        ),
        pod_manifest("ends", container_manifest(script="exit 3"), restartPolicy="Never"),
        pod_manifest("ends-well", container_manifest(ends=True), restartPolicy="OnFailure"),
        pod_manifest("fails-once", container_manifest(script="exit 3"), restartPolicy="OnFailure"),
    ]


class Ear:
    """A server on loopback that remembers who asked for what; /fail answers 500."""

    def __init__(self) -> None:
        heard: dict[str, dict[str, str]] = {}
        self.heard = heard

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                heard[self.path] = dict(self.headers)
                self.send_response(500 if self.path == "/fail" else 200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *ignored: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Diary:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def at(self, name: str) -> float:
        return (self.folder / name).stat().st_mtime


@pytest.fixture(scope="module")
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Diary:
    return Diary(tmp_path_factory.mktemp("diary"))


@pytest.fixture(scope="module")
def inside(
    tmp_path_factory: pytest.TempPathFactory, containerd: BedContainerd, diary: Diary, ear: Ear
) -> Iterator[Inside]:
    pods = the_pods(diary.folder, ear.port)
    with looking_inside(tmp_path_factory.mktemp("lifecycle"), containerd, *pods) as found:
        yield found


def test_a_command_after_the_start(inside: Inside) -> None:
    assert inside.said("post-exec") == "b $(A)\n"


def test_a_request_after_the_start(inside: Inside, ear: Ear) -> None:
    inside.wait(lambda: {"/post?x=1", "/fail"} <= ear.heard.keys(), "both hooks asked")
    headers = ear.heard["/post?x=1"]
    assert headers["X-Key"] == "v"
    assert headers["User-Agent"] == "kube-lifecycle/1.36"
    assert inside.said("post-http") == inside.said("post-http-500") == ""
    assert not inside.has_event("post-http-500", "FailedPostStartHook"), "any answer is success"


def test_the_next_container_waits_for_the_hook(inside: Inside, diary: Diary) -> None:
    inside.wait(lambda: diary.has("post-sleep.two.start"), "the second container starts")
    # The runtime's time, which is set before the hook begins; the first program's own word may come later.
    assert diary.at("post-sleep.two.start") - inside.runs("post-sleep", "one")[0].started >= 1.0


def test_a_failing_hook_ends_the_container(inside: Inside) -> None:
    assert inside.event("post-fails", "FailedPostStartHook") == "PostStartHook failed"
    assert inside.event("post-fails", "Killing") == "FailedPostStartHook"
    inside.wait(lambda: inside.has_run("post-fails", 1), "it is started again")
    for pod in ("post-refused", "post-tcp"):
        assert inside.event(pod, "FailedPostStartHook") == "PostStartHook failed"
        inside.wait(lambda pod=pod: not any(run.running for run in inside.runs(pod)), f"{pod} ends")


def test_init_containers_come_one_after_another(inside: Inside, diary: Diary) -> None:
    inside.wait(lambda: diary.has("init.app.start"), "the container starts")
    assert diary.at("init.app.start") - diary.at("init.second") >= 0.2
    assert diary.at("init.second") - diary.at("init.first") >= 0.2


def test_ends(inside: Inside) -> None:
    inside.wait(lambda: inside.has_run("fails-once", 1), "a failure is repeated")
    inside.wait(lambda: [run.exit_code for run in inside.runs("ends") if not run.running] == [3], "it ends once")
    inside.wait(lambda: [run.exit_code for run in inside.runs("ends-well") if not run.running] == [0], "it ends once")
    assert not inside.has_run("ends", 1) and not inside.has_run("ends-well", 1)


def test_stopping(inside: Inside, diary: Diary) -> None:
    """All at once, for the time of the slowest; each is judged by its own notes."""
    started = ("pre-exec.app", "pre-sleep.app", "pre-hangs.app", "pre-fails.app", "sidecars.app", "post-hangs.one")
    for name in started:
        inside.wait(lambda name=name: diary.has(f"{name}.start"), f"{name} runs")
        runs = partial(inside.runs, *name.split("."))
        inside.wait(lambda runs=runs: any(run.running for run in runs()), f"the runtime knows that {name} runs")
    inside.wait(lambda: diary.has("stubborn.start") and "listening" in inside.log("pre-http"), "all run")
    assert not diary.has("post-hangs.two.start"), "waits for the hook of the first"
    inside.wait(lambda: any(run.running for run in inside.runs("bystander")), "the bystander runs")
    (server_log,) = inside.agent.pod_logs.glob(f"default_pre-http-{NODE}_*/app/0.log")
    with server_log.open() as log:
        begun = time.time()
        inside.drop(*ENDING)
        took = {}
        for pod in (
            "post-hangs",
            "pre-exec",
            "pre-fails",
            "pre-http",
            "pre-hangs",
            "pre-sleep",
            "stubborn",
            "sidecars",
        ):
            inside.wait_gone(pod)
            took[pod] = time.time() - begun
        assert "GET /bye" in log.read()
    assert begun <= diary.at("pre-exec.hook") <= diary.at("pre-exec.app.stop")
    assert diary.at("pre-sleep.app.stop") - begun >= 1.0
    assert diary.at("pre-hangs.app.stop") - begun >= 1.0, "the hook has the whole grace"
    assert inside.event("pre-hangs", "FailedPreStopHook") == "PreStopHook failed"
    assert inside.event("pre-fails", "FailedPreStopHook") == "PreStopHook failed"
    assert diary.at("pre-fails.app.stop") >= diary.at("pre-fails.hook")
    order = [diary.at(f"sidecars.{name}.stop") for name in ("app", "side2", "side1")]
    assert order == sorted(order) and order[0] - begun >= 1.0
    assert inside.event("pre-exec", "Killing") == "Stopping container app"
    assert took["post-hangs"] < 1 + 2 + SLACK, "a hook that never returns does not keep the pod"
    assert took["pre-hangs"] < 1 + 2 + SLACK
    assert 3 <= took["stubborn"] < 3 + 2 + SLACK
    assert inside.runs("bystander")[0].running and not diary.has("bystander.app.stop")
