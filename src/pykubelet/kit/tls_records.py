"""TLS records, one at a time: what the other side may have our TLS library do in one step."""

from __future__ import annotations

from typing import Final

HEADER: Final = 5
LARGEST: Final = HEADER + 16 * 1024 + 2048
"""Bytes. A larger one is refused by OpenSSL as soon as it sees the header."""


class Records:
    """Joins bytes in any pieces to whole records, without reading their content."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)

    def __len__(self) -> int:
        """Bytes that were not yet taken."""
        return len(self._data)

    def add(self, data: bytes) -> None:
        self._data += data

    def take(self) -> bytes:
        """The next one; nothing while it is not there as a whole."""
        size = HEADER + int.from_bytes(self._data[3:HEADER], "big")
        if len(self._data) < HEADER or len(self._data) < min(size, LARGEST):
            return b""
        record = bytes(self._data[:size])
        del self._data[:size]
        return record
