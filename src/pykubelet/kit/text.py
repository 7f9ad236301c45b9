"""Texts: cut to a length that can be kept, and values the way Go prints them (checksummed files, metric labels)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_OFFSET = 0x811C9DC5
_PRIME = 0x01000193


def fnv1a_32(text: str) -> int:
    value = _OFFSET
    for byte in text.encode():
        value = ((value ^ byte) * _PRIME) & 0xFFFFFFFF
    return value


def grpc_code(name: str) -> str:
    """A status by its name in the protocol, such as DEADLINE_EXCEEDED, as Go prints it."""
    if name in ("OK", "CANCELLED"):
        return {"OK": "OK", "CANCELLED": "Canceled"}[name]
    return "".join(word.capitalize() for word in name.split("_"))


def go_map(entries: Mapping[Any, str]) -> str:
    """Entries in the order of their keys; a key is a number or a text."""
    return f"map[{' '.join(f'{key}:{entries[key]}' for key in sorted(entries))}]"


def go_list(items: Iterable[Any] | None) -> str:
    return "<nil>" if items is None else f"[{' '.join(str(each) for each in items)}]"


def plain(text: str) -> str:
    """The text with question marks for what is no character: bytes of a pod's that are no UTF-8 cannot be sent."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def shortened(text: str, most: int) -> str:
    """The text, or its first `most` characters and how many are missing."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"
