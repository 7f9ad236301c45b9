"""`up`, `down`, `status` and the commands as a newcomer uses them, on a real private containerd."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.standalone import bridge
from pykubelet.standalone.cleanup import children, shims, unmount_below
from tests.bed.inside import container_manifest, pod_manifest
from tests.bed.machine import HELLO, PYKUBELET, REPO, Machine, a_machine, wait_for
from tests.bed.parts import free_port

pytestmark = pytest.mark.node


@pytest.fixture
def machine() -> Iterator[Machine]:
    with a_machine() as made:
        yield made


def test_from_nothing_to_a_running_pod_and_back(machine: Machine) -> None:
    begun = time.monotonic()
    said = machine.run("up", "--detach", str(HELLO))
    assert "runs in the background" in said
    machine.until_running("hello")
    print(f"first start to a running pod: {time.monotonic() - begun:.1f} s")
    wait_for(lambda: machine.run("logs", "hello").startswith("hello from hello-"), "the pod has said hello")
    assert "1 Running" in machine.run("status")
    assert "runs already" in machine.run("up", str(HELLO), status=1)
    assert "everything is stopped" in machine.run("down")
    assert "not running" in machine.run("status", status=3)
    assert "nothing is running" in machine.run("down")
    assert "no agent is running here" in machine.run("get", "pods", status=3)
    assert not any((machine.state.root / "pods").iterdir())


def test_in_the_foreground_pods_outlive_ctrl_c_and_are_taken_over(machine: Machine) -> None:
    process = machine.start(HELLO)
    wait_for(lambda: "hello | hello from hello-" in machine.said(), "the pod's log line is shown")
    machine.until_running("hello")
    before = machine.container_ids()
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert "pods keep running" in machine.said()
    begun = time.monotonic()
    process = machine.start(HELLO)
    wait_for(lambda: machine.said().count("is well after") == 2, "the second start is up")
    took = time.monotonic() - begun
    print(f"second start to a running pod: {took:.1f} s")
    assert machine.container_ids() == before
    os.kill(process.pid, signal.SIGUSR1)
    assert process.wait(60) == 0
    assert "the runtime is stopped" in machine.said()


def test_killed_at_any_moment_nothing_is_lost_or_doubled(machine: Machine) -> None:
    machine.put(pod_manifest("one", container_manifest()))
    machine.put(pod_manifest("two", container_manifest()))
    machine.run("up", "-d", str(machine.manifests))
    machine.until_running("one", "two")
    before = machine.container_ids()
    for both in (False, True):
        agent, containerd = machine.state.agent(), machine.state.containerd()
        assert agent is not None and containerd is not None
        os.kill(agent.pid, signal.SIGKILL)
        if both:
            os.kill(containerd.pid, signal.SIGKILL)
        wait_for(lambda agent=agent: not agent.alive(), "the agent is dead")  # type: ignore[misc]
        machine.run("up", "-d", str(machine.manifests))
        machine.until_running("one", "two")
        assert machine.container_ids() == before
    containerd = machine.state.containerd()
    assert containerd is not None
    os.kill(containerd.pid, signal.SIGKILL)
    wait_for(
        lambda: (found := machine.state.containerd()) is not None and found.pid != containerd.pid, "it is restarted"
    )
    wait_for(lambda: ": ready" in machine.run("status", status=None), "the runtime answers again")
    assert machine.container_ids() == before


def switch_off(machine: Machine, *, rebooted: bool) -> None:
    """All that runs is gone at once. After a reboot so are mounts, network and rules, but not the state folder."""
    state = machine.state
    agent, containerd = state.agent(), state.containerd()
    assert agent is not None and containerd is not None
    found = shims(state.runtime.socket)
    inside = [pid for shim in found for pid in children(shim)]
    for pid in (agent.pid, containerd.pid, *found, *inside):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in inside), "no process of a pod is left")
    assert (state.runtime.run / "runc").exists(), "what a reboot leaves on disk"
    if rebooted:
        unmount_below(state.folder)
        bridge.remove(state.runtime.network_name)
        rule = ["iptables", "-w", "-t", "nat", "-S", "POSTROUTING"]
        listed = subprocess.run(rule, capture_output=True, text=True, check=False).stdout.splitlines()
        for line in (line for line in listed if state.runtime.network_name in line):
            subprocess.run(["iptables", "-w", "-t", "nat", "-D", *shlex.split(line)[1:]], check=True)
        state.runtime.boot_file.write_text("another boot")


def test_after_a_reboot_and_after_a_clean_sweep_of_processes_it_comes_up_clean(machine: Machine) -> None:
    mounts = [{"name": "memory", "mountPath": "/memory"}, {"name": "disk", "mountPath": "/disk"}]
    script = "echo x >> /disk/starts; echo x >> /memory/starts; wc -l < /disk/starts; wc -l < /memory/starts"
    volumes = [{"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "disk", "emptyDir": {}}]
    machine.put(pod_manifest("one", container_manifest(script=script, volumeMounts=mounts), volumes=volumes))
    ports = [{"containerPort": 80, "hostPort": free_port()}]
    machine.put(pod_manifest("two", container_manifest(ports=ports)))
    machine.run("up", "-d", str(machine.manifests))
    machine.until_running("one", "two")
    for restarts, rebooted in enumerate((True, False), start=1):
        before = machine.container_ids()
        switch_off(machine, rebooted=rebooted)
        machine.run("up", "-d", str(machine.manifests))
        wait_for(lambda before=before: _all_new(before, machine.container_ids()), "new containers")  # type: ignore[misc]
        machine.until_running("one", "two")
        pods = machine.pods()
        assert [pods[name]["status"]["containerStatuses"][0]["restartCount"] for name in pods] == [restarts, restarts]
        layout = machine.state.runtime
        wait_for(lambda layout=layout: len(shims(layout.socket)) == 2, "one shim a pod")  # type: ignore[misc]
        addresses = {pod["status"]["podIP"] for pod in pods.values()}
        # No address is held for what is gone; a network namespace a pod; a pause container and an app a pod.
        wait_for(lambda found=(addresses, 2, 4): _held(machine) == found, f"nothing but {addresses}")  # type: ignore[misc]
        # What was in memory went with a reboot; while the machine is up, the volume lives as long as the pod.
        starts = [str(restarts + 1), "1" if rebooted else "2"]
        wait_for(lambda starts=starts: machine.run("logs", "one").split()[:2] == starts, f"{starts} starts")  # type: ignore[misc]
    machine.run("down")


def _held(machine: Machine) -> tuple[set[str], int, int]:
    """Addresses, network namespaces and containers that the runtime has."""
    layout = machine.state.runtime
    leases = {path.name for path in (layout.ipam_dir / layout.network_name).glob("10.*")}
    return leases, len(list(layout.run.glob("*/netns/*"))), len(list(layout.runc_root.glob("k8s.io/*")))


def _all_new(before: dict[str, list[str]], now: dict[str, list[str]]) -> bool:
    return now.keys() == before.keys() and all(now[pod] and all(now[pod]) and now[pod] != before[pod] for pod in before)


def test_files_and_folders_together_and_as_they_change(machine: Machine) -> None:
    machine.put(pod_manifest("first", container_manifest()))
    machine.run("up", "-d", str(HELLO), str(machine.manifests))
    machine.until_running("hello", "first")
    machine.put(pod_manifest("second", container_manifest()))
    machine.until_running("second")
    (machine.manifests / "first.json").unlink()
    wait_for(lambda: set(machine.pods()) == {"hello", "second"}, "the first one is gone")


def test_down_without_an_agent_stops_by_grace(machine: Machine) -> None:
    polite = "trap 'sleep 2; echo bye > /out/said; exit 0' TERM; echo up > /out/said; sleep 1000 & wait"
    machine.put(
        pod_manifest(
            "polite",
            container_manifest(command=["sh", "-c", polite], volumeMounts=[{"name": "out", "mountPath": "/out"}]),
            volumes=[{"name": "out", "hostPath": {"path": str(machine.folder)}}],
            terminationGracePeriodSeconds=20,
        )
    )
    machine.run("up", "-d", str(machine.manifests))
    said = machine.folder / "said"
    wait_for(lambda: said.exists() and said.read_text() == "up\n", "the container runs")
    agent = machine.state.agent()
    assert agent is not None
    os.kill(agent.pid, signal.SIGKILL)
    wait_for(lambda: not agent.alive(), "the agent is dead")
    assert "its containers go on" in machine.run("status", status=3)
    machine.run("down")
    assert said.read_text() == "bye\n"


def test_four_containers_run_quickly(machine: Machine) -> None:
    machine.run("up", "-d", str(machine.manifests))
    shutil.copy(REPO / "examples" / "multi.yaml", machine.folder / "draft.yaml")
    begun = time.time()
    (machine.folder / "draft.yaml").rename(machine.manifests / "multi.yaml")
    machine.until_running("multi")
    found = json.loads(machine.run("explain", "multi", "-o", "json"))
    starts = [each for each in found["timeline"] if each["step"] == "start"]
    assert len(starts) == 4
    took = max(each["at"] + each["seconds"] for each in starts) - begun
    print(f"four containers running after {took:.2f} s")
    assert took < 20, "a machine this busy proves nothing about the 1 s that is the goal, but this is too much"


@pytest.fixture(scope="module")
def hello() -> Iterator[Machine]:
    """A machine that runs the hello pod, for commands that leave it as it is."""
    with a_machine() as made:
        made.run("up", "-d", str(HELLO))
        made.until_running("hello")
        yield made


def test_exec(hello: Machine) -> None:
    assert hello.run("exec", "hello", "--", "sh", "-c", "echo out; echo err >&2; exit 7", status=7) == "out\nerr\n"
    assert hello.run("exec", "-i", "hello", "--", "cat", stdin="a\nb\n") == "a\nb\n"
    big = "x" * 2_000_000
    assert hello.run("exec", "-i", "hello", "--", "wc", "-c", stdin=big).strip() == str(len(big))
    assert "no such file or directory" in hello.run("exec", "hello", "--", "/nope", status=1)


def test_exec_on_a_terminal(hello: Machine) -> None:
    script = shutil.which("script")
    assert script is not None
    words = shlex.join([*PYKUBELET, "exec", "-it", "hello", "--", "sh", "-c", "tty; exit 3"])
    done = subprocess.run(
        [script, "-qec", words, "/dev/null"], capture_output=True, text=True, timeout=90, env=hello.environment,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout
    assert "/dev/pts/" in done.stdout


def test_port_forward(hello: Machine) -> None:
    out = hello.folder / "forward"
    with out.open("w") as file:
        process = subprocess.Popen([*PYKUBELET, "port-forward", "hello", ":8080"], stdout=file, env=hello.environment)
    try:
        found = wait_for(lambda: re.search(r"127\.0\.0\.1:(\d+) -> 8080", out.read_text()), "it says where it listens")
        assert found is not None
        assert "cannot listen" in hello.run("port-forward", "hello", f"{found[1]}:8080", status=1)
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{found[1]}/", timeout=60) as answer:
                assert answer.read().startswith(b"hello from hello-")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_restart_keeps_the_address(hello: Machine) -> None:
    before = hello.pods()["hello"]["status"]
    assert "container hello restarted" in hello.run("restart", "hello")
    wait_for(
        lambda: hello.container_ids()["hello"] != [before["containerStatuses"][0]["containerID"]], "another container"
    )
    hello.until_running("hello")
    assert hello.pods()["hello"]["status"]["podIP"] == before["podIP"]
    hello.run("restart", "hello/hello")
    hello.until_running("hello")
    assert "asked for it" in hello.run("explain", "hello")


def test_figures(hello: Machine) -> None:
    # A rate needs two looks at the pod; the agent itself may have had its first one before the pod was there.
    wait_for(lambda: re.search(r"hello-\S+\s+\d+m\s+\d+Mi", hello.run("top")), "figures")


def test_images_are_loaded(hello: Machine, tmp_path: Path) -> None:
    from pykubelet.standalone.packer import File, Image, architecture, pack

    tar = tmp_path / "image.tar"
    packed = pack(Image(name="localhost/loaded:1", entries={"hello": File(b"hello")}), architecture())
    tar.write_bytes(packed.data)
    assert "localhost/loaded:1" in hello.run("image", "load", str(tar))
    wait_for(lambda: "localhost/loaded" in hello.run("image", "ls"), "the runtime tells of the image")
    assert "removed localhost/loaded:1" in hello.run("image", "rm", "localhost/loaded:1")
