"""Texts of strangers at a length that can be kept: pods, servers and objects decide what is in them and how long."""

from __future__ import annotations


def shortened(text: str, most: int) -> str:
    """The text, or its first `most` characters with a word on how many are missing."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"
