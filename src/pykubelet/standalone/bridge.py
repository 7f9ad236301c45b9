"""One network bridge, made and removed with the kernel's own calls so that no `ip` command is needed.

Covers: create with an address, remove, and reading the machine's IPv4 routes. Blocking, but only for microseconds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

ADD_BRIDGE, REMOVE_BRIDGE = 0x89A0, 0x89A1
GET_FLAGS, SET_FLAGS, SET_ADDRESS, SET_NETMASK, SET_HARDWARE = 0x8913, 0x8914, 0x8916, 0x891C, 0x8924
UP = 0x1
ETHERNET = 1


def exists(name: str) -> bool:
    return Path("/sys/class/net", name).exists()


def create(name: str, address: IPv4Interface) -> None:
    """Make the bridge if it is not there, give it its address and bring it up. Safe to repeat."""
    with _control() as control:
        try:
            fcntl.ioctl(control, ADD_BRIDGE, name.encode() + b"\0")
        except FileExistsError:
            pass
        else:
            # Without a fixed hardware address the bridge takes that of its lowest port, which changes as pods
            # come and go, and pods would talk to a gateway that is no longer there.
            hardware = b"\x0a\x58" + hashlib.sha256(name.encode()).digest()[:4]
            _set(control, SET_HARDWARE, name, struct.pack("<H6s8x", ETHERNET, hardware))
        _set(control, SET_ADDRESS, name, _address(address.ip))
        _set(control, SET_NETMASK, name, _address(address.netmask))
        _change_flags(control, name, on=UP)


def remove(name: str) -> None:
    """Take the bridge away; one that is gone already is fine."""
    with _control() as control, contextlib.suppress(OSError):
        _change_flags(control, name, off=UP)
    with _control() as control:
        try:
            fcntl.ioctl(control, REMOVE_BRIDGE, name.encode() + b"\0")
        except OSError as error:
            if error.errno not in (errno.ENXIO, errno.ENODEV):
                raise


def parse_routes(table: str) -> list[tuple[str, IPv4Network]]:
    """From /proc/net/route: interface and destination of each route but the default one."""
    routes = []
    for line in table.splitlines()[1:]:
        words = line.split()
        target, mask = (struct.pack("<I", int(words[column], 16)) for column in (1, 7))
        network = IPv4Network((IPv4Address(target), str(IPv4Address(mask))))
        if network.prefixlen:
            routes.append((words[0], network))
    return routes


def routes() -> list[tuple[str, IPv4Network]]:
    return parse_routes(Path("/proc/net/route").read_text())


@contextlib.contextmanager
def _control() -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        yield control.fileno()


def _set(control: int, call: int, name: str, value: bytes) -> None:
    fcntl.ioctl(control, call, struct.pack("16s24s", name.encode(), value))


def _address(address: IPv4Address) -> bytes:
    return struct.pack("<H2x4s8x", socket.AF_INET, address.packed)


def _change_flags(control: int, name: str, *, on: int = 0, off: int = 0) -> None:
    request = struct.pack("16sH22x", name.encode(), 0)
    (flags,) = struct.unpack_from("H", fcntl.ioctl(control, GET_FLAGS, request), 16)
    fcntl.ioctl(control, SET_FLAGS, struct.pack("16sH22x", name.encode(), flags & ~off | on))
