"""A mount table in memory over a real temporary folder, strict where the kernel is strict.

Passes the contract of the real one (tests/contracts/test_mounts_contract.py). tmpfs content lives in the folder itself
and vanishes on unmount, as memory would. A bind mount is only noted: what it shows is looked up with `shown`. The host
has no programs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Container, Sequence
from pathlib import Path

from pykubelet.clients.host.mounts import BIND_OPTIONS
from pykubelet.clients.host.port import MountEntry, MountError, ToolMissing


class MemoryMounts:
    def __init__(self) -> None:
        self.entries: list[MountEntry] = []
        self._disks: dict[str, int] = {}
        self._mounted = 0
        """Mounts so far: each has a device number of its own."""

    def _begin(self, verb: str, target: Path) -> None:
        """Called before anything is done at `target`."""

    # --- the port -------------------------------------------------------------------------------

    def table(self) -> Sequence[MountEntry]:
        return list(self.entries)

    def is_mounted(self, path: Path) -> bool:
        return any(entry.mount_point == str(path) for entry in self.entries)

    def tmpfs(self, target: Path, *, size_bytes: int | None) -> None:
        self.add_mount("tmpfs", target, fs_type="tmpfs", source="tmpfs")
        target.chmod(0o1777)  # as the kernel makes its root

    def hugetlbfs(self, target: Path, *, page_size: str, size_bytes: int | None) -> None:
        self.add_mount("hugetlbfs", target, fs_type="hugetlbfs", source=f"pagesize={page_size}")

    def bind(self, source: Path, target: Path, *, read_only: bool, options: Sequence[str] = ()) -> None:
        if not source.exists():
            raise _refused(source, target, "No such file or directory")
        if target.exists() and not target.is_symlink() and source.is_dir() != target.is_dir():
            raise _refused(source, target, "Not a directory")
        kept = tuple(option for option in options if option in BIND_OPTIONS and option != "ro")
        writable = "ro" if read_only or "ro" in options else "rw"
        self.add_mount("bind", target, source=str(source), options=(writable, *kept))

    def bind_descriptor(self, descriptor: int, target: Path, *, read_only: bool) -> None:
        source = os.readlink(f"/proc/self/fd/{descriptor}")
        self.add_mount("bind", target, source=source, options=("ro" if read_only else "rw",))

    def by_tool(
        self, source: str, target: Path, *, fs_type: str, options: Sequence[str], seconds: float | None
    ) -> None:
        if source.startswith("-"):
            raise _refused(source, target, "the source must not begin with '-'")
        self.add_mount("tool", target, source=source, fs_type=fs_type, options=tuple(options))

    def make_shared(self, folder: Path) -> None:
        self._begin("share", folder)
        if not self.is_mounted(folder):
            self.add_mount("bind", folder, source=str(folder))

    def unmount(self, target: Path) -> bool:
        self._begin("unmount", target)
        found = [entry for entry in self.entries if entry.mount_point == str(target)]
        below = [entry for entry in self.entries if entry.mount_point.startswith(f"{target}/")]
        if found and (below or self._is_busy(target)):
            raise MountError(f"cannot unmount {target}: Device or resource busy")
        for entry in found:
            self.entries.remove(entry)
            if entry.fs_type in ("tmpfs", "hugetlbfs"):
                for name in os.listdir(target):
                    inside = target / name
                    shutil.rmtree(inside) if inside.is_dir() and not inside.is_symlink() else inside.unlink()
        return bool(found)

    def unmount_forced(self, target: Path, *, seconds: float) -> bool:
        return self.unmount(target)

    def run(self, *command: str, seconds: float | None, allow: Container[int] = (), shown: str = "") -> str:
        raise ToolMissing(f"this volume needs the program {command[0]}, which this host does not have")

    def remove_tree(self, folder: Path) -> None:
        self._begin("remove", folder)
        for entry in self.entries:
            if entry.mount_point == str(folder) or entry.mount_point.startswith(f"{folder}/"):
                raise MountError(f"cannot remove {folder}: {entry.mount_point} is still mounted")
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)

    # --- inside and for a look inside -----------------------------------------------------------

    def shown(self, target: Path | str) -> str:
        """What is bound at a place."""
        return next(entry.source for entry in self.entries if entry.mount_point == str(target))

    def points(self) -> list[str]:
        return [entry.mount_point for entry in self.entries]

    def _is_busy(self, target: Path) -> bool:
        """Whether a process has a file open there."""
        return False

    def _filesystem(self, verb: str, source: str, fs_type: str) -> tuple[str, str]:
        """Device and kind: a bind mount has those of what it shows; a disk mounted twice is one device."""
        if verb == "bind":
            holds = [e for e in self.entries if source == e.mount_point or source.startswith(f"{e.mount_point}/")]
            top = max(holds, key=lambda entry: len(entry.mount_point), default=None)
            return (top.device, top.fs_type) if top is not None else ("0:1", fs_type)
        if verb == "tool":
            return f"8:{self._disks.setdefault(source, len(self._disks))}", fs_type
        self._mounted += 1
        return f"0:{self._mounted + 100}", fs_type

    def add_mount(
        self,
        verb: str,
        target: Path,
        *,
        source: str,
        fs_type: str = "ext4",
        options: tuple[str, ...] = (),
    ) -> None:
        self._begin(verb, target)
        if target.is_symlink():
            raise _refused(source, target, "Not a directory")
        if not target.exists():
            raise _refused(source, target, "No such file or directory")
        device, kind = self._filesystem(verb, source, fs_type)
        self.entries.append(
            MountEntry(
                mount_point=str(target),
                root="/",
                device=device,
                fs_type=kind,
                source=source,
                options=options or ("rw",),
            )
        )


def _refused(source: object, target: Path, why: str) -> MountError:
    return MountError(f"cannot mount {source} at {target}: {why}")
