"""Project quotas of the kernel: what a tree holds, counted by the filesystem itself instead of by walking.

A folder gets a project number that everything made in it inherits; the number is kept by the folder, so nothing is to
be remembered over a restart. Only counting is used, no limit is set. Works where the filesystem (ext4, xfs) was made
and mounted with project quotas and the kernel has quotactl_fd (5.14); anything else is None, never an error.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from pykubelet.clients.host.port import Counted

FIRST_PROJECT, PROJECTS = 1048577, 1 << 30
"""Above the numbers people give by hand (/etc/projid)."""
TRIES = 64
_GET_XATTR, _SET_XATTR = 0x801C581F, 0x401C5820
_XATTR = struct.Struct("=5I8x")
"""flags, extent size, extents, project, copy-on-write extent size"""
_INHERIT = 0x200
_QUOTACTL_FD = 443
_GET_QUOTA = 0x800007 << 8 | 2
"""Q_GETQUOTA of the project type"""
_QUOTA = struct.Struct("=8QI4x")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)

AskKernel = Callable[[int, int], Counted | None]
"""(descriptor on the filesystem, project) -> what the project holds; None: there are no quotas"""


def ask_kernel(descriptor: int, project: int) -> Counted | None:
    raw = ctypes.create_string_buffer(_QUOTA.size)
    if _libc.syscall(_QUOTACTL_FD, descriptor, ctypes.c_uint(_GET_QUOTA), project, raw) != 0:
        # xfs knows a project only once it holds something.
        return Counted(bytes=0, inodes=0) if ctypes.get_errno() == errno.ENOENT else None
    _, _, space, _, _, inodes, *_ = _QUOTA.unpack(raw.raw)
    return Counted(bytes=space, inodes=inodes)


class ProjectQuotas:
    """Implements the `Quotas` port."""

    def __init__(self, ask: AskKernel = ask_kernel) -> None:
        self._ask = ask

    def begin(self, folder: Path, key: str) -> bool:
        """Count what is made in the empty `folder` from now on; False where that cannot be had."""
        descriptor = os.open(folder, _FOLDER)
        try:
            if project_of(descriptor):
                return True
            first = zlib.crc32(key.encode())
            for step in range(TRIES):
                project = FIRST_PROJECT + (first + step) % PROJECTS
                held = self._ask(descriptor, project)
                if held is None:
                    return False
                if held.inodes == 0:
                    return _set_project(descriptor, project)
            return False
        finally:
            os.close(descriptor)

    def counted(self, folder: Path) -> Counted | None:
        descriptor = os.open(folder, _FOLDER)
        try:
            project = project_of(descriptor)
            return self._ask(descriptor, project) if project >= FIRST_PROJECT else None
        finally:
            os.close(descriptor)


def project_of(descriptor: int) -> int:
    """The project of an open folder; 0 is none."""
    try:
        raw = fcntl.ioctl(descriptor, _GET_XATTR, bytes(_XATTR.size))
    except OSError:
        return 0
    flags, _, _, project, _ = _XATTR.unpack(raw)
    return int(project) if flags & _INHERIT else 0


def _set_project(descriptor: int, project: int) -> bool:
    try:
        raw = fcntl.ioctl(descriptor, _GET_XATTR, bytes(_XATTR.size))
        flags, extent, extents, _, copied = _XATTR.unpack(raw)
        fcntl.ioctl(descriptor, _SET_XATTR, _XATTR.pack(flags | _INHERIT, extent, extents, project, copied))
    except OSError:
        return False
    return True
