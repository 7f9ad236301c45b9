"""FlexVolume drivers: what is asked of their program in which order, and what is done when they cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import (
    FlexPersistentVolumeSource,
    FlexVolumeSource,
    LocalObjectReference,
    PodSecurityContext,
    Secret,
    SecretReference,
    Volume,
)
from pykubelet.volumes import reconciler
from pykubelet.volumes.errors import VolumeProblem, VolumesNotReady
from pykubelet.volumes.manager import SAFETY_PERIOD
from pykubelet.volumes.objects import VolumeRules
from pykubelet.volumes.plugins.flex import Answer, Capabilities, answer_of
from pykubelet.volumes.reconstruct import scan
from pykubelet.volumes.spec import spec_of
from tests.unit.volumes.builders import VolumeNode, a_secret, bound, pod_with, problem_texts

DRIVER = "example.com/disk"
OK = {"status": "Success"}
CANNOT = {"status": "Not supported"}


@dataclass
class Program:
    """A driver's program over the node's fake mounts."""

    node: VolumeNode
    attach: bool = False
    can: set[str] = field(default_factory=lambda: {"init", "mount", "unmount"})
    answers: dict[str, tuple[int, str]] = field(default_factory=dict)
    """What it ends with and prints, instead of working."""
    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Called when it is asked that."""

    def __post_init__(self) -> None:
        self.path = self.node.rules.flex_drivers / "example.com~disk" / "disk"
        self.node.mounts.answer = self.run

    def install(self, text: str = "#!/bin/sh\n") -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(text)
        self.node.mounts.tools[str(self.path)] = ""

    def run(self, command: tuple[str, ...]) -> tuple[int, str] | None:
        if command[0] != str(self.path):
            return None
        name, *arguments = command[1:]
        self.before.get(name, lambda: None)()
        if name in self.answers:
            return self.answers[name]
        if name not in self.can:
            return 1, json.dumps(CANNOT)
        work: Callable[..., object] | None = getattr(self, f"_{name}", None)
        if work is not None:
            work(*arguments)
        device = {"device": "/dev/xda"} if name in ("attach", "waitforattach") else {}
        capabilities = {"capabilities": {"attach": self.attach}} if name == "init" else {}
        return 0, json.dumps({**OK, **device, **capabilities})

    def _mount(self, path: str, options: str) -> None:
        self.node.mounts.add_mount("tool", Path(path), source=json.loads(options)["disk"])

    def _unmount(self, path: str) -> None:
        self.node.mounts.unmount(Path(path))

    def _mountdevice(self, path: str, device: str, options: str) -> None:
        self.node.mounts.add_mount("tool", Path(path), source=device)

    def _unmountdevice(self, path: str) -> None:
        self.node.mounts.unmount(Path(path))

    def calls(self) -> list[tuple[str, ...]]:
        return [command[1:] for command in self.node.mounts.commands if command[0] == str(self.path)]

    def order(self) -> list[str]:
        return [call[0] for call in self.calls()]


def a_program(folder: Path, *, installed: bool = True, **fields: Any) -> Program:
    rules = VolumeRules(
        flex_drivers=folder / "exec", wait_seconds=5.0, controller_attaches=fields.pop("controller", True)
    )
    program = Program(VolumeNode(folder / "root", rules=rules), **fields)
    if installed:
        program.install()
    return program


def flex(name: str = "data", **fields: Any) -> Volume:
    source = {"driver": DRIVER, "fs_type": "ext4", "options": {"disk": "d1"}, **fields}
    return Volume(name=name, flex_volume=FlexVolumeSource(**source))


async def test_a_driver_mounts_and_unmounts(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    secret = a_secret("key", password="open")
    program.node.objects.secrets["default", "key"] = Secret(metadata=secret.metadata, data=secret.data, type=DRIVER)
    volume = flex(secret_ref=LocalObjectReference(name="key"))
    pod = pod_with(volume, security_context=PodSecurityContext(fs_group=7), service_account_name="robot")
    path = program.node.paths.pod("uid-web") / "volumes" / "example.com~disk" / "data"
    async with program.node.running() as manager:
        await manager.wait_mounted(pod)
        assert manager.path_of(pod, "data") == str(path) and manager.volumes_in_use() == []
        await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)
    init, mount, unmount = program.calls()
    assert init == ("init",) and mount[:2] == ("mount", str(path)) and unmount == ("unmount", str(path))
    assert json.loads(mount[2]) == {
        "disk": "d1",
        "kubernetes.io/fsType": "ext4",
        "kubernetes.io/readwrite": "rw",
        "kubernetes.io/pvOrVolumeName": "data",
        "kubernetes.io/pod.name": "web",
        "kubernetes.io/pod.namespace": "default",
        "kubernetes.io/pod.uid": "uid-web",
        "kubernetes.io/serviceAccount.name": "robot",
        "kubernetes.io/mounterArgs.FsGroup": "7",
        "kubernetes.io/secret/password": "b3Blbg==",
    }
    assert not path.exists() and program.node.mounts.points() == []


async def test_a_disk_is_attached_by_the_controller_and_mounted_once(tmp_path: Path) -> None:
    program = a_program(tmp_path, attach=True)
    program.can |= {"waitforattach", "mountdevice", "unmountdevice"}
    program.can -= {"mount", "unmount"}
    pods = [pod_with(flex(), name=name) for name in ("a", "b")]
    place = program.node.paths.plugins / "kubernetes.io/flexvolume" / DRIVER / "mounts" / "data"
    async with program.node.running() as manager:
        for pod in pods:
            await manager.wait_mounted(pod)
        assert manager.volumes_in_use() == [f"{DRIVER}/data"]
        shown = program.node.mounts.shown(program.node.paths.volume("uid-b", DRIVER, "data"))
        assert shown == str(place), "bound, as the driver has no mount of its own"
        await manager.wait_unmounted(pods[0])
        assert str(place) in program.node.mounts.points()
        await manager.wait_unmounted(pods[1])
        assert manager.volumes_in_use() == []
    assert program.order() == ["init", "waitforattach", "mountdevice", "mount", "unmount", "unmountdevice"]
    assert program.node.mounts.points() == [] and not place.exists()


async def test_the_agent_attaches_when_the_controller_does_not(tmp_path: Path) -> None:
    program = a_program(tmp_path, attach=True, controller=False)
    program.can |= {"attach", "mountdevice", "unmountdevice", "detach"}
    pod = pod_with(flex())
    async with program.node.running() as manager:
        await manager.wait_mounted(pod)
        await manager.wait_unmounted(pod)
    assert program.order() == [
        "init", "attach", "waitforattach", "mountdevice", "mount", "unmount", "unmountdevice", "detach",
    ]  # fmt: skip
    calls = {call[0]: call[1:] for call in program.calls()}
    assert calls["attach"][1] == "here" and calls["detach"] == ("data", "here")
    assert calls["mountdevice"][1] == "/dev/xda", "what attach said, as the driver cannot wait"


async def test_a_disk_is_noted_before_it_is_attached_and_detached_by_the_next_run_of_the_agent(tmp_path: Path) -> None:
    program = a_program(tmp_path, attach=True, controller=False)
    program.can |= {"attach", "mountdevice", "unmountdevice", "detach"}
    noted: list[list[tuple[str, ...]]] = []
    program.before["attach"] = lambda: noted.append([found.attached for found in scan(program.node.paths)])
    program.answers["mountdevice"] = 1, json.dumps({"status": "Failure"})
    async with program.node.running() as manager:
        with pytest.raises(VolumesNotReady):
            await manager.wait_mounted(pod_with(flex()))
    assert noted[0] == [(f"{DRIVER}/data",)]
    assert "detach" not in program.order()
    program.answers.clear()
    async with program.node.running() as manager:
        await program.node.clock.sleep(0.1)
        assert manager.volumes_in_use() == [f"{DRIVER}/data"]
        manager.keep_only([])
        await program.node.clock.sleep(0.1)
        assert manager.volumes_in_use() == []
    assert program.order()[-1] == "detach" and program.calls()[-1] == ("detach", "data", "here")
    assert scan(program.node.paths) == []


async def test_a_disk_is_not_attached_before_all_that_set_up_needs_is_there(tmp_path: Path) -> None:
    program = a_program(tmp_path, attach=True, controller=False)
    program.can |= {"attach", "detach"}
    async with program.node.running() as manager:
        with pytest.raises(VolumesNotReady, match="secret default/key not found"):
            await manager.wait_mounted(pod_with(flex(secret_ref=LocalObjectReference(name="key"))))
    assert program.order() == ["init"]


async def test_names_of_drivers_that_pods_invent_are_forgotten_with_their_last_user(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    pods = [pod_with(flex(driver=f"example.com/no-{number}"), name=f"p{number}") for number in range(3)]
    lasting = pod_with(flex())
    async with program.node.running() as manager:
        await manager.wait_mounted(lasting)
        for pod in pods:
            with pytest.raises(VolumesNotReady, match="is not on this node"):
                await manager.wait_mounted(pod)
        known = len(manager._plugins)
        assert {f"example.com/no-{number}" for number in range(3)} < set(manager._plugins)
        for pod in pods:
            await manager.wait_unmounted(pod)
        await program.node.clock.sleep(SAFETY_PERIOD + 1)
        assert len(manager._plugins) == known - 3 and DRIVER in manager._plugins
        await manager.wait_unmounted(lasting)
        await program.node.clock.sleep(SAFETY_PERIOD + 1)
        assert DRIVER in manager._plugins, "it is on this node: its abilities are known"


async def test_metrics_name_few_drivers_that_never_did_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciler, "MOST_MEASURED", 2)
    program = a_program(tmp_path)
    async with program.node.running() as manager:
        for number in range(4):
            with pytest.raises(VolumesNotReady):
                await manager.wait_mounted(pod_with(flex(driver=f"example.com/no-{number}"), name=f"p{number}"))
        await manager.wait_mounted(pod_with(flex()))
    shown = program.node.metrics.expose()
    named = set(re.findall(r'storage_operation_duration_seconds_count{volume_plugin="([^"]*)"', shown))
    assert named == {"example.com/no-0", "example.com/no-1", "UnknownVolumePlugin", DRIVER}


async def test_a_disk_of_a_driver_that_only_attaches_is_formatted_and_mounted(tmp_path: Path) -> None:
    program = a_program(tmp_path, attach=True, controller=False)
    program.can = {"init", "attach", "waitforattach"}
    program.node.mounts.tools |= {"blkid": "TYPE=ext4\n", "fsck": ""}
    pod = pod_with(flex(read_only=True))
    async with program.node.running() as manager:
        await manager.wait_mounted(pod)
        point = next(entry for entry in program.node.mounts.entries if entry.source == "/dev/xda")
        assert point.fs_type == "ext4" and point.options == ("ro",)
        await manager.wait_unmounted(pod)
    assert program.node.mounts.points() == []


async def test_a_persistent_volume(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    secret = a_secret("key", "vault", a="b")
    program.node.objects.secrets["vault", "key"] = Secret(metadata=secret.metadata, data=secret.data, type=DRIVER)
    reference = SecretReference(name="key", namespace="vault")
    source = FlexPersistentVolumeSource(driver=DRIVER, options={"disk": "d"}, secret_ref=reference)
    pod = pod_with(bound(program.node.objects, "data", flex_volume=source, read_only=True))
    async with program.node.running() as manager:
        await manager.wait_mounted(pod)
    options = json.loads(program.calls()[1][2])
    assert options["kubernetes.io/pvOrVolumeName"] == "pv-data" and options["kubernetes.io/readwrite"] == "ro"
    assert options["kubernetes.io/secret/a"] == "Yg=="


async def test_a_driver_may_come_late_and_be_replaced(tmp_path: Path) -> None:
    program = a_program(tmp_path, installed=False)
    async with program.node.running() as manager:
        with pytest.raises(VolumesNotReady, match=f"flexVolume driver {DRIVER} is not on this node"):
            await manager.wait_mounted(pod_with(flex()))
        program.install()
        await manager.wait_mounted(pod_with(flex()))
        assert program.order() == ["init", "mount"]
        program.install("#!/bin/sh\n# another\n")
        await manager.wait_mounted(pod_with(flex(), name="next"))
        assert program.order()[2:] == ["init", "mount"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((0, "oops"), "gave no answer to mount but 'oops'"),
        ((1, "oops"), "mount` failed with 1: oops"),
        ((1, json.dumps(OK)), "mount` failed with 1"),
        ((1, '{"status": "Failure", "message": "no disk"}'), "mount command failed, status: Failure, reason: no disk"),
        ((0, '{"status": "Failure", "message": "no disk"}'), "mount command failed, status: Failure, reason: no disk"),
    ],
)
async def test_what_is_wrong_is_said_without_the_options(tmp_path: Path, answer: tuple[int, str], text: str) -> None:
    program = a_program(tmp_path, answers={"mount": answer})
    async with program.node.running() as manager:
        with pytest.raises(VolumesNotReady) as caught:
            await manager.wait_mounted(pod_with(flex()))
    assert text in str(caught.value) and "kubernetes.io/" not in str(caught.value)


async def test_a_driver_that_hangs_is_ended(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    program.node.mounts.hanging = {str(program.path)}
    async with program.node.running() as manager:
        with pytest.raises(VolumesNotReady, match="init` did not finish within 20 s"):
            await manager.wait_mounted(pod_with(flex()))


async def test_a_volume_of_an_earlier_life_is_taken_back_by_its_driver(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    async with program.node.running() as manager:
        await manager.wait_mounted(pod_with(flex()))
    async with program.node.running() as manager:
        await program.node.clock.sleep(0.1)
        manager.keep_only([])
        await program.node.clock.sleep(0.1)
        assert not manager.has_mounts("uid-web")
    assert program.order() == ["init", "mount", "unmount"] and program.node.mounts.points() == []


async def test_without_its_driver_it_is_unmounted_all_the_same(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    async with program.node.running() as manager:
        await manager.wait_mounted(pod_with(flex()))
    program.path.unlink()
    async with program.node.running() as manager:
        await program.node.clock.sleep(0.1)
        manager.keep_only([])
        await program.node.clock.sleep(0.1)
    assert program.node.mounts.points() == []
    program.install()
    async with program.node.running() as manager:
        await manager.wait_mounted(pod_with(flex()))
        assert problem_texts(manager) == []


async def test_a_mount_that_cannot_be_looked_at_is_unmounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server behind it is dead: every look at the path fails."""
    program = a_program(tmp_path)
    pod = pod_with(flex())
    async with program.node.running() as manager:
        await manager.wait_mounted(pod)
        monkeypatch.setattr("pykubelet.volumes.plugins.flex.os.path.lexists", lambda path: False)
        await manager.wait_unmounted(pod)
    assert program.order() == ["init", "mount", "unmount"] and program.node.mounts.points() == []


async def test_a_driver_that_is_gone_while_its_volume_is_mounted(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    pod = pod_with(flex())
    async with program.node.running() as manager:
        await manager.wait_mounted(pod)
        program.path.unlink()
        await manager.wait_unmounted(pod)
    assert program.node.mounts.points() == []


async def test_a_driver_that_mounts_nothing_gives_no_folder_of_the_node(tmp_path: Path) -> None:
    program = a_program(tmp_path)
    program.can = {"init"}
    async with program.node.running() as manager:
        with pytest.raises(VolumesNotReady, match="supports neither mount nor mountdevice"):
            await manager.wait_mounted(pod_with(flex()))


@pytest.mark.parametrize("secret", [None, "Opaque"])
async def test_a_secret_has_to_be_the_drivers(tmp_path: Path, secret: str | None) -> None:
    program = a_program(tmp_path)
    if secret is not None:
        program.node.objects.secrets["default", "key"] = Secret(metadata=a_secret("key").metadata, type=secret)
    async with program.node.running() as manager:
        wrong = "secret default/key not found" if secret is None else f"is not of type {DRIVER}"
        with pytest.raises(VolumesNotReady, match=wrong):
            await manager.wait_mounted(pod_with(flex(secret_ref=LocalObjectReference(name="key"))))


@pytest.mark.parametrize(
    "driver", ["", "../x", "a/b/c", "a~b", "/x", "kubernetes.io/secret", "kubernetes.io/csi", "x" * 300]
)
def test_names_that_no_driver_has(driver: str) -> None:
    with pytest.raises(VolumeProblem, match=r"flexVolume\.driver"):
        spec_of(flex(driver=driver))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"Status": "Success", "Capabilities": {"Attach": false, "SELinuxRelabel": false, "fsGroup": false}}',
         Answer(status="Success", capabilities=Capabilities(attach=False, relabel=False, fs_group=False))),
        ('{"status": "Success", "capabilities": {"attach": false}}',
         Answer(status="Success", capabilities=Capabilities(attach=False))),
        ('{"status": "Success", "device": "/dev/x", "more": 1}', Answer(status="Success", device="/dev/x")),
        ('{"status": "Success", "capabilities": null}', Answer(status="Success")),
        ('{"status": "Success", "message": null, "device": null}', Answer(status="Success")),
        ('{"status": "Success", "capabilities": {"attach": null}}', Answer(status="Success")),
        ("[]", None),
        ('{"status": 5}', None),
        ("[" * 100000, None),
    ],
)  # fmt: skip
def test_answers_are_read_as_go_reads_them(text: str, answer: Answer | None) -> None:
    assert answer_of(text) == answer
