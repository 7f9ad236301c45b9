"""The device manager on fake plugins with jumping time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pykubelet.api.types import (
    Container,
    ContainerExtendedResourceRequest,
    Pod,
    PodExtendedResourceClaimStatus,
    ResourceRequirements,
)
from pykubelet.clients.plugins.port import AllocateResponse, Device, DeviceOptions, DeviceRegistration
from pykubelet.cm.device_manager import (
    CheckpointNotWritten,
    DeviceManager,
    PluginAbsent,
    RegistrationRefused,
    is_extended,
)
from pykubelet.cm.device_state import FILE, DevicesRefused
from pykubelet.cm.topology_manager import NO_HINT
from pykubelet.kit.tasks import running
from pykubelet.model.errors import PluginError
from pykubelet.signals import DeviceHealthChanged, NodeStatusChanged
from tests.builders import a_container, a_context, a_pod, a_sidecar
from tests.fakes.fake_devices import FakeDevicePlugin, a_device

R = "example.com/gpu"
REGISTRATION = DeviceRegistration(version="v1beta1", endpoint="gpu.sock", resource=R)


def wanting(count: int, name: str = "app") -> Container:
    return a_container(name, resources=ResourceRequirements(limits={R: str(count), "cpu": "1"}))


def pod(name: str = "web", count: int = 1) -> Pod:
    return a_pod(name, containers=[wanting(count)])


@dataclass
class DeviceManagerFixture:
    folder: Path
    plugin: FakeDevicePlugin = field(default_factory=lambda: FakeDevicePlugin([a_device("a"), a_device("b")]))
    running: set[str] = field(default_factory=set)
    capacity: int = 0
    synced: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def life(self, *, registers: bool = True) -> AsyncIterator[DeviceManager]:
        ctx = a_context()
        manager = DeviceManager(
            ctx,
            folder=self.folder,
            connect=lambda socket: self.plugin,
            read_allocate_response=lambda data: AllocateResponse(wire=data, envs={"GIVEN": data.decode()}),
            is_running=lambda uid: uid in self.running,
        )

        def more(_: NodeStatusChanged) -> None:
            self.capacity += 1

        ctx.signals.subscribe(NodeStatusChanged, more)
        ctx.signals.subscribe(DeviceHealthChanged, lambda changed: self.synced.append(changed.uid))
        manager.open()
        async with running(manager):
            await asyncio.sleep(0)
            if registers:
                await manager.take(REGISTRATION)
                await asyncio.sleep(0.01)
            yield manager


@pytest.mark.parametrize(
    "name, good",
    [
        ("example.com/gpu", True),
        ("a.b-c.com/Fast_1.x", True),
        ("gpu", False),
        ("kubernetes.io/gpu", False),
        ("sub.kubernetes.io/gpu", False),
        ("requests.example.com/gpu", False),
        ("example.com/", False),
        ("Example.com/gpu", False),
    ],
)
def test_names(name: str, good: bool) -> None:
    assert is_extended(name) == good


@pytest.mark.parametrize(
    "registration, text",
    [
        (
            DeviceRegistration(version="v2", endpoint="e", resource=R),
            'requested API version "v2" is not supported by kubelet. Supported version is ["v1beta1"]',
        ),
        (DeviceRegistration(version="v1beta1", endpoint="e", resource="cpu"), 'the ResourceName "cpu" is invalid'),
        (
            DeviceRegistration(version="v1beta1", endpoint="../e", resource=R),
            'the endpoint "../e" is not the name of a socket',
        ),
    ],
)
async def test_who_may_not_register(tmp_path: Path, registration: DeviceRegistration, text: str) -> None:
    async with DeviceManagerFixture(tmp_path).life(registers=False) as manager:
        with pytest.raises(RegistrationRefused) as caught:
            await manager.take(registration)
        assert str(caught.value) == text


async def test_a_plugin_that_does_not_say_what_it_can_do_is_refused(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path, FakeDevicePlugin([a_device("a")], says_nothing="no options today"))
    async with bed.life(registers=False) as manager:
        with pytest.raises(RegistrationRefused, match=r"^failed to get device plugin options: .*no options today"):
            await manager.take(REGISTRATION)
        assert manager.capacity() == {}
    assert bed.plugin.closed


async def test_two_pods_get_different_devices_and_a_third_none(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        assert (manager.capacity(), manager.allocatable()) == ({R: 2}, {R: 2})
        one, two = pod("one"), pod("two")
        for each in (one, two):
            manager.allocate(each, each.spec.containers[0], NO_HINT)
        response = [await manager.response(each, each.spec.containers[0]) for each in (one, two)]
        assert [each[0].envs["GIVEN"] for each in response] == ["a", "b"]
        third = pod("three")
        with pytest.raises(DevicesRefused, match="Requested: 1, Available: 0"):
            manager.allocate(third, third.spec.containers[0], NO_HINT)
        manager.release("uid-one")
        manager.allocate(third, third.spec.containers[0], NO_HINT)
        assert manager.devices_of("uid-three", "app")[0].ids == ("a",)


async def test_allocate_is_called_once_and_pre_start_before_each_start(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    bed.plugin.can = DeviceOptions(pre_start=True)
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        for _ in range(2):
            await manager.response(made, made.spec.containers[0])
        assert [call for call, _ in bed.plugin.calls] == ["allocate", "pre_start", "pre_start"]


async def test_the_plugin_may_choose(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    bed.plugin.can, bed.plugin.likes = DeviceOptions(prefers=True), ["b"]
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        await manager.response(made, made.spec.containers[0])
        assert bed.plugin.calls == [("preferred", ("a", "b")), ("allocate", ("b",))]


async def test_a_choice_that_another_pod_holds_does_not_count(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    bed.plugin.can, bed.plugin.likes = DeviceOptions(prefers=True), ["b"]
    async with bed.life() as manager:
        one, two = pod("one"), pod("two")
        manager.allocate(one, one.spec.containers[0], NO_HINT)
        manager.allocate(two, two.spec.containers[0], NO_HINT)
        await manager.response(one, one.spec.containers[0])
        assert bed.plugin.calls[-1] == ("allocate", ("a",))


async def test_a_failing_plugin_makes_the_container_wait(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    bed.plugin.fails = "broken"
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        with pytest.raises(PluginError, match="broken"):
            await manager.response(made, made.spec.containers[0])
        bed.plugin.fails = ""
        assert await manager.response(made, made.spec.containers[0])


async def test_a_plugin_gone_and_back(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        await manager.response(made, made.spec.containers[0])
        bed.plugin.leave()
        await asyncio.sleep(1)
        assert (manager.capacity(), manager.allocatable()) == ({R: 2}, {R: 0})
        assert manager.health_of("uid-web", "app") == {R: {"a": "Unhealthy"}}
        assert bed.synced == ["uid-web"]
        other = pod("other")
        with pytest.raises(DevicesRefused, match="no healthy devices present"):
            manager.allocate(other, other.spec.containers[0], NO_HINT)
        bed.plugin = FakeDevicePlugin([a_device("a"), a_device("b")])
        await manager.take(REGISTRATION)
        await asyncio.sleep(1)
        assert manager.allocatable() == {R: 2}
        assert manager.health_of("uid-web", "app") == {R: {"a": "Healthy"}}
        manager.allocate(other, other.spec.containers[0], NO_HINT)
        assert manager.devices_of("uid-other", "app")[0].ids == ("b",)


async def test_a_resource_without_a_plugin_is_forgotten_after_five_minutes(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        bed.plugin.leave()
        await asyncio.sleep(299)
        assert manager.capacity() == {R: 2}
        await asyncio.sleep(2)
        assert (dict(manager.capacity()), manager.removed) == ({}, frozenset({R}))


async def test_a_device_turns_unhealthy_and_back(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        bed.plugin.notify(a_device("a", healthy=False), a_device("b"))
        await asyncio.sleep(1)
        assert (manager.capacity(), manager.allocatable()) == ({R: 2}, {R: 1})
        with pytest.raises(DevicesRefused, match="previously allocated devices are no longer healthy"):
            manager.allocate(made, made.spec.containers[0], NO_HINT)
        bed.running.add("uid-web")
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        bed.plugin.notify(a_device("a"), a_device("b"))
        await asyncio.sleep(1)
        assert bed.synced == ["uid-web", "uid-web"]


async def after_a_life(folder: Path, made: Pod) -> DeviceManagerFixture:
    """The pod was given device `a` in a life of the agent that is over, and so is its plugin's."""
    bed = DeviceManagerFixture(folder)
    async with bed.life() as manager:
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        await manager.response(made, made.spec.containers[0])
    bed.plugin = FakeDevicePlugin([a_device("a"), a_device("b")])
    return bed


async def test_the_next_life_knows_who_holds_what(tmp_path: Path) -> None:
    made = pod()
    bed = await after_a_life(tmp_path, made)
    bed.running = {"uid-web"}
    async with bed.life(registers=False) as manager:
        assert manager.had_checkpoint
        assert (manager.allocatable(), manager.admissible()) == ({R: 0}, {R: 1})
        manager.allocate(made, made.spec.containers[0], NO_HINT)  # its plugin is not back, but the container runs
        assert (await manager.response(made, made.spec.containers[0]))[0].envs == {"GIVEN": "a"}
        other = pod("other")
        with pytest.raises(DevicesRefused):
            manager.allocate(other, other.spec.containers[0], NO_HINT)
        await manager.take(REGISTRATION)
        await asyncio.sleep(1)
        manager.allocate(other, other.spec.containers[0], NO_HINT)
        assert manager.devices_of("uid-other", "app")[0].ids == ("b",)
        manager.release("uid-web")
        assert manager.holders() == {"uid-other"}


async def test_after_a_reboot_a_pod_that_comes_before_its_plugin_is_refused(tmp_path: Path) -> None:
    made = pod()
    bed = await after_a_life(tmp_path, made)
    async with bed.life(registers=False) as manager:
        with pytest.raises(DevicesRefused, match=f"no healthy devices present; cannot allocate unhealthy devices {R}"):
            manager.allocate(made, made.spec.containers[0], NO_HINT)
        await manager.take(REGISTRATION)
        await asyncio.sleep(1)
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        assert manager.devices_of("uid-web", "app")[0].ids == ("a",)


async def test_a_damaged_checkpoint_is_not_used(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"Data": {"PodDeviceEntries": null, "RegisteredDevices": {}}, "Checksum": 1}')
    async with DeviceManagerFixture(tmp_path).life() as manager:
        assert not manager.had_checkpoint
    assert json.loads((tmp_path / f"{FILE}.damaged").read_text())["Checksum"] == 1


async def test_what_is_reserved_but_not_allocated_waits_for_the_plugin(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        bed.plugin.leave()
        await asyncio.sleep(1)
        with pytest.raises(PluginAbsent, match=f"the device plugin of {R} is not running"):
            await manager.response(made, made.spec.containers[0])


async def test_init_containers_pass_on_what_they_had_but_sidecars_keep_it(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    limits = ResourceRequirements(limits={R: "1"})
    made = a_pod(
        init=[a_container("init", resources=limits), a_sidecar("side", resources=limits)],
        containers=[wanting(1)],
    )
    async with bed.life() as manager:
        for each in (*made.spec.init_containers, *made.spec.containers):
            manager.allocate(made, each, NO_HINT)
        held = {name: manager.devices_of("uid-web", name)[0].ids for name in ("init", "side", "app")}
        assert held["init"] == held["side"]
        assert held["app"] != held["side"]


async def test_a_plugin_that_leaves_again_has_its_five_minutes_again(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        bed.plugin.leave()
        await asyncio.sleep(10)
        bed.plugin = FakeDevicePlugin([a_device("a")])
        await manager.take(REGISTRATION)
        await asyncio.sleep(280)
        bed.plugin.leave()
        await asyncio.sleep(60)
        assert (manager.capacity(), manager.removed) == ({R: 1}, frozenset())
        await asyncio.sleep(245)
        assert (dict(manager.capacity()), manager.removed) == ({}, frozenset({R}))


async def test_a_plugin_that_is_replaced_is_let_go(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        old, bed.plugin = bed.plugin, FakeDevicePlugin([a_device("c")])
        await manager.take(REGISTRATION)
        await asyncio.sleep(0.1)
        assert old.closed
        assert manager.capacity() == {R: 1}


async def test_devices_that_vanished_before_the_plugin_was_asked_are_replaced(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    bed.plugin.can, bed.plugin.likes = DeviceOptions(prefers=True), ["b"]
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        assert manager.devices_of("uid-web", "app")[0].ids == ("a",)
        bed.plugin.notify(a_device("b"))
        await asyncio.sleep(0.1)
        (response,) = await manager.response(made, made.spec.containers[0])
        assert response.envs["GIVEN"] == "b"


async def test_devices_that_vanished_and_cannot_be_replaced_say_so(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    bed.plugin.can = DeviceOptions(prefers=True)
    async with bed.life() as manager:
        made, other = pod("web"), pod("other")
        for each in (made, other):
            manager.allocate(each, each.spec.containers[0], NO_HINT)
        bed.plugin.notify(a_device("b"))
        await asyncio.sleep(0.1)
        with pytest.raises(DevicesRefused, match="Requested: 1, Available: 0"):
            await manager.response(made, made.spec.containers[0])
        bed.plugin.notify(a_device("b"), a_device("c"))
        await asyncio.sleep(0.1)
        await manager.response(made, made.spec.containers[0])
        assert manager.devices_of("uid-web", "app")[0].ids == ("c",)


async def test_a_running_pod_is_admitted_again_though_its_resource_was_forgotten(tmp_path: Path) -> None:
    """The plugin was away for long, then the agent restarted: the Node has none of them, the pod still runs."""
    bed = DeviceManagerFixture(tmp_path)
    made = pod()
    async with bed.life() as manager:
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        await manager.response(made, made.spec.containers[0])
        bed.plugin.leave()
        await asyncio.sleep(400)
        assert manager.removed == {R}
    bed.running.add("uid-web")
    async with bed.life(registers=False) as manager:
        assert manager.admissible() == {R: 1}
        manager.allocate(made, made.spec.containers[0], NO_HINT)


async def test_a_plugin_whose_stream_breaks_oddly_ends_nobody_else(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)

    class Odd(FakeDevicePlugin):
        async def watch(self) -> AsyncGenerator[Sequence[Device], None]:
            raise ValueError("what is this")
            yield []

    async with bed.life() as manager:
        good, bed.plugin = bed.plugin, Odd()
        await manager.take(DeviceRegistration(version="v1beta1", endpoint="odd.sock", resource="example.com/odd"))
        await asyncio.sleep(0.1)
        good.notify(a_device("z"))
        await asyncio.sleep(0.1)
        assert manager.allocatable() == {R: 1, "example.com/odd": 0}


async def test_a_second_life_without_admission_gets_devices_again(tmp_path: Path) -> None:
    """A static pod that is written anew under its old UID is not admitted twice."""
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        await manager.response(made, made.spec.containers[0])
        manager.release("uid-web")
        other = pod("other")
        manager.allocate(other, other.spec.containers[0], NO_HINT)
        (response,) = await manager.response(made, made.spec.containers[0])
        assert response.envs["GIVEN"] == "b"
        manager.release("uid-web")
        third = pod("third")
        manager.allocate(third, third.spec.containers[0], NO_HINT)
        with pytest.raises(DevicesRefused, match="Requested: 1, Available: 0"):
            await manager.response(made, made.spec.containers[0])


async def test_a_container_waits_until_what_it_gets_is_on_disk(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        made = pod("web")
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        (tmp_path / FILE).unlink()
        (tmp_path / FILE).mkdir()  # nothing can take its place
        with pytest.raises(CheckpointNotWritten, match="cannot be written"):
            await manager.response(made, made.spec.containers[0])
        (tmp_path / FILE).rmdir()
        assert await manager.response(made, made.spec.containers[0])
        assert "uid-web" in (tmp_path / FILE).read_text()


async def test_a_container_without_devices_waits_for_no_disk(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life() as manager:
        made, plain = pod("web"), a_pod("plain")
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        (tmp_path / FILE).unlink()
        (tmp_path / FILE).mkdir()  # nothing can take its place
        with pytest.raises(CheckpointNotWritten):
            await manager.response(made, made.spec.containers[0])
        assert await manager.response(plain, plain.spec.containers[0]) == []


async def test_a_list_that_says_nothing_new_is_not_written_again(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    async with bed.life():
        written = (tmp_path / FILE).stat().st_ino
        bed.plugin.notify(a_device("a"), a_device("b"))
        await asyncio.sleep(0.1)
        assert (tmp_path / FILE).stat().st_ino == written
        bed.plugin.notify(a_device("a"))
        await asyncio.sleep(0.1)
        assert (tmp_path / FILE).stat().st_ino != written


async def test_a_container_whose_plugin_must_see_each_start_waits_for_it(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    bed.plugin.can = DeviceOptions(pre_start=True)
    async with bed.life() as manager:
        made = pod()
        manager.allocate(made, made.spec.containers[0], NO_HINT)
        await manager.response(made, made.spec.containers[0])
        bed.plugin.leave()
        await asyncio.sleep(1)
        with pytest.raises(PluginAbsent):
            await manager.response(made, made.spec.containers[0])
        bed.plugin = FakeDevicePlugin([a_device("a")], can=DeviceOptions(pre_start=True))
        await manager.take(REGISTRATION)
        await asyncio.sleep(0.1)
        await manager.response(made, made.spec.containers[0])
        assert bed.plugin.calls == [("pre_start", ("a",))]


async def test_what_a_resource_claim_serves_is_left_to_it(tmp_path: Path) -> None:
    bed = DeviceManagerFixture(tmp_path)
    claimed = pod("claimed")
    mapping = ContainerExtendedResourceRequest(container_name="app", resource_name=R, request_name="gpu")
    claimed.status.extended_resource_claim_status = PodExtendedResourceClaimStatus(
        resource_claim_name="made", request_mappings=[mapping]
    )
    async with bed.life() as manager:
        older = pod("older", count=2)
        manager.allocate(older, older.spec.containers[0], NO_HINT)
        container = claimed.spec.containers[0]
        assert manager.hints(claimed, container) == {} and manager.pod_hints(claimed) == {}
        manager.allocate(claimed, container, NO_HINT)
        assert await manager.response(claimed, container) == []
        assert manager.holders() == {"uid-older"}
        bed.plugin.leave()  # and with it the name is known by the older pod's devices alone
        await asyncio.sleep(1)
        manager.allocate(claimed, container, NO_HINT)
        mapping.container_name = "other"
        with pytest.raises(DevicesRefused):
            manager.allocate(claimed, container, NO_HINT)
