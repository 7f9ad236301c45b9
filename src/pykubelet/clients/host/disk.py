"""Sizes of filesystems."""

from __future__ import annotations

import os
from pathlib import Path


def filesystem_size(path: Path) -> int:
    """Bytes of the filesystem that holds the path, or its nearest parent that exists; raises OSError."""
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
