"""The agent as users start it, on a real containerd: examples, bad input, run-once, the URL source, the commands."""

from __future__ import annotations

import http.server
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.bed.agent import BedAgent, bed_agent
from tests.bed.cgroups import CgroupTree
from tests.bed.runtime import BUSYBOX, BedContainerd

pytestmark = pytest.mark.node

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PYKUBELET = str(Path(sys.executable).with_name("pykubelet"))


def wait_for(question: Callable[[], Any], what: str, within: float = 60.0) -> Any:
    end = time.monotonic() + within
    while time.monotonic() < end:
        if answer := question():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {within:g} s: {what}")


def a_manifest(name: str, script: str = "echo up; exec sleep 100000", **spec: Any) -> dict[str, Any]:
    container = {"name": "app", "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container], **spec},
    }


def log_of(agent: BedAgent, pod: str, container: str = "app") -> str:
    """What the newest run of a container wrote, without the runtime's prefixes."""
    files = sorted(agent.pod_logs.glob(f"default_{pod}-*_*/{container}/*.log"), key=lambda path: int(path.stem))
    if not files:
        return ""
    return "".join(line.split(" ", 3)[3] for line in files[-1].read_text().splitlines(keepends=True))


def write_bad(agent: BedAgent, text: str) -> None:
    """In one step: a file that is still empty is another mistake."""
    draft = agent.folder / "bad.yaml"
    draft.write_text(text)
    draft.rename(agent.manifests / draft.name)


@pytest.fixture
def agent(tmp_path: Path, containerd: BedContainerd) -> Iterator[BedAgent]:
    with bed_agent(tmp_path, containerd) as running:
        yield running
        for manifest in running.manifests.iterdir():
            manifest.unlink()
        wait_for(lambda: not list((running.root / "pods").iterdir()), f"pods gone\n{running.tail()}")


def test_every_example_does_what_it_says(agent: BedAgent) -> None:
    for path in sorted(EXAMPLES.glob("*.yaml")):
        agent.put(path.stem, yaml.safe_load(path.read_text()))
    assert "hello from hello-" in wait_for(lambda: log_of(agent, "hello", "hello"), agent.tail())
    for pod, container in (("web-probe", "web"), ("init-sidecar", "log"), ("multi", "client"), ("multi", "watcher")):
        wait_for(
            lambda pod=pod, container=container: log_of(agent, pod, container), f"{pod}/{container}\n{agent.tail()}"
        )
    wait_for(lambda: list(agent.pod_logs.glob("default_job-like-*_*/work/1.log")), f"second try\n{agent.tail()}")


def test_a_bad_manifest_is_told_once_and_harms_nobody(agent: BedAgent) -> None:
    agent.put("good", a_manifest("good"))
    wait_for(lambda: log_of(agent, "good"), agent.tail())
    write_bad(agent, "apiVersion: v1\nkind: Pod\nmetadata: {name: Bad_Name}\nspec: {}\n")
    wait_for(lambda: "bad.yaml" in agent.log(), agent.tail())
    agent.put("later", a_manifest("later"))
    wait_for(lambda: log_of(agent, "later"), agent.tail())
    told = [line for line in agent.log().splitlines() if "bad.yaml" in line and line.startswith(("W", "E"))]
    assert 1 <= len(told) <= 2, told
    assert all("spec.containers" in line for line in told), told
    assert "Traceback" not in agent.log()
    write_bad(agent, yaml.safe_dump(a_manifest("mended")))
    wait_for(lambda: log_of(agent, "mended"), agent.tail())
    write_bad(agent, "half: [written")
    time.sleep(1.0)
    assert list((agent.pod_logs).glob("default_mended-*_*")), "the last good pod keeps running"
    assert len(list((agent.root / "pods").iterdir())) == 3


def test_a_crash_is_restarted_with_its_number_in_the_log_names(agent: BedAgent) -> None:
    agent.put("crash", a_manifest("crash", "echo run; exit 3"))
    wait_for(lambda: list(agent.pod_logs.glob("default_crash-*_*/app/1.log")), agent.tail())


def test_kill_9_and_start_again_adopts_what_runs(agent: BedAgent, containerd: BedContainerd) -> None:
    agent.put("lasting", a_manifest("lasting", "echo $$; cat /proc/sys/kernel/random/uuid; exec sleep 100000"))
    wait_for(lambda: log_of(agent, "lasting").count("\n") == 2, agent.tail())
    first = log_of(agent, "lasting")
    # The program speaks before the runtime calls it started; an agent killed in between starts another one.
    wait_for(lambda: 'reason="Started"' in agent.log(), agent.tail())
    agent.kill9()
    agent.start()
    wait_for(lambda: agent.log().count("agent is running") == 2, agent.tail())
    agent.put("marker", a_manifest("marker"))
    wait_for(lambda: log_of(agent, "marker"), agent.tail())
    assert log_of(agent, "lasting") == first
    assert len(list(agent.pod_logs.glob("default_lasting-*_*/app/*.log"))) == 1


def test_run_once_reports_each_pod_and_fails_if_one_failed(tmp_path: Path, containerd: BedContainerd) -> None:
    cgroups = CgroupTree(f"/{containerd.state_dir.name}-once-{os.getpid()}")
    cgroups.make()
    try:
        agent = BedAgent(tmp_path, containerd, cgroups, runOnce=True)
        agent.put("good", a_manifest("good", "exit 0", restartPolicy="Never"))
        flags = [f"--config={tmp_path / 'config.json'}", f"--root-dir={agent.root}", "--hostname-override=once"]
        done = subprocess.run([PYKUBELET, *flags], capture_output=True, text=True, timeout=120, check=False)
        assert "default/good-once: Succeeded" in done.stdout, done.stdout + done.stderr
        assert done.returncode == 0
        agent.put("bad", a_manifest("bad", "exit 4", restartPolicy="Never"))
        done = subprocess.run([PYKUBELET, *flags], capture_output=True, text=True, timeout=120, check=False)
        assert "default/bad-once: Failed" in done.stdout, done.stdout + done.stderr
        assert done.returncode == 1
        for manifest in agent.manifests.iterdir():
            manifest.unlink()
        subprocess.run([PYKUBELET, *flags], capture_output=True, timeout=120, check=False)
    finally:
        cgroups.remove()


@contextmanager
def serving(body: Callable[[], bytes]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = body() if self.headers.get("X-Key") == "sesame" else b""
            self.send_response(200 if answer else 403)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *ignored: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/pods"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_pods_from_a_url(tmp_path: Path, containerd: BedContainerd) -> None:
    pods = {"apiVersion": "v1", "kind": "PodList", "items": [a_manifest("from-url"), a_manifest("another")]}
    with serving(lambda: json.dumps(pods).encode()) as url:
        changes = {"staticPodURL": url, "staticPodURLHeader": {"X-Key": ["sesame"]}, "httpCheckFrequency": "200ms"}
        with bed_agent(tmp_path, containerd, **changes) as agent:
            wait_for(lambda: log_of(agent, "from-url") and log_of(agent, "another"), agent.tail())
            del pods["items"][1]
            wait_for(lambda: len(list((agent.root / "pods").iterdir())) == 1, agent.tail())
            del pods["items"][0]
            wait_for(lambda: not list((agent.root / "pods").iterdir()), agent.tail())


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--version"], 0, r"^Kubernetes v1\.36\.4$"),
        (["--no-such-flag"], 1, "unknown flag: --no-such-flag"),
        (["--config=/nonexistent/x.yaml"], 1, "/nonexistent/x.yaml"),
        (["frobnicate"], 2, "unknown command frobnicate"),
        (["check", "/nonexistent.yaml"], 1, "/nonexistent.yaml"),
        (["up", "/nonexistent.yaml"], 1, "no such file"),
    ],
)
def test_commands_answer_in_plain_words(arguments: list[str], status: int, said: str) -> None:
    done = subprocess.run([PYKUBELET, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert re.search(said, done.stdout + done.stderr, re.MULTILINE)
    assert "Traceback" not in done.stderr


def test_the_examples_pass_check() -> None:
    files = [str(path) for path in sorted(EXAMPLES.glob("*.yaml"))]
    done = subprocess.run([PYKUBELET, "check", *files], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines() == [f"{file}: ok" for file in files]


def test_the_idle_agent_is_small(agent: BedAgent) -> None:
    """Everything imported, connected, nothing to do: at most 60 MiB."""
    wait_for(lambda: "runtime events are followed" in agent.log(), agent.tail())
    rollup = Path(f"/proc/{agent.pid}/smaps_rollup").read_text()
    pss = int(re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE).group(1))  # type: ignore[union-attr]
    assert pss <= 60 * 1024, f"{pss / 1024:.1f} MiB"


def test_systemd_hears_that_the_agent_is_ready_alive_and_leaving(
    tmp_path: Path, containerd: BedContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        with bed_agent(tmp_path / "agent", containerd) as agent:
            heard = []
            while heard[-2:] != ["WATCHDOG=1", "WATCHDOG=1"]:
                heard.append(manager.recv(200).decode())
            assert heard[0].startswith("EXTEND_TIMEOUT_USEC=")
            assert heard.count("READY=1") == 1
            assert agent.stop() == 0
            while heard[-1] != "STOPPING=1":
                heard.append(manager.recv(200).decode())


def test_two_agents_do_not_share_a_lock_file(tmp_path: Path, containerd: BedContainerd) -> None:
    flags = [f"--lock-file={tmp_path / 'lock'}", "--exit-on-lock-contention"]
    with bed_agent(tmp_path / "a", containerd, flags=flags) as first:
        wait_for(lambda: (tmp_path / "lock").exists(), "the first agent has the lock file")
        wait_for(lambda: "connected" in first.log(), "the first agent holds and watches it")
        with bed_agent(tmp_path / "b", containerd, flags=flags) as second:
            wait_for(lambda: first.status is not None, "the first leaves because another one wants the file")
            assert first.status == 0
            assert "another process wants the lock file" in first.log()
            wait_for(lambda: "agent is running" in second.log(), "the second takes its place")
