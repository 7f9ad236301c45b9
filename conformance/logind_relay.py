"""`python -m conformance.logind_relay`: a logind that repeats what others say in its name; for the suite's guest.

Specs of graceful shutdown send logind's PrepareForShutdown themselves. Any user of a machine may send that, so
pykubelet believes the owner of logind's name alone, and here the owner repeats it.
"""

from __future__ import annotations

import asyncio

from dbus_fast import Message, MessageType
from tests.fakes.stand_in_logind import StandInLogind

SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
BUS, BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
LONGEST_DELAY = 3600.0
ANNOUNCEMENT = "PrepareForShutdown"


class Relay(StandInLogind):
    async def start(self, address: str) -> None:
        await super().start(address)
        rule = f"type='signal',interface='{self.interface}',member='{ANNOUNCEMENT}'"
        assert self._bus is not None
        await self._bus.call(
            Message(destination=BUS, path=BUS_PATH, interface=BUS, member="AddMatch", signature="s", body=[rule])
        )

    def _received(self, message: Message) -> Message | None:
        if message.message_type is not MessageType.SIGNAL:
            return super()._received(message)
        assert self._bus is not None
        if message.member == ANNOUNCEMENT and message.sender != self._bus.unique_name:
            # The property stays as it is, as a real logind's does in these specs.
            self.signal(ANNOUNCEMENT, "b", *message.body)
        return None


async def main() -> None:
    relay = Relay(max_delay=LONGEST_DELAY)
    await relay.start(SYSTEM_BUS)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
