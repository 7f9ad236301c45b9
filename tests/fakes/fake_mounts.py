"""A mount table in memory over a real temporary folder: strict where the kernel is strict, and inspectable.

Passes the contract of the real one (tests/contracts/test_mounts_contract.py). tmpfs content lives in the folder itself
and vanishes on unmount, as memory would. A bind mount is only noted: what it shows is looked up with `shown`. Every
call is kept in `calls`; `fail` plans trouble for paths that contain a text.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Sequence
from pathlib import Path

from pykubelet.clients.host.mounts import BIND_OPTIONS
from pykubelet.clients.host.port import MountEntry, MountError, ToolFailed, ToolMissing
from tests.spin_guard import note


class FakeMounts:
    def __init__(self) -> None:
        self.entries: list[MountEntry] = []
        self.calls: list[tuple[str, str]] = []
        self.tools: dict[str, str] = {}
        """Output of programs this host has, by their name."""
        self.commands: list[tuple[str, ...]] = []
        self.answer: Callable[[tuple[str, ...]], tuple[int, str] | None] = lambda command: None
        """How a command ends and what it prints; None: as the other fields say."""
        self.codes: dict[str, int] = {}
        """How programs end, by their name; with 0 if it is not said."""
        self.deadlines: dict[str, float | None] = {}
        """Seconds the last run of each program was given."""
        self.refused: set[str] = set()
        """Commands with one of these words fail, showing themselves as real ones do."""
        self.hanging: set[str] = set()
        """Programs that do not end before their deadline."""
        self.busy: set[str] = set()
        """Mount points in which a process has a file open."""
        self._failures: list[list[object]] = []
        self.sizes: dict[str, int | None] = {}
        self._disks: dict[str, int] = {}

    # --- planning trouble -----------------------------------------------------------------------

    def fail(self, verb: str, containing: str, text: str, times: int = 1) -> None:
        self._failures.append([verb, containing, text, times])

    def mend(self) -> None:
        """Forget all planned trouble."""
        self._failures.clear()

    def _note(self, verb: str, target: Path) -> None:
        self.calls.append((verb, str(target)))
        note(f"{verb} of {target}")
        for plan in self._failures:
            kind, containing, text, times = plan
            if kind == verb and str(containing) in str(target) and isinstance(times, int) and times > 0:
                plan[3] = times - 1
                raise MountError(str(text))

    # --- the port -------------------------------------------------------------------------------

    def table(self) -> Sequence[MountEntry]:
        return list(self.entries)

    def is_mounted(self, path: Path) -> bool:
        return any(entry.mount_point == str(path) for entry in self.entries)

    def tmpfs(self, target: Path, *, size_bytes: int | None) -> None:
        self.add_mount("tmpfs", target, fs_type="tmpfs", source="tmpfs")
        target.chmod(0o1777)  # as the kernel makes its root
        self.sizes[str(target)] = size_bytes

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
        if fs_type.startswith("nfs") and "mount.nfs" not in self.tools:
            needs = f"an {fs_type} volume needs the program mount.nfs (package nfs-common)"
            raise ToolMissing(f"{needs}, which this host does not have")
        self.add_mount("tool", target, source=source, fs_type=fs_type, options=tuple(options))

    def make_shared(self, folder: Path) -> None:
        self._note("share", folder)
        if not self.is_mounted(folder):
            self.add_mount("bind", folder, source=str(folder))

    def unmount(self, target: Path) -> bool:
        self._note("unmount", target)
        found = [entry for entry in self.entries if entry.mount_point == str(target)]
        below = [entry for entry in self.entries if entry.mount_point.startswith(f"{target}/")]
        if found and (below or str(target) in self.busy):
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
        self.commands.append(command)
        if command[0] not in self.tools:
            raise ToolMissing(f"this volume needs the program {command[0]}, which this host does not have")
        self.deadlines[command[0]] = seconds
        shown = f"`{shown or ' '.join(command)}`"
        if command[0] in self.hanging and seconds is not None:
            raise MountError(f"{shown} did not finish within {seconds:g} s")
        code, said = self.answer(command) or (self.codes.get(command[0], 0), self.tools[command[0]])
        if code and code not in allow:
            raise ToolFailed(f"{shown} failed with {code}: {' '.join(said.split()) or 'no output'}", said)
        if self.refused & set(command):
            raise MountError(f"{shown} failed with 1: refused")
        return said

    def remove_tree(self, folder: Path) -> None:
        self._note("remove", folder)
        for entry in self.entries:
            if entry.mount_point == str(folder) or entry.mount_point.startswith(f"{folder}/"):
                raise MountError(f"cannot remove {folder}: {entry.mount_point} is still mounted")
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)

    # --- for tests ------------------------------------------------------------------------------

    def shown(self, target: Path | str) -> str:
        """What is bound at a place."""
        return next(entry.source for entry in self.entries if entry.mount_point == str(target))

    def points(self) -> list[str]:
        return [entry.mount_point for entry in self.entries]

    def _filesystem(self, verb: str, source: str, fs_type: str) -> tuple[str, str]:
        """Device and kind: a bind mount has those of what it shows; a disk mounted twice is one device."""
        if verb == "bind":
            holds = [e for e in self.entries if source == e.mount_point or source.startswith(f"{e.mount_point}/")]
            top = max(holds, key=lambda entry: len(entry.mount_point), default=None)
            return (top.device, top.fs_type) if top is not None else ("0:1", fs_type)
        if verb == "tool":
            return f"8:{self._disks.setdefault(source, len(self._disks))}", fs_type
        return f"0:{len(self.calls) + 100}", fs_type

    def add_mount(
        self,
        verb: str,
        target: Path,
        *,
        source: str,
        fs_type: str = "ext4",
        options: tuple[str, ...] = (),
    ) -> None:
        self._note(verb, target)
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
