"""Plugins by their sockets: found, registered, refused, replaced and gone."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pykubelet.clients.plugins.port import PluginInfo
from pykubelet.cm.plugin_manager import Identity, PluginManager, PluginRefused, Sockets, open_tree_watch
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Wakeup, running
from pykubelet.model.errors import PluginError

A, B = Path("/reg/a.sock"), Path("/reg/b.sock")


class FakeWatch:
    def __init__(self) -> None:
        self.there: dict[Path, Identity] = {}
        self.signal = Wakeup()
        self.closed = False

    def sockets(self) -> Sockets:
        return dict(self.there)

    async def wait(self, at_most: float) -> None:
        await self.signal.wait(at_most)

    def close(self) -> None:
        self.closed = True

    def put(self, path: Path, inode: int = 1) -> None:
        self.there[path] = Identity(inode, 0)
        self.signal.set()

    def take(self, path: Path) -> None:
        del self.there[path]
        self.signal.set()


class FakeRegistrations:
    def __init__(self) -> None:
        self.infos: dict[Path, PluginInfo | PluginError | None] = {}
        """None hangs."""
        self.requested: list[tuple[Path, float]] = []
        self.reported: list[tuple[Path, str | None]] = []
        self.deaf = False

    async def info(self, socket: Path) -> PluginInfo:
        self.requested.append((socket, asyncio.get_running_loop().time()))
        answer = self.infos[socket]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, PluginError):
            raise answer
        assert answer is not None
        return answer

    async def notify(self, socket: Path, problem: str | None) -> None:
        if self.deaf:
            raise PluginError("not now", code="UNKNOWN", call="NotifyRegistrationStatus", socket=str(socket))
        self.reported.append((socket, problem))


class FakeHandler:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []
        self.refuse = ""

    async def register(self, name: str, endpoint: Path, versions: tuple[str, ...]) -> None:
        if self.refuse:
            raise PluginRefused(self.refuse)
        self.calls.append(("register", name, str(endpoint)))

    async def deregister(self, name: str, endpoint: Path) -> None:
        self.calls.append(("deregister", name, str(endpoint)))


@dataclass
class PluginManagerFixture:
    watch: FakeWatch = field(default_factory=FakeWatch)
    registrations: FakeRegistrations = field(default_factory=FakeRegistrations)
    handler: FakeHandler = field(default_factory=FakeHandler)
    metrics: Registry = field(default_factory=Registry)
    may_start: bool = True

    def __post_init__(self) -> None:
        self.manager = PluginManager(
            folder=Path("/reg"),
            registrations=self.registrations,
            handlers={"CSIPlugin": self.handler},
            clock=SystemClock(),
            metrics=self.metrics,
            may_start=lambda: self.may_start,
            open_watch=lambda folder: self.watch,
        )

    @asynccontextmanager
    async def live(self) -> AsyncIterator[None]:
        async with running(self.manager):
            await asyncio.sleep(0.1)
            yield


def csi(name: str, endpoint: str = "") -> PluginInfo:
    return PluginInfo(type="CSIPlugin", name=name, endpoint=endpoint, versions=("1.0.0",))


def dead(socket: Path) -> PluginError:
    return PluginError("connection refused", code="UNAVAILABLE", call="GetInfo", socket=str(socket))


async def test_a_plugin_that_is_there_at_the_start_is_registered_and_told() -> None:
    bed = PluginManagerFixture()
    bed.registrations.infos[A] = csi("one", "/csi/one.sock")
    bed.watch.put(A)
    async with bed.live():
        assert bed.handler.calls == [("register", "one", "/csi/one.sock")]
        assert bed.registrations.reported == [(A, None)]
        assert 'plugin_manager_total_plugins{socket_path="/reg/a.sock",state="actual_state_of_world"} 1' in (
            bed.metrics.expose()
        )
    assert bed.watch.closed


async def test_an_empty_endpoint_is_the_socket_itself() -> None:
    bed = PluginManagerFixture()
    bed.registrations.infos[A] = csi("one")
    async with bed.live():
        bed.watch.put(A)
        await asyncio.sleep(0.1)
        assert bed.handler.calls == [("register", "one", str(A))]


async def test_a_replaced_socket_is_a_new_plugin_and_a_removed_one_is_gone() -> None:
    bed = PluginManagerFixture()
    bed.registrations.infos[A] = csi("one")
    bed.watch.put(A)
    async with bed.live():
        bed.watch.put(A, inode=2)
        await asyncio.sleep(0.1)
        assert [call[0] for call in bed.handler.calls] == ["register", "deregister", "register"]
        bed.watch.take(A)
        await asyncio.sleep(0.1)
        assert [call[0] for call in bed.handler.calls] == ["register", "deregister", "register", "deregister"]
        assert bed.manager.states() == []
        assert "socket_path=" not in bed.metrics.expose()


async def test_a_stale_socket_is_tried_with_back_off_until_it_is_replaced() -> None:
    bed = PluginManagerFixture()
    bed.registrations.infos[A] = dead(A)
    bed.watch.put(A)
    async with bed.live():
        await asyncio.sleep(600)
        moments = [when for _, when in bed.registrations.requested]
        gaps = [round(later - earlier, 3) for earlier, later in itertools.pairwise(moments)]
        assert gaps[:9] == [0.5, 1, 2, 4, 8, 16, 32, 64, 122]
        (state,) = bed.manager.states()
        assert state.failures == len(moments)
        assert state.problem == "GetInfo at /reg/a.sock: connection refused (UNAVAILABLE)"
        assert bed.registrations.reported == []
        bed.registrations.infos[A] = csi("one")
        bed.watch.put(A, inode=2)
        await asyncio.sleep(0.1)
        assert bed.handler.calls == [("register", "one", str(A))]
        assert bed.manager.states()[0].problem == ""


async def test_a_refused_plugin_is_told_why() -> None:
    bed = PluginManagerFixture()
    bed.registrations.infos[A] = csi("one")
    bed.registrations.infos[B] = PluginInfo(type="Odd", name="two", endpoint="", versions=())
    bed.handler.refuse = "too old"
    bed.watch.put(A)
    bed.watch.put(B)
    async with bed.live():
        assert dict(bed.registrations.reported) == {
            A: "too old",
            B: 'no handler registered for plugin type "Odd" (known: CSIPlugin)',
        }


async def test_a_plugin_that_could_not_be_told_is_told_again_and_registered_once() -> None:
    bed = PluginManagerFixture()
    bed.registrations.deaf = True
    bed.watch.put(A)
    bed.registrations.infos[A] = csi("one")
    async with bed.live():
        await asyncio.sleep(10)
        assert bed.registrations.reported == []
        assert [each.problem for each in bed.manager.states()] != [""]
        bed.registrations.deaf = False
        await asyncio.sleep(30)
        assert bed.registrations.reported == [(A, None)]
        assert [call[0] for call in bed.handler.calls] == ["register"]
        assert [each.problem for each in bed.manager.states()] == [""]


async def test_a_plugin_that_hangs_delays_no_other() -> None:
    bed = PluginManagerFixture()
    bed.registrations.infos[A] = None
    bed.registrations.infos[B] = csi("two")
    bed.watch.put(A)
    bed.watch.put(B)
    async with bed.live():
        assert bed.handler.calls == [("register", "two", str(B))]
        assert {state.problem for state in bed.manager.states()} == {"", "not asked yet"}


async def test_nothing_is_asked_before_the_sources_are_ready() -> None:
    bed = PluginManagerFixture(may_start=False)
    bed.registrations.infos[A] = csi("one")
    bed.watch.put(A)
    async with bed.live():
        await asyncio.sleep(60)
        assert bed.registrations.requested == []
        bed.may_start = True
        await asyncio.sleep(2)
        assert bed.handler.calls == [("register", "one", str(A))]


async def test_a_handler_that_breaks_is_that_plugins_trouble_alone() -> None:
    class Breaking(FakeHandler):
        async def register(self, name: str, endpoint: Path, versions: tuple[str, ...]) -> None:
            if name == "one" and len(self.calls) < 2:
                self.calls.append(("break", name, ""))
                raise ValueError("no such thing")
            await super().register(name, endpoint, versions)

        async def deregister(self, name: str, endpoint: Path) -> None:
            await super().deregister(name, endpoint)
            raise ValueError("not that either")

    bed = PluginManagerFixture(handler=(handler := Breaking()))
    bed.registrations.infos |= {A: csi("one"), B: csi("two")}
    bed.watch.put(A)
    async with bed.live():
        assert [state.problem for state in bed.manager.states()] == ["ValueError: no such thing"]
        bed.watch.put(B)
        await asyncio.sleep(1)
        assert handler.calls[:3] == [("break", "one", ""), ("register", "two", str(B)), ("register", "one", str(A))]
        bed.watch.take(A)
        bed.watch.put(B, inode=2)
        await asyncio.sleep(0.1)
        assert handler.calls[3:] == [
            ("deregister", "one", str(A)),
            ("deregister", "two", str(B)),
            ("register", "two", str(B)),
        ]


# --- sockets --------------------------------------------------------------------------------------------------


def a_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.real_loop
async def test_sockets_are_found_at_any_depth_and_nothing_else_is(tmp_path: Path) -> None:
    root = tmp_path / "registry"
    watch = open_tree_watch(root)
    try:
        assert watch.sockets() == {}
        a_socket(root / "one.sock")
        a_socket(root / "deep" / "er" / "two.sock")
        a_socket(root / ".hidden.sock")
        a_socket(root / ".folder" / "three.sock")
        (root / "file").write_text("")
        (root / "link").symlink_to(root / "one.sock")
        assert set(watch.sockets()) == {root / "one.sock", root / "deep" / "er" / "two.sock"}
    finally:
        watch.close()


@pytest.mark.real_loop
async def test_a_change_in_a_nested_folder_wakes(tmp_path: Path) -> None:
    watch = open_tree_watch(tmp_path)
    try:
        (tmp_path / "nested").mkdir()
        watch.sockets()
        await watch.wait(0.001)
        a_socket(tmp_path / "nested" / "one.sock")
        await watch.wait(30)
        first = watch.sockets()
        assert set(first) == {tmp_path / "nested" / "one.sock"}
        (tmp_path / "nested" / "one.sock").unlink()
        a_socket(tmp_path / "nested" / "one.sock")
        await watch.wait(30)
        again = watch.sockets()
        assert again.keys() == first.keys()
        assert again != first
    finally:
        watch.close()


@pytest.mark.real_loop
async def test_a_socket_whose_rights_change_is_still_the_same(tmp_path: Path) -> None:
    watch = open_tree_watch(tmp_path)
    try:
        a_socket(tmp_path / "one.sock")
        before = watch.sockets()
        (tmp_path / "one.sock").chmod(0o600)
        assert watch.sockets() == before
    finally:
        watch.close()
