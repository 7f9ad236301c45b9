"""Volumes with the real kernel: mounts, ownership, escapes that must fail, and an agent killed in the middle."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from pykubelet.api.types import (
    ConfigMapProjection,
    DownwardAPIProjection,
    DownwardAPIVolumeFile,
    LocalVolumeSource,
    ObjectFieldSelector,
    Pod,
    PodSecurityContext,
    ProjectedVolumeSource,
    SecretProjection,
    ServiceAccountTokenProjection,
    Volume,
    VolumeDevice,
    VolumeMount,
    VolumeProjection,
)
from pykubelet.clients.host.mounts import HostMounts
from pykubelet.kit.clock import SystemClock
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.manager import VolumeManager
from pykubelet.volumes.subpath import mount_subpath
from pykubelet.wire import cri_pb2 as cri
from tests.bed.pods import DEADLINE, BarePod, bare_pod
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.builders import a_container
from tests.unit.volumes.builders import (
    VolumeNode,
    a_config,
    a_secret,
    bound,
    config_volume,
    empty_dir,
    host_path,
    pod_with,
    secret_volume,
)

pytestmark = pytest.mark.node

GROUP, USER = 4242, 1234


@pytest.fixture
def node(tmp_path: Path) -> Iterator[VolumeNode]:
    mounts = HostMounts()
    yield VolumeNode(tmp_path, mounts=mounts, clock=SystemClock())
    left = [entry.mount_point for entry in mounts.table() if entry.mount_point.startswith(str(tmp_path))]
    for point in reversed(left):
        mounts.unmount(Path(point))
    assert left == [], "mounts left behind"


def where(manager: VolumeManager, pod: Pod, name: str) -> Path:
    path = manager.path_of(pod, name)
    assert path is not None
    return Path(path)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_every_local_kind_with_fs_group(node: VolumeNode, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "data").write_text("keep")
    node.objects.secrets["default", "web"] = a_secret(key="k")
    node.objects.config_maps["default", "web"] = a_config(a="1")
    token = VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token", audience="x"))
    pod = pod_with(
        empty_dir(),
        empty_dir("mem", medium="Memory", size_limit="1Mi"),
        secret_volume(default_mode=0o400),
        config_volume(),
        Volume(name="all", projected=ProjectedVolumeSource(sources=[token], default_mode=0o644)),
        bound(node.objects, "disk", local=LocalVolumeSource(path=str(disk))),
        security_context=PodSecurityContext(fs_group=GROUP, run_as_user=USER),
    )
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        scratch, memory = where(manager, pod, "scratch"), where(manager, pod, "mem")
        assert (scratch.stat().st_gid, mode_of(scratch)) == (GROUP, 0o2777)
        assert os.statvfs(memory).f_blocks * os.statvfs(memory).f_frsize == 1 << 20
        assert memory.stat().st_gid == GROUP
        secret = where(manager, pod, "sec") / "key"
        assert (secret.stat().st_gid, mode_of(secret)) == (GROUP, 0o440)
        projected = where(manager, pod, "all") / "token"
        assert (projected.stat().st_uid, projected.stat().st_gid, mode_of(projected)) == (USER, GROUP, 0o640)
        local = where(manager, pod, "disk")
        assert local == node.paths.volume("uid-web", "kubernetes.io/local-volume", "pv-disk")
        assert (local / "data").read_text() == "keep"
        assert (disk / "data").stat().st_gid == GROUP
        kinds = {e.mount_point.split("/")[-1]: e.fs_type for e in node.mounts.table() if "uid-web" in e.mount_point}
        assert kinds["sec"] == kinds["all"] == kinds["mem"] == "tmpfs" and "cfg" not in kinds
        await manager.wait_unmounted(pod)
    assert (disk / "data").read_text() == "keep"
    assert [p for p in (node.root / "pods/uid-web").rglob("*") if p.is_file() or p.is_symlink()] == []


async def test_limits_and_usage(node: VolumeNode) -> None:
    pod = pod_with(empty_dir(size_limit="1Mi"), empty_dir("mem", medium="Memory", size_limit="2Mi"))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        (where(manager, pod, "scratch") / "big").write_bytes(b"x" * (2 << 20))
        (where(manager, pod, "mem") / "some").write_bytes(b"x" * 8192)
        uses = {use.name: use for use in await manager.empty_dir_use(pod)}
        assert uses["scratch"].is_over and 2 << 20 <= uses["scratch"].used_bytes < 3 << 20
        assert not uses["mem"].is_over and uses["mem"].used_bytes == 8192 and uses["mem"].in_memory
        usage = {each.name: each for each in await manager.usage(pod)}
        assert usage["scratch"].on_node_disk and not usage["mem"].on_node_disk
        assert usage["mem"].capacity_bytes == 2 << 20
        await manager.wait_unmounted(pod)


async def test_a_disk_is_formatted_once_and_shared_by_pods(node: VolumeNode, blank_disk: Path) -> None:
    volume = bound(node.objects, "disk", local=LocalVolumeSource(path=str(blank_disk)))
    first, second = pod_with(volume, name="first"), pod_with(volume, name="second")
    for _ in range(2):
        async with node.running() as manager:
            await manager.wait_mounted(first)
            here = where(manager, first, "disk")
            with (here / "log").open("a") as file:
                file.write("x")
            await manager.wait_mounted(second)
            assert (where(manager, second, "disk") / "log").read_text() == (here / "log").read_text()
            await manager.wait_unmounted(first)
            top = node.paths.plugins / "kubernetes.io/local-volume/mounts/pv-disk"
            assert node.mounts.is_mounted(top)
            if (where(manager, second, "disk") / "log").read_text() == "xx":
                await manager.wait_unmounted(second)
                assert not top.exists()
                return
        # the next life finds the second pod's mount and the node's own
    pytest.fail("the disk lost its data")


async def test_the_nodes_mount_left_by_a_killed_agent_goes(node: VolumeNode, blank_disk: Path) -> None:
    pod = pod_with(bound(node.objects, "disk", local=LocalVolumeSource(path=str(blank_disk))))
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        node.mounts.unmount(where(manager, pod, "disk"))  # as if killed between the two mounts
    async with node.running() as manager:
        await manager.wait_unmounted(pod)
    assert not (node.paths.plugins / "kubernetes.io/local-volume/mounts/pv-disk").exists()


async def test_a_block_volume_in_a_container(
    containerd: BedContainerd, node: VolumeNode, blank_disk: Path, tmp_path: Path
) -> None:
    blank_disk.write_bytes(b"raw data")
    volume = bound(node.objects, "raw", local=LocalVolumeSource(path=str(blank_disk)), volume_mode="Block")
    container = a_container(volume_devices=[VolumeDevice(name="raw", device_path="/dev/raw")])
    pod = pod_with(volume, containers=[container])
    with bare_pod(containerd.socket, tmp_path, "block") as bare:
        async with node.running() as manager:
            await manager.wait_mounted(pod)
            devices = list(await manager.devices_for(pod, container))
            inside = run_with(bare, "main", [], devices=devices)
            assert shell(bare, inside, "head -c 8 /dev/raw") == "raw data"
            bare.stub.StopContainer(cri.StopContainerRequest(container_id=inside, timeout=0), timeout=DEADLINE)
            await manager.wait_unmounted(pod)
    assert not list((node.root / "pods/uid-web/volumeDevices").glob("*/*"))


# --- escapes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "link, subpath",
    [
        ("/etc", "trap"),
        ("/etc", "trap/passwd"),
        ("../../../../../../../../etc", "trap"),
        ("/proc/self/root", "trap/etc"),
        ("..", "trap"),
    ],
)
async def test_a_planted_link_never_leads_out(node: VolumeNode, link: str, subpath: str) -> None:
    mount = VolumeMount(name="scratch", mount_path="/data", sub_path=subpath)
    pod = pod_with(empty_dir(), containers=[a_container(volume_mounts=[mount])])
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        (where(manager, pod, "scratch") / "trap").symlink_to(link)
        with pytest.raises(VolumeProblem, match="leads out of the volume"):
            await manager.mounts_for(pod, pod.spec.containers[0], {})
        assert not [e for e in node.mounts.table() if "volume-subpaths" in e.mount_point]
        await manager.wait_unmounted(pod)
    assert Path("/etc/passwd").exists()


async def test_subpaths_show_files_and_make_folders(node: VolumeNode) -> None:
    node.objects.config_maps["default", "web"] = a_config(a="1")
    mounts = [
        VolumeMount(name="scratch", mount_path="/new", sub_path="deep/er"),
        VolumeMount(name="cfg", mount_path="/etc/a.conf", sub_path="a"),
        VolumeMount(name="scratch", mount_path="/expr", sub_path_expr="logs/$(POD)"),
    ]
    pod = pod_with(empty_dir(), config_volume(), containers=[a_container(volume_mounts=mounts)])
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        (where(manager, pod, "scratch") / "logs").mkdir()
        built = await manager.mounts_for(pod, pod.spec.containers[0], {"POD": "web-0"})
        places = [Path(mount.host_path) for mount in built]
        assert places[0] == node.root / "pods/uid-web/volume-subpaths/scratch/app/0"
        assert mode_of(places[0]) == 0o777
        (places[0] / "x").write_text("through")
        assert (where(manager, pod, "scratch") / "deep/er/x").read_text() == "through"
        assert places[1].read_text() == "1" and built[1].readonly
        assert (where(manager, pod, "scratch") / "logs/web-0").is_dir()
        again = await manager.mounts_for(pod, pod.spec.containers[0], {"POD": "web-0"})
        assert [m.host_path for m in again] == [m.host_path for m in built]
        assert len([e for e in node.mounts.table() if "volume-subpaths" in e.mount_point]) == 3
        node.objects.config_maps["default", "web"] = a_config(a="2")
        manager.object_changed("ConfigMap", "default", "web")
        deadline = time.monotonic() + 60
        while (where(manager, pod, "cfg") / "a").read_text() != "2":
            assert time.monotonic() < deadline
            await node.clock.sleep(0.01)
        assert places[1].read_text() == "1", "a running container keeps the file it began with"
        await manager.mounts_for(pod, pod.spec.containers[0], {"POD": "web-0"})
        assert places[1].read_text() == "2", "a restarted one gets the new"
        await manager.wait_unmounted(pod)
    assert not (node.root / "pods/uid-web/volume-subpaths").exists()


def test_a_race_between_folder_and_link_never_leads_out(tmp_path: Path) -> None:
    """Somebody swaps a folder for a link to the secret place as fast as they can while subPaths are made."""
    mounts = HostMounts()
    volume, secret, place = tmp_path / "volume", tmp_path / "secret", tmp_path / "places/0"
    (volume / "spot").mkdir(parents=True)
    secret.mkdir()
    (secret / "flag").write_text("!")
    (volume / "link").symlink_to(secret)
    stop, chance = threading.Event(), random.Random(1)
    exchange = ctypes.CDLL(None).renameat2
    here, two = os.fsencode(volume / "spot"), os.fsencode(volume / "link")

    def swap() -> None:
        while not stop.is_set():
            exchange(-100, here, -100, two, 2)  # RENAME_EXCHANGE: one of the two is always there
            time.sleep(chance.random() / 2000)  # both sides must get a turn, on any machine

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes = {"shown": 0, "refused": 0}
    try:
        for turn in range(400):
            mounts.unmount(place)
            try:
                mount_subpath(mounts, volume, f"spot/inner-{turn % 7}", place)
                outcomes["shown"] += 1
                assert not (place / "flag").exists() and os.path.realpath(place) == str(place)
            except VolumeProblem:
                outcomes["refused"] += 1
    finally:
        stop.set()
        thread.join()
        mounts.unmount(place)
    assert all(outcomes.values()), outcomes
    assert [p.name for p in secret.iterdir()] == ["flag"]


@pytest.mark.parametrize("medium", [None, "Memory"])
async def test_mounts_spread_between_host_and_container(
    containerd: BedContainerd, node: VolumeNode, tmp_path: Path, medium: str | None
) -> None:
    """In a volume of the pod's own, on whatever the root folder lies; nothing of it is left."""
    volume = empty_dir(medium=medium) if medium else empty_dir()
    into = a_container(
        volume_mounts=[VolumeMount(name="scratch", mount_path="/v", mount_propagation="HostToContainer")]
    )
    back = a_container(volume_mounts=[VolumeMount(name="scratch", mount_path="/v", mount_propagation="Bidirectional")])
    pod = pod_with(volume, containers=[into, back])
    with bare_pod(containerd.socket, tmp_path, "spread", privileged=True) as bare:
        async with node.running() as manager:
            await manager.wait_mounted(pod)
            scratch = where(manager, pod, "scratch")
            for name in ("from-host", "from-pod"):
                (scratch / name).mkdir()
            reader = run_with(bare, "reader", list(await manager.mounts_for(pod, into, {})))
            writer = run_with(bare, "writer", list(await manager.mounts_for(pod, back, {})), privileged=True)
            node.mounts.tmpfs(scratch / "from-host", size_bytes=None)
            (scratch / "from-host" / "seen").touch()
            assert shell(bare, reader, "ls /v/from-host") == "seen"
            assert shell(bare, writer, "mount -t tmpfs t /v/from-pod && touch /v/from-pod/seen") == ""
            assert (scratch / "from-pod" / "seen").exists()
            assert shell(bare, reader, "ls /v/from-pod") == "seen"
            for inside in (reader, writer):
                bare.stub.StopContainer(cri.StopContainerRequest(container_id=inside, timeout=0), timeout=DEADLINE)
            await manager.wait_unmounted(pod)
            assert not scratch.exists()


async def test_clean_up_follows_no_link_and_enters_no_mount(node: VolumeNode, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("data")
    pod = pod_with(empty_dir())
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        scratch = where(manager, pod, "scratch")
        (scratch / "link").symlink_to(outside)
        inner = scratch / "inner"
        inner.mkdir()
        node.mounts.bind(outside, inner, read_only=False)  # as a container with Bidirectional could leave it
        await manager.wait_unmounted(pod)
        assert not scratch.exists()
    assert (outside / "precious").read_text() == "data"


# --- killed in the middle -----------------------------------------------------------------------


@pytest.mark.slow
def test_killed_twenty_times_while_mounting_and_unmounting(node: VolumeNode, tmp_path: Path) -> None:
    """An agent that mounts and unmounts without end is killed at any moment; the next one cleans up after it."""
    root, disk = tmp_path / "kubelet", tmp_path / "disk"
    root.mkdir()
    disk.mkdir()
    (disk / "precious").write_text("data")
    command = [sys.executable, "-m", "tests.node.volume_churn", str(root), str(disk)]
    environment = {**os.environ, "PYTHONPATH": "src:."}
    for turn in range(20):
        agent = subprocess.Popen([*command, "churn"], env=environment, stdout=subprocess.PIPE, text=True)
        assert agent.stdout is not None
        for _ in range(1 + turn % 4):
            assert agent.stdout.readline() == "round\n"
        threading.Event().wait(0.001 * (turn * 7 % 23))
        agent.send_signal(signal.SIGKILL)
        agent.wait()
        agent.stdout.close()
        assert (disk / "precious").read_text() == "data"
    subprocess.run([*command, "clean"], env=environment, check=True, timeout=180)
    assert [e.mount_point for e in node.mounts.table() if str(root) in e.mount_point] == []
    assert [str(p) for p in (root / "pods").rglob("*") if p.is_file() or p.is_symlink()] == []
    assert [p for p in root.glob("pods/*/volumes/*/*")] == [] and [p for p in root.glob("pods/*/volume-subpaths")] == []
    assert sorted(p.name for p in disk.iterdir()) == ["precious", "sub"]
    assert (disk / "precious").read_text() == "data"


# --- in containers ------------------------------------------------------------------------------


def run_with(
    pod: BarePod,
    name: str,
    mounts: list[cri.Mount],
    user: int = 0,
    groups: tuple[int, ...] = (),
    devices: Sequence[cri.Device] = (),
    privileged: bool = False,
) -> str:
    security = cri.LinuxContainerSecurityContext(
        run_as_user=cri.Int64Value(value=user), supplemental_groups=groups, privileged=privileged
    )
    config = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=name),
        image=cri.ImageSpec(image=BUSYBOX),
        command=["sleep", "1000"],
        log_path=f"{name}.log",
        mounts=mounts,
        devices=devices,
        linux=cri.LinuxContainerConfig(security_context=security),
    )
    request = cri.CreateContainerRequest(pod_sandbox_id=pod.id, config=config, sandbox_config=pod.config)
    container = str(pod.stub.CreateContainer(request, timeout=DEADLINE).container_id)
    pod.stub.StartContainer(cri.StartContainerRequest(container_id=container), timeout=DEADLINE)
    return container


def shell(pod: BarePod, container: str, script: str) -> str:
    return pod.exec(container, "sh", "-c", f"{script} 2>&1").strip()


async def test_seen_from_a_container(containerd: BedContainerd, node: VolumeNode, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "file").write_text("of the host")
    node.objects.secrets["default", "web"] = a_secret(key="k")
    node.objects.config_maps["default", "web"] = a_config(a="1")
    sources = [
        VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="token")),
        VolumeProjection(config_map=ConfigMapProjection(name="web")),
        VolumeProjection(secret=SecretProjection(name="web")),
        VolumeProjection(
            downward_api=DownwardAPIProjection(
                items=[
                    DownwardAPIVolumeFile(path="labels", field_ref=ObjectFieldSelector(field_path="metadata.labels"))
                ]
            )
        ),
    ]
    volumes = [
        empty_dir(),
        empty_dir("mem", medium="Memory"),
        host_path(str(host)),
        config_volume(default_mode=0o644),
        secret_volume(default_mode=0o440),
        Volume(name="all", projected=ProjectedVolumeSource(sources=sources, default_mode=0o644)),
    ]
    mounts = [VolumeMount(name=v.name, mount_path=f"/v/{v.name}", read_only=v.name == "host") for v in volumes]
    mounts.append(VolumeMount(name="cfg", mount_path="/single", sub_path="a"))
    pod = pod_with(
        *volumes,
        containers=[a_container(volume_mounts=mounts)],
        labels={"app": "web"},
        security_context=PodSecurityContext(fs_group=GROUP, run_as_user=USER),
    )
    with bare_pod(containerd.socket, tmp_path, "volumes") as bare:
        async with node.running() as manager:
            await manager.wait_mounted(pod)
            built = list(await manager.mounts_for(pod, pod.spec.containers[0], {}))
            inside = run_with(bare, "main", built, USER, (GROUP,))
            assert shell(bare, inside, "cat /v/cfg/a /v/sec/key /v/all/labels /single") == '1kapp="web"1'
            assert (
                shell(bare, inside, "echo x > /v/scratch/f && echo y > /v/mem/f && cat /v/scratch/f /v/mem/f") == "x\ny"
            )
            assert (
                shell(bare, inside, "stat -c '%a %u %g' -L /v/sec/key /v/all/token")
                == f"440 0 {GROUP}\n640 {USER} {GROUP}"
            )
            assert "Read-only file system" in shell(bare, inside, "touch /v/host/new")
            assert "Read-only file system" in shell(bare, inside, "touch /v/cfg/new")
            node.objects.config_maps["default", "web"] = a_config(a="2")
            began = time.monotonic()
            manager.object_changed("ConfigMap", "default", "web")
            while shell(bare, inside, "cat /v/cfg/a /v/all/a") != "22":
                assert time.monotonic() < began + 20
                await node.clock.sleep(0.01)
            bare.stub.StopContainer(cri.StopContainerRequest(container_id=inside, timeout=0), timeout=DEADLINE)
            bare.stub.RemoveContainer(cri.RemoveContainerRequest(container_id=inside), timeout=DEADLINE)
            await manager.wait_unmounted(pod)
    assert (host / "file").read_text() == "of the host"
    assert not list((node.root / "pods/uid-web/volumes").glob("*/*"))
