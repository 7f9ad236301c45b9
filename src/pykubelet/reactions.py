"""Which signal causes what: every connection between subsystems that is not a plain call, in one place."""

from __future__ import annotations
