"""A connection to a message bus: calls with a deadline and errors of our own, signals, the news of its end.

The only module that knows the D-Bus library, which is imported when a connection is made: most nodes never need it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pykubelet.clients.dbus.port import BusDown, BusRefused
from pykubelet.kit.tasks import Ending

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

BUS_NAME, BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
PROPERTIES = "org.freedesktop.DBus.Properties"
CALL_SECONDS = 25.0
CONNECT_SECONDS = 5.0
UNREACHABLE = frozenset(
    (
        "org.freedesktop.DBus.Error.ServiceUnknown",
        "org.freedesktop.DBus.Error.NameHasNoOwner",
        "org.freedesktop.DBus.Error.NoReply",
        "org.freedesktop.DBus.Error.Disconnected",
        "org.freedesktop.DBus.Error.Spawn.ChildExited",
    )
)

SignalHandler = Callable[[str, str, Sequence[Any]], None]
"""Called with interface, member and body."""


class Bus:
    def __init__(self, raw: MessageBus) -> None:
        self._raw = raw
        self._ending = Ending(raw.wait_for_disconnect(), name="the end of the bus")  # type: ignore[no-untyped-call]

    @classmethod
    async def connect(cls, address: str = "") -> Bus:
        """The system bus, or the one at `address`. Raises BusDown."""
        from dbus_fast import BusType
        from dbus_fast.aio import MessageBus

        try:
            raw = MessageBus(bus_address=address or None, bus_type=BusType.SYSTEM, negotiate_unix_fd=True)
            async with asyncio.timeout(CONNECT_SECONDS):
                return cls(await raw.connect())
        except Exception as error:  # the library lets through all errors of its socket and parser
            raise BusDown(f"the D-Bus system bus cannot be reached: {str(error) or type(error).__name__}") from error

    async def call(
        self, service: str, path: str, interface: str, member: str, signature: str = "", body: Sequence[Any] = ()
    ) -> Message:
        from dbus_fast import Message, MessageType

        message = Message(
            destination=service, path=path, interface=interface, member=member, signature=signature, body=list(body)
        )
        try:
            async with asyncio.timeout(CALL_SECONDS):
                reply = await self._raw.call(message)
        except TimeoutError as error:
            raise BusDown(f"{service} did not answer {member} within {CALL_SECONDS:g}s") from error
        except Exception as error:
            raise BusDown(f"the D-Bus connection is lost: {str(error) or type(error).__name__}") from error
        if reply is None:
            raise BusDown("the D-Bus connection is lost")
        if reply.message_type is MessageType.ERROR:
            name, text = reply.error_name or "", str(reply.body[0]) if reply.body else "no text"
            if name in UNREACHABLE:
                raise BusDown(f"{service} is not there: {text}")
            raise BusRefused(name, text)
        return reply

    async def read_property(self, service: str, path: str, interface: str, name: str) -> Any:
        reply = await self.call(service, path, PROPERTIES, "Get", "ss", [interface, name])
        return reply.body[0].value

    async def listen(self, rule: str, handler: SignalHandler) -> None:
        """Have the bus send the signals that match; the handler gets every signal and picks its own."""
        from dbus_fast import MessageType

        def received(message: Message) -> None:
            if message.message_type is MessageType.SIGNAL:
                handler(message.interface or "", message.member or "", message.body)

        self._raw.add_message_handler(received)
        await self.call(BUS_NAME, BUS_PATH, BUS_NAME, "AddMatch", "s", [f"type='signal',{rule}"])

    @property
    def is_open(self) -> bool:
        return bool(self._raw.connected)

    async def ended(self) -> None:
        """Wait until the connection is gone."""
        await self._ending.wait()

    async def close(self) -> None:
        if self.is_open:
            self._raw.disconnect()
        await self._ending.wait()
