"""The test bed proves itself: real sandboxes from offline images, on a containerd that survives and is adopted."""

from __future__ import annotations

import asyncio
import http.client
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import running
from pykubelet.standalone import images, programs
from pykubelet.standalone.containerd import PrivateContainerd, answers_cri
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.launch import ContainerdLaunch
from pykubelet.standalone.layout import Layout
from pykubelet.wire import cri_pb2 as cri
from tests.bed import leaks
from tests.bed.parts import blocking, free_port
from tests.bed.pods import BarePod, bare_pod
from tests.bed.registry import Registry
from tests.bed.runtime import BUSYBOX, TESTSERVER, BedContainerd
from tests.grpc_services import Stub

pytestmark = pytest.mark.node


def until(what: str, holds: Callable[[], bool], within: float = 60.0) -> None:
    """Wait for the real world, which tells nobody when it is done."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline, f"not after {within} s: {what}"
        time.sleep(0.01)


def exited(pod: BarePod, container: str) -> Callable[[], bool]:
    return lambda: pod.state(container).state == cri.ContainerState.CONTAINER_EXITED


def get(pod: BarePod, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(pod.ip, 8080, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_container_prints_and_exits(containerd: BedContainerd, tmp_path: Path) -> None:
    with bare_pod(containerd.socket, tmp_path, "echo") as pod:
        container = pod.run("main", BUSYBOX, ["sh", "-c", "echo hello from $0; id -u; exit 3", "busybox"])
        until("the container exits", exited(pod, container))
        assert pod.state(container).exit_code == 3
        until("both lines are in the log", lambda: pod.log("main").count("\n") >= 2)  # it may lag behind the exit
        lines = pod.log("main").splitlines()
        assert [line.split(" ", 3)[3] for line in lines] == ["hello from busybox", "0"]


def test_pause_reaps_orphans_and_ends_on_sigterm(containerd: BedContainerd, tmp_path: Path) -> None:
    with bare_pod(containerd.socket, tmp_path, "reap", share_processes=True) as pod:
        container = pod.run("main", BUSYBOX, ["sleep", "1000"])
        assert pod.exec(container, "cat", "/proc/1/cmdline") == "/pause\0"
        pod.exec(container, "sh", "-c", "for n in 1 2 3 4 5; do (sleep 0.1 &) ; done")
        # Orphans become children of /pause; left alone they would stay as zombies for the life of the pod.
        until("orphans are reaped", lambda: " Z " not in pod.exec(container, "sh", "-c", "cat /proc/[0-9]*/stat"))
        until("orphans are gone", lambda: "sleep\x000.1" not in pod.exec(container, "sh", "-c", "cat /proc/*/cmdline"))
        before = time.monotonic()
        pod.stub.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod.id), timeout=30)
        assert time.monotonic() - before < 10


def test_test_server_answers_on_the_pod_address(containerd: BedContainerd, tmp_path: Path) -> None:
    with bare_pod(containerd.socket, tmp_path, "web") as pod:
        container = pod.run("main", TESTSERVER, env={"COLOUR": "green"})
        until("the server listens", lambda: "listening" in pod.log("main"))
        assert get(pod, "/hostname") == (200, "web\n")
        assert "COLOUR=green" in get(pod, "/env")[1]
        assert get(pod, "/healthz") == (200, "ok\n")
        get(pod, "/fail")
        assert get(pod, "/healthz")[0] == 500
        get(pod, "/recover")
        assert get(pod, "/healthz")[0] == 200
        assert get(pod, "/nothing")[0] == 404
        until("the request is in the log", lambda: "GET /nothing" in pod.log("main"))
        assert get(pod, "/exit/7")[0] == 200
        until("the server exits", exited(pod, container))
        assert pod.state(container).exit_code == 7


def test_host_ports_lead_to_the_pod_and_go_with_it(containerd: BedContainerd, tmp_path: Path) -> None:
    port = free_port()
    with bare_pod(containerd.socket, tmp_path, "hostport", ports={8080: port}) as pod:
        pod.run("main", TESTSERVER)
        until("the server listens", lambda: "listening" in pod.log("main"))
        for host in ("127.0.0.1", containerd.gateway_ip):
            with urllib.request.urlopen(f"http://{host}:{port}/hostname", timeout=30) as answer:
                assert answer.read() == b"hostport\n"
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=2)


def test_test_server_ends_on_sigterm(containerd: BedContainerd, tmp_path: Path) -> None:
    with bare_pod(containerd.socket, tmp_path, "term") as pod:
        container = pod.run("main", TESTSERVER)
        until("the server listens", lambda: "listening" in pod.log("main"))
        pod.stub.StopContainer(cri.StopContainerRequest(container_id=container, timeout=20), timeout=30)
        assert pod.state(container).exit_code == 0


def test_node_has_its_address_on_the_pod_network(containerd: BedContainerd, tmp_path: Path) -> None:
    with bare_pod(containerd.socket, tmp_path, "ping") as pod:
        container = pod.run("main", BUSYBOX, ["sleep", "1000"])
        assert "1 packets received" in pod.exec(container, "ping", "-c", "1", "-W", "5", containerd.gateway_ip)


def test_containers_survive_a_killed_containerd(containerd: BedContainerd, tmp_path: Path) -> None:
    with bare_pod(containerd.socket, tmp_path, "survivor") as pod:
        container = pod.run("main", BUSYBOX, ["sh", "-c", "while :; do sleep 0.1; done"])
        containerd.kill()
        until("containerd is dead", lambda: not answers(pod))
        containerd.restart()
        until("the channel is back", lambda: answers(pod))
        assert pod.state(container).state == cri.ContainerState.CONTAINER_RUNNING


def answers(pod: BarePod) -> bool:
    try:
        pod.stub.Version(cri.VersionRequest(), timeout=2)
    except grpc.RpcError:
        return False
    return True


def test_a_second_agent_adopts_the_running_containerd(containerd: BedContainerd, tmp_path: Path) -> None:
    """An own state folder, because the fixture's is locked for the whole run."""
    layout = Layout(Path(f"{containerd.state_dir}-2"))
    runtime = programs.find_runtime()
    first = PrivateContainerd(ContainerdLaunch(layout, runtime), clock=SystemClock())
    second = PrivateContainerd(ContainerdLaunch(layout, runtime), clock=SystemClock())
    try:
        blocking(first.start())
        assert not first.adopted
        with pytest.raises(StandaloneError, match="another pykubelet"):
            blocking(second.start())
        first.release()
        blocking(second.start())
        assert second.adopted
        assert second.pid == first.pid
        assert second.network.subnet == first.network.subnet
    finally:
        blocking(second.stop(containers=True))
        shutil.rmtree(layout.state_dir)
    assert second.pid is None
    assert not os.path.exists(f"/sys/class/net/{layout.network_name}")


async def test_a_dead_containerd_is_started_again(containerd: BedContainerd) -> None:
    layout = Layout(Path(f"{containerd.state_dir}-5"))
    private = PrivateContainerd(ContainerdLaunch(layout, programs.find_runtime()), clock=SystemClock())
    try:
        async with private, running(private):
            first = private.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            await asyncio.to_thread(until, "containerd is started again", lambda: private.restarts == 1)
            assert private.pid != first
            assert answers_cri(layout.socket)
        assert private.pid is not None, "leaving the agent leaves containerd alone"
        assert os.path.exists(f"/proc/{private.pid}")
    finally:
        await private.stop(containers=True)
        shutil.rmtree(layout.state_dir)


def test_containerd_that_cannot_start_says_why(containerd: BedContainerd) -> None:
    layout = Layout(Path(f"{containerd.state_dir}-3"))
    private = PrivateContainerd(ContainerdLaunch(layout, programs.find_runtime()), clock=SystemClock())
    layout.state_dir.mkdir()
    try:
        layout.root.mkdir()
        (layout.root / "io.containerd.metadata.v1.bolt").write_text("a file where a folder belongs")
        with pytest.raises(StandaloneError, match=r"containerd .*\n.*io.containerd.metadata.v1.bolt"):
            blocking(private.start())
    finally:
        blocking(private.stop(containers=True))
        shutil.rmtree(layout.state_dir)


def pull(containerd: BedContainerd, reference: str, registry: Registry | None = None) -> str:
    login = cri.AuthConfig(username=registry.user, password=registry.password) if registry else None
    request = cri.PullImageRequest(image=cri.ImageSpec(image=reference), auth=login)
    with grpc.insecure_channel(f"unix:{containerd.socket}") as channel:
        stub = Stub(channel, cri, "ImageService")
        return str(stub.PullImage(request, timeout=60).image_ref)


def test_images_come_from_the_registry(containerd: BedContainerd, registry: Registry) -> None:
    assert pull(containerd, registry.push("bed/busybox:1")).startswith("sha256:")
    with pytest.raises(grpc.RpcError, match="not found"):
        pull(containerd, f"{registry.host}/bed/nothing:1")


def test_the_private_registry_wants_its_password(containerd: BedContainerd, private_registry: Registry) -> None:
    reference = private_registry.push("bed/busybox:1")
    with pytest.raises(grpc.RpcError, match=r"authorization failed|401|no basic auth"):
        pull(containerd, reference)
    assert pull(containerd, reference, private_registry).startswith("sha256:")


def test_containerd_2_runs_the_same_images(containerd2: BedContainerd, tmp_path: Path) -> None:
    assert "v2." in containerd2.ctr("version")
    with bare_pod(containerd2.socket, tmp_path, "two") as pod:
        container = pod.run("main", TESTSERVER)
        until("the server listens", lambda: "listening" in pod.log("main"))
        assert get(pod, "/hostname") == (200, "two\n")
        containerd2.kill()
        containerd2.restart()
        until("the channel is back", lambda: answers(pod))
        assert pod.state(container).state == cri.ContainerState.CONTAINER_RUNNING


def test_stopping_takes_every_container_along(containerd: BedContainerd, tmp_path: Path) -> None:
    """Also those that have no process namespace of their own, and with containerd already dead."""
    layout = Layout(Path(f"{containerd.state_dir}-4"))
    private = PrivateContainerd(ContainerdLaunch(layout, programs.find_runtime()), clock=SystemClock())
    try:
        blocking(private.start())
        blocking(images.import_images(private.ctr, images.build([images.PAUSE, BUSYBOX]), clock=SystemClock()))
        for dead in (False, True):
            blocking(private.start())
            mark = f"1{os.getpid():09}{int(dead)}"  # seconds that nobody else sleeps
            start_forgotten_pod(layout.socket, tmp_path, mark)
            until("the pod's processes run", lambda: len(leaks.processes_naming(f"sleep {mark}")) > 1)  # noqa: B023
            if dead:
                assert private.pid is not None
                os.kill(private.pid, signal.SIGKILL)
            blocking(private.stop(containers=True))
            assert leaks.processes_naming(f"sleep {mark}") == []
            assert leaks.processes_naming(str(layout.state_dir)) == []
            assert str(layout.state_dir) not in Path("/proc/self/mountinfo").read_text()
    finally:
        blocking(private.stop(containers=True))
        shutil.rmtree(layout.state_dir)


def start_forgotten_pod(socket: Path, folder: Path, mark: str) -> None:
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=mark, namespace="bed", uid=mark), log_directory=str(folder)
    )
    with grpc.insecure_channel(f"unix:{socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = Stub(channel, cri, "RuntimeService")
        made = stub.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=60)
        pod = BarePod(stub, config, str(made.pod_sandbox_id))
        pod.run("main", BUSYBOX, ["sh", "-c", f"setsid sleep {mark} & sleep {mark}"])
