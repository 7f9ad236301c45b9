"""The names of the images that need no registry."""

from __future__ import annotations

PAUSE = "pykubelet.local/pause:1"
"""The sandbox image."""
BUSYBOX = "pykubelet.local/busybox:1"
TESTSERVER = "pykubelet.local/testserver:1"
OFFLINE = (PAUSE, BUSYBOX, TESTSERVER)
