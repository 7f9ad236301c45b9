"""How big a block volume is: all that can be told of a device from outside."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def device_bytes(path: Path) -> int | None:
    """Size of a block device; None when it is not there, or is none. Blocking."""
    try:
        device = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.lseek(device, 0, os.SEEK_END) if stat.S_ISBLK(os.fstat(device).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(device)
