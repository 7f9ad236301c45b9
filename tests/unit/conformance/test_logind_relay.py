"""The logind of the suite's guest: what anybody announces comes from its owner, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from conformance.logind_relay import ANNOUNCEMENT, Relay
from dbus_fast import Message
from dbus_fast.aio import MessageBus

from pykubelet.clients.dbus.logind import DbusLogind
from pykubelet.clients.dbus.port import Notice
from tests.fakes.private_bus import PrivateBus, needs_bus
from tests.fakes.stand_in_logind import NAME, PATH

pytestmark = [pytest.mark.real_loop, needs_bus]


async def test_an_announcement_of_a_stranger_is_heard_from_the_relay_alone(tmp_path: Path) -> None:
    with PrivateBus(tmp_path) as bus:
        relay = Relay(max_delay=60)
        await relay.start(bus.address)
        async with DbusLogind(connect=bus.connect, settings=tmp_path).session() as session:
            stranger = await MessageBus(bus_address=bus.address).connect()
            for coming in (True, False):
                await stranger.send(Message.new_signal(PATH, f"{NAME}.Manager", ANNOUNCEMENT, "b", [coming]))
            stranger.disconnect()
            assert [await session.next_notice(), await session.next_notice()] == [Notice.SHUTDOWN, Notice.CANCELLED]
            assert not await session.is_shutting_down()
            relay.announce(True)
            assert await session.next_notice() is Notice.SHUTDOWN
        relay.stop()
