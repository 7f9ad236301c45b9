"""Events of set-ups, and what depends on the pod alone: labels, quotas, shared mounts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from pykubelet.api.types import (
    FCVolumeSource,
    LocalVolumeSource,
    NFSVolumeSource,
    NodeSelector,
    Pod,
    PodSecurityContext,
    SecurityContext,
    SELinuxOptions,
    VolumeMount,
    VolumeNodeAffinity,
)
from pykubelet.clients.host.port import Counted
from pykubelet.kit.clock import SystemClock
from pykubelet.volumes import reconciler
from pykubelet.volumes.errors import VolumeProblem, VolumesNotReady
from pykubelet.volumes.manager import VolumeManager
from pykubelet.volumes.objects import VolumeRules
from pykubelet.volumes.selinux import SelinuxMounts, file_label, mount_option
from pykubelet.volumes.spec import FC, LOCAL, VolumeSpec
from tests.builders import a_container
from tests.fakes.fake_mounts import FakeMounts
from tests.unit.volumes.builders import VolumeNode, a_volume, bound, empty_dir, pod_with

DEFAULT = "system_u:object_r:container_file_t:s0"
ALONE = ("ReadWriteOncePod",)


def labelled(level: str | None, policy: str | None = None, *, own: str | None = None, name: str = "web") -> Pod:
    options = SELinuxOptions(level=level) if level else None
    context = PodSecurityContext(se_linux_options=options, se_linux_change_policy=policy)
    containers = [a_container(volume_mounts=[VolumeMount(name="disk", mount_path="/d")])]
    if own:
        security = SecurityContext(se_linux_options=SELinuxOptions(level=own))
        mounts = [VolumeMount(name="disk", mount_path="/d")]
        containers.append(a_container("own", volume_mounts=mounts, security_context=security))
    return pod_with(a_volume("disk"), name=name, containers=containers, security_context=context)


def spec(plugin: str = FC, modes: tuple[str, ...] = ALONE, persistent: str = "pv") -> VolumeSpec:
    volume = a_volume("disk", fc=FCVolumeSource())
    return VolumeSpec(name="disk", folder="pv", plugin=plugin, volume=volume, persistent=persistent, access_modes=modes)


@pytest.mark.parametrize(
    ("options", "label"),
    [
        (None, ""),
        (SELinuxOptions(level="s0:c1,c2"), "system_u:object_r:container_file_t:s0:c1,c2"),
        (SELinuxOptions(), ""),
        (SELinuxOptions(user="me_u", role="r", type="t_t"), "me_u:object_r:container_file_t:s0"),
    ],
)
def test_labels_of_files(options: SELinuxOptions | None, label: str) -> None:
    assert file_label(DEFAULT, options) == label


def test_a_label_with_commas_is_one_option() -> None:
    assert mount_option("a:b:c:s0:c1,c2") == ('context="a:b:c:s0:c1,c2"',)
    assert mount_option("") == ()


def test_who_gets_a_label() -> None:
    label = f"{DEFAULT}:c1"
    mounts, open_mounts = SelinuxMounts(default=DEFAULT), SelinuxMounts(default=DEFAULT, any_mode=True)
    yes = partial(mounts.label, supported=True)
    assert yes(labelled("s0:c1"), spec()) == label
    assert yes(labelled("s0:c1"), spec(modes=("ReadWriteOnce",))) == ""
    assert yes(labelled("s0:c1"), spec(modes=("ReadWriteOncePod", "ReadWriteOnce"))) == ""
    assert open_mounts.label(labelled("s0:c1"), spec(modes=("ReadWriteMany",)), supported=True) == label
    assert yes(labelled("s0:c1", "Recursive"), spec()) == ""
    assert yes(labelled("s0:c1", "MountOption"), spec()) == label
    assert yes(labelled(None), spec()) == ""
    assert mounts.label(labelled("s0:c1"), spec(), supported=False) == ""
    assert yes(labelled("s0:c1"), spec(persistent="")) == ""
    assert SelinuxMounts().label(labelled("s0:c1"), spec(), supported=True) == ""


@pytest.mark.parametrize("policy", [None, "Recursive"])
@pytest.mark.parametrize("supported", [True, False])
def test_a_volume_of_one_pod_has_one_label(policy: str | None, supported: bool) -> None:
    """As upstream, whether it would be mounted with it or not."""
    pod = labelled("s0:c1", policy, own="s0:c2")
    with pytest.raises(VolumeProblem, match=f"multiple SELinux labels found: {DEFAULT}:c1,{DEFAULT}:c2"):
        SelinuxMounts(default=DEFAULT).label(pod, spec(), supported=supported)
    assert SelinuxMounts(default=DEFAULT).label(pod, spec(modes=("ReadWriteOnce",)), supported=supported) == ""


class Counting:
    """Quotas of a filesystem that has them."""

    def __init__(self) -> None:
        self.begun: list[str] = []

    def begin(self, folder: Path, key: str) -> bool:
        self.begun.append(key)
        return True

    def counted(self, folder: Path) -> Counted | None:
        return Counted(bytes=12345, inodes=6) if self.begun else None


async def test_quotas_count_what_pods_in_user_namespaces_hold(tmp_path: Path) -> None:
    counting = Counting()
    node = VolumeNode(tmp_path, rules=VolumeRules(quotas=counting))
    async with node.running() as manager:
        plain = pod_with(empty_dir(), name="plain")
        await manager.wait_mounted(plain)
        (used,) = await manager.usage(plain)
        assert counting.begun == [] and used.used_bytes != 12345
        own = pod_with(empty_dir(size_limit="10k"), empty_dir("mem", medium="Memory"), name="own", host_users=False)
        await manager.wait_mounted(own)
        assert counting.begun == ["uid-own/scratch"]
        uses = {use.name: use for use in await manager.empty_dir_use(own)}
        assert uses["scratch"].used_bytes == 12345 and uses["scratch"].is_over


async def test_another_pods_group_is_not_changed_but_reported(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path / "root")
    disk = tmp_path / "disk"
    disk.mkdir()
    volume = bound(node.objects, "disk", local=LocalVolumeSource(path=str(disk)))
    first = pod_with(volume, name="first")
    second = pod_with(volume, name="second", security_context=PodSecurityContext(fs_group=1 << 30))
    async with node.running() as manager:
        await manager.wait_mounted(first)
        await manager.wait_mounted(second)
    ((reason, message),) = node.events.pods
    assert reason == "AlreadyMountedVolume"
    assert message.startswith(f"The requested fsGroup is {1 << 30}, but the volume disk has GID ")
    assert message.endswith("The volume may not be shareable.")


@pytest.mark.real_loop
async def test_a_slow_change_of_owners_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "REPORT_AFTER", (0.5, 0.1, 20.0))
    node, gate = VolumeNode(tmp_path / "root"), threading.Event()
    disk = tmp_path / "disk"
    disk.mkdir()

    def give(path: Path, gid: int | None, *, on_root_mismatch: bool, progress: object) -> None:
        assert callable(progress)
        progress(17)
        assert gate.wait(30)

    monkeypatch.setattr("pykubelet.volumes.ownership.give", give)
    pod = pod_with(bound(node.objects, "disk", local=LocalVolumeSource(path=str(disk))))
    async with node.running() as manager:
        waiting = manager.wait_mounted(pod)
        node.events.on_event = lambda: gate.set() if len(node.events.pods) == 2 else None
        await waiting
    where = f"Setting volume ownership for {node.paths.volume('uid-web', LOCAL, 'pv-disk')}"
    assert node.events.pods == [
        (
            "VolumePermissionChangeInProgress",
            f"{where} is taking longer than expected, consider using OnRootMismatch",
        ),
        ("VolumePermissionChangeInProgress", f"{where}, processed 17 files."),
    ]


class DeadServer(FakeMounts):
    """Neither a mount nor an unmount comes back before `gate` opens."""

    def __init__(self) -> None:
        super().__init__()
        self.tools["mount.nfs"] = ""
        self.gate = threading.Event()

    def by_tool(
        self, source: str, target: Path, *, fs_type: str, options: Sequence[str], seconds: float | None
    ) -> None:
        assert self.gate.wait(30)
        super().by_tool(source, target, fs_type=fs_type, options=options, seconds=seconds)

    def unmount_forced(self, target: Path, *, seconds: float) -> bool:
        assert self.gate.wait(30)
        return super().unmount_forced(target, seconds=seconds)


@pytest.mark.real_loop
async def test_a_volume_whose_server_is_silent_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "REPORT_AFTER", (0.5, 0.1, 20.0))
    mounts = DeadServer()
    node = VolumeNode(tmp_path, mounts=mounts, clock=SystemClock())
    pod = pod_with(a_volume("data", nfs=NFSVolumeSource(server="files.example", path="/srv")))

    async def told(manager: VolumeManager) -> list[str]:
        while not (problems := manager.problems("uid-web")):  # noqa: ASYNC110  nothing announces it
            await asyncio.sleep(0.01)
        return [f"{problem.volume}: {problem.text}" for problem in problems]

    async with node.running() as manager:
        mounting = asyncio.create_task(manager.wait_mounted(pod))
        assert await told(manager) == ["data: its mount has not come back; it is from files.example"]
        mounts.gate.set()
        await mounting
        assert manager.problems("uid-web") == []
        mounts.gate.clear()
        unmounting = asyncio.create_task(manager.wait_unmounted(pod))
        assert await told(manager) == ["data: its unmount has not come back; it is from files.example"]
        mounts.gate.set()
        await unmounting


async def test_mounts_that_spread_need_a_shared_place(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path)
    mounts = [VolumeMount(name="scratch", mount_path="/v", mount_propagation="HostToContainer")]
    pod = pod_with(empty_dir(), empty_dir("other"), containers=[a_container(volume_mounts=mounts)])
    async with node.running() as manager:
        await manager.wait_mounted(pod)
        await manager.mounts_for(pod, pod.spec.containers[0], {})
        place = node.paths.volume("uid-web", "kubernetes.io/empty-dir", "scratch")
        assert node.mounts.points() == [str(place)] and ("share", str(place)) in node.mounts.calls
        left = place / "left"
        left.mkdir()
        node.mounts.bind(tmp_path, left, read_only=False)  # by a container with Bidirectional
        await manager.wait_unmounted(pod)
        assert node.mounts.points() == [] and not place.exists()


async def test_a_persistent_volume_of_another_node(tmp_path: Path) -> None:
    node = VolumeNode(tmp_path, rules=VolumeRules(wait_seconds=1.0, fits_node=lambda selector: False))
    volume = bound(node.objects, "disk", local=LocalVolumeSource(path=str(tmp_path)))
    node.objects.volumes["pv-disk"].spec.node_affinity = VolumeNodeAffinity(required=NodeSelector())
    async with node.running() as manager:
        with pytest.raises(VolumesNotReady, match=r"volume disk: .*node"):
            await manager.wait_mounted(pod_with(volume))
