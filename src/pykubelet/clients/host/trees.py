"""Removing and walking folders that containers could write to, safe against links, races and mounts.

Everything is done relative to open descriptors, so a folder swapped for a link in mid-walk leads nowhere. A
folder that is the root of another mount is never entered: its mount id, not only its device, is compared,
because a bind mount has the device of its source. Depth is unbounded; open descriptors are not.
"""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path

MAX_OPEN = 64
"""Levels kept open at once; what lies deeper is first moved up."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def mount_id(descriptor: int) -> int:
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as info:
        for line in info:
            if line.startswith("mnt_id:"):
                return int(line[7:])
    raise OSError(f"the kernel does not tell the mount of descriptor {descriptor}")


def remove_tree(folder: Path) -> None:
    """Remove `folder` and all below it on one mount; OSError names what is in the way. Not there is success."""
    try:
        parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        home = mount_id(parent)
        try:
            _remove_at(parent, folder.name, folder, home)
        except FileNotFoundError:
            return
    finally:
        os.close(parent)


def _remove_at(parent: int, name: str, shown: Path, home: int) -> None:
    try:
        top = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=parent)
        return
    try:
        if mount_id(top) != home:
            raise OSError(f"{shown} is still mounted")
        # Folders moved up from too deep are new ones at the top: look again until none is left.
        while _empty(top, shown, home):
            pass
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty(top: int, shown: Path, home: int) -> bool:
    """Depth first with an explicit stack: a hostile depth costs neither recursion nor descriptors.

    True when something was removed or moved up, so that there may be more.
    """
    stack: list[tuple[int, str, list[str]]] = [(top, "", _unlink_files(top))]
    busy = bool(stack[0][2])
    try:
        while True:
            here, name, left = stack[-1]
            if not left:
                if len(stack) == 1:
                    return busy
                stack.pop()
                os.close(here)
                os.rmdir(name, dir_fd=stack[-1][0])
                continue
            child = left.pop()
            if len(stack) >= MAX_OPEN:
                os.rename(child, f".removing-{secrets.token_hex(8)}", src_dir_fd=here, dst_dir_fd=top)
                continue
            descriptor = os.open(child, _FOLDER, dir_fd=here)
            stack.append((descriptor, child, []))
            if mount_id(descriptor) != home:
                raise OSError(f"{shown.joinpath(*(step for _, step, _ in stack))} is still mounted")
            stack[-1][2].extend(_unlink_files(descriptor))
    finally:
        for descriptor, _, _ in stack[1:]:
            os.close(descriptor)


def _unlink_files(folder: int) -> list[str]:
    """Unlink all that is no folder; the names of the folders."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
            else:
                os.unlink(entry.name, dir_fd=folder)
    return folders
