"""A message bus of one's own: Debian's dbus-daemon on a socket in a folder, and what a service on it needs.

`PrivateBus` is the daemon; `StandIn` is a service that answers calls by member name. Tests of D-Bus clients use
these instead of the machine's system bus.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from pykubelet.clients.dbus.bus import Bus

CONFIG = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:path={socket}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_destination="*" eavesdrop="false"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_sender="*"/>
  </policy>
</busconfig>
"""
DAEMON = "dbus-daemon"
needs_bus = pytest.mark.skipif(shutil.which(DAEMON) is None, reason="no dbus-daemon here (tools/setup.sh test)")


class PrivateBus:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._socket = folder / "bus"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:path={self._socket}"

    def start(self) -> None:
        """Returns when the bus takes connections: the daemon prints its address then."""
        config = self._folder / "bus.conf"
        config.write_text(CONFIG.format(socket=self._socket))
        self._socket.unlink(missing_ok=True)
        command = [DAEMON, f"--config-file={config}", "--nofork", "--nopidfile", "--print-address=1"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline(), "dbus-daemon did not start"

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    async def connect(self) -> Bus:
        return await Bus.connect(self.address)

    def __enter__(self) -> PrivateBus:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


class Refusal(Exception):
    """Becomes an error reply of this D-Bus name."""

    def __init__(self, name: str, text: str = "") -> None:
        super().__init__(text)
        self.name = name


Method = Callable[..., tuple[str, Sequence[Any]] | tuple[str, Sequence[Any], list[int]]]


class StandIn:
    """A service: methods by member name, properties by name. Signatures are the caller's business."""

    def __init__(self, name: str, path: str, interface: str) -> None:
        self.name, self.path, self.interface = name, path, interface
        self.methods: dict[str, Method] = {}
        self.properties: dict[str, Variant] = {}
        self._bus: MessageBus | None = None

    async def start(self, address: str) -> None:
        self._bus = await MessageBus(bus_address=address, negotiate_unix_fd=True).connect()
        self._bus.add_message_handler(self._received)
        await self._bus.request_name(self.name)

    def stop(self) -> None:
        self.leave_bus()

    def leave_bus(self) -> None:
        """The connection ends; what the service knows stays, for another `start`."""
        if self._bus is not None and self._bus.connected:
            self._bus.disconnect()
        self._bus = None

    def signal(self, member: str, signature: str, *body: Any) -> None:
        assert self._bus is not None
        self._bus.send(Message.new_signal(self.path, self.interface, member, signature, list(body)))

    def _received(self, message: Message) -> Message | None:
        if message.message_type is not MessageType.METHOD_CALL or message.path != self.path:
            return None
        try:
            if message.member == "Get":
                return Message.new_method_return(message, "v", [self.properties[message.body[1]]])
            method = self.methods.get(message.member or "")
            if method is None:
                return Message.new_error(message, "org.freedesktop.DBus.Error.UnknownMethod", message.member or "")
            signature, body, *descriptors = method(*message.body)
        except Refusal as refusal:
            return Message.new_error(message, refusal.name, str(refusal))
        return Message.new_method_return(message, signature, list(body), *descriptors)
