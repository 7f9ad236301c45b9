"""One contract for device plugins: the fake, and Kubernetes' own sample device plugin as a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from pykubelet.clients.plugins.connection import GrpcRegistrations
from pykubelet.clients.plugins.devices import GrpcDevicePlugin
from pykubelet.clients.plugins.port import DevicePlugin
from pykubelet.model.errors import PluginError
from tests.bed.device_plugins import RESOURCE, running, sample_plugin
from tests.bed.parts import need_root
from tests.fakes.fake_devices import FakeDevicePlugin, a_device

pytestmark = pytest.mark.real_loop

WITHIN = 60.0


class Subject(Protocol):
    plugin: DevicePlugin
    """Has the healthy devices Dev-1 and Dev-2."""

    def leave(self) -> None:
        """The plugin is gone."""
        ...


class FakeSubject:
    def __init__(self) -> None:
        self.fake = FakeDevicePlugin(devices=[a_device("Dev-1"), a_device("Dev-2")])
        self.plugin: DevicePlugin = self.fake

    def leave(self) -> None:
        self.fake.crash()


class SampleSubject:
    def __init__(self, plugin: DevicePlugin, leave: Callable[[], None]) -> None:
        self.plugin = plugin
        self.leave = leave


@asynccontextmanager
async def a_fake(folder: Path) -> AsyncIterator[Subject]:
    yield FakeSubject()


@asynccontextmanager
async def a_sample(folder: Path) -> AsyncIterator[Subject]:
    need_root()
    registry = folder / "plugins_registry"
    registry.mkdir()
    (folder / "device-plugins").mkdir()
    # Where this lies the plugin expects to be found by its socket and does not register by itself.
    (folder / "device-plugins" / "DEPRECATION").touch()
    with running(sample_plugin(folder, folder, str(registry))) as program:
        async with asyncio.timeout(WITHIN):
            while not (sockets := list(registry.iterdir())):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await GrpcRegistrations().info(sockets[0])).name == RESOURCE, program.tail()
        plugin = GrpcDevicePlugin(sockets[0])
        try:
            yield SampleSubject(plugin, program.kill9)
        finally:
            await plugin.close()
    for name in ("Dev-1", "Dev-2"):  # what it makes for a device
        Path("/tmp", name).unlink(missing_ok=True)


Open = Callable[[Path], AbstractAsyncContextManager[Subject]]
SUBJECTS = pytest.mark.parametrize(
    "a_subject", [pytest.param(a_fake, id="fake"), pytest.param(a_sample, id="sample", marks=pytest.mark.node)]
)


@SUBJECTS
async def test_all_devices_are_listed_at_once(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject, aclosing(subject.plugin.watch()) as lists:
        async with asyncio.timeout(WITHIN):
            devices = await anext(lists)
        assert sorted(devices, key=lambda each: each.id) == [a_device("Dev-1"), a_device("Dev-2")]


@SUBJECTS
async def test_a_list_ends_when_the_plugin_goes_and_no_call_is_answered_then(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        async with aclosing(subject.plugin.watch()) as lists, asyncio.timeout(WITHIN):
            await anext(lists)
            subject.leave()
            with pytest.raises(PluginError) as caught:
                await anext(lists)
        assert caught.value.code == "UNAVAILABLE" and caught.value.call == "ListAndWatch"
        with pytest.raises(PluginError) as caught:
            await subject.plugin.allocate(["Dev-1"])
        assert caught.value.code == "UNAVAILABLE" and caught.value.call == "Allocate"


@SUBJECTS
async def test_a_plugin_says_what_it_wants_to_be_asked(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        options = await subject.plugin.options()
        assert (options.pre_start, options.prefers) == (False, False)
        await subject.plugin.pre_start(["Dev-1"])
        assert list(await subject.plugin.preferred(["Dev-1", "Dev-2"], [], 1)) == []


@SUBJECTS
async def test_devices_are_given_as_often_as_they_are_asked_for(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        for _ in range(2):
            given = await subject.plugin.allocate(["Dev-1", "Dev-2"])
            assert len(given.devices) + len(given.mounts) == 2
            assert given.wire, "kept for the checkpoint"


@SUBJECTS
async def test_a_device_that_is_not_there_is_refused(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        with pytest.raises(PluginError, match="Dev-9") as caught:
            await subject.plugin.allocate(["Dev-9"])
        assert (caught.value.code, caught.value.call) == ("UNKNOWN", "Allocate")
        await subject.plugin.allocate(["Dev-1"])


@SUBJECTS
async def test_after_closing_lists_end_and_calls_fail(a_subject: Open, tmp_path: Path) -> None:
    async with a_subject(tmp_path) as subject:
        async with aclosing(subject.plugin.watch()) as lists, asyncio.timeout(WITHIN):
            await anext(lists)
            await subject.plugin.close()
            await subject.plugin.close()
            with pytest.raises((PluginError, StopAsyncIteration)):
                await anext(lists)
        with pytest.raises(PluginError):
            await subject.plugin.allocate(["Dev-1"])
