"""JSON texts nested as deeply as an API server lets them be."""

from __future__ import annotations


def deep(depth: int) -> str:
    """An object in an object in an object …"""
    return '{"f:a":' * depth + "1" + "}" * depth
