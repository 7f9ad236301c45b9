"""Look-ups of names: one of each at a time, bounded, left alone by whoever cannot wait."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest

from pykubelet.clients.kube.http1 import ApiResolver
from pykubelet.kit.names import Found, LookupFailed, NameLookups

pytestmark = pytest.mark.real_loop

HERE: Found = [
    (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
    (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
]


class SilentServer:
    """A name server that answers when told to; `here` is in the hosts file."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.requested: list[str] = []

    def resolve(self, name: str) -> Found:
        self.requested.append(name)
        if name != "here":
            self.answers.wait(30)
        if name.startswith("unknown"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return HERE


@pytest.fixture
def silent() -> Iterator[SilentServer]:
    server = SilentServer()
    yield server
    server.answers.set()


async def test_addresses_come_with_the_port_in_the_systems_order() -> None:
    found = await NameLookups(resolve=lambda name: HERE).addresses("x", 80)
    assert found == [(socket.AF_INET6, ("::1", 80, 0, 0)), (socket.AF_INET, ("127.0.0.1", 80))]


async def test_a_silent_name_server_costs_one_thread_a_name_and_others_nothing(silent: SilentServer) -> None:
    lookups = NameLookups(within=0.01, resolve=silent.resolve)
    for _ in range(50):
        with pytest.raises(LookupFailed, match="lookup evil: i/o timeout"):
            await lookups.addresses("evil")
    assert silent.requested == ["evil"] and lookups.under_way == 1
    assert len(await NameLookups(resolve=silent.resolve).addresses("here")) == 2


async def test_who_asks_meanwhile_shares_the_answer(silent: SilentServer) -> None:
    lookups = NameLookups(resolve=silent.resolve)
    tasks = [asyncio.ensure_future(lookups.addresses("slow", port)) for port in (1, 2, 3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.sleep(0)
    silent.answers.set()
    second, third = await asyncio.gather(*tasks[1:])
    assert (second[1][1][1], third[1][1][1]) == (2, 3)
    assert silent.requested == ["slow"] and tasks[0].cancelled()


async def test_only_so_many_are_under_way_and_then_there_is_room_again(silent: SilentServer) -> None:
    lookups = NameLookups(most=3, within=0.01, resolve=silent.resolve)
    for number in range(3):
        with pytest.raises(LookupFailed, match="timeout"):
            await lookups.addresses(f"evil{number}")
    with pytest.raises(LookupFailed, match="3 look-ups of other names are not yet answered"):
        await lookups.addresses("here")
    silent.answers.set()
    for _ in range(500):
        await asyncio.sleep(0.01)
        if all(future.done() for future in lookups._under_way.values()):
            break
    assert len(await lookups.addresses("here")) == 2


@pytest.mark.parametrize("name", ["unknown", "\ud800", "x" * 300, "a..b", ""])
async def test_no_such_name(name: str, silent: SilentServer) -> None:
    silent.answers.set()
    resolve = silent.resolve if name == "unknown" else (lambda name: socket.getaddrinfo(name or "\x00", None))
    with pytest.raises(LookupFailed, match="no such host"):
        await NameLookups(resolve=resolve).addresses(name)


async def test_the_api_servers_name_is_looked_up_in_a_set_of_its_own(silent: SilentServer) -> None:
    resolver = ApiResolver(NameLookups(resolve=silent.resolve))
    both = await resolver.resolve("here", 6443, socket.AF_UNSPEC)
    assert [(each["host"], each["port"]) for each in both] == [("::1", 6443), ("127.0.0.1", 6443)]
    assert [each["host"] for each in await resolver.resolve("here", 6443, socket.AF_INET)] == ["127.0.0.1"]


async def test_a_host_without_processes_left_fails_this_lookup_and_no_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookups = NameLookups(resolve=lambda name: HERE)

    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(LookupFailed, match="lookup api: can't start new thread"):
            await lookups.addresses("api")
    assert len(await lookups.addresses("api")) == 2
