"""The mount table in memory (`pykubelet.hollow`) as tests use it: calls are kept, programs and trouble are planned."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from pathlib import Path

from pykubelet.clients.host.port import MountError, ToolFailed, ToolMissing
from pykubelet.hollow.mounts import MemoryMounts
from tests.spin_guard import note


class FakeMounts(MemoryMounts):
    """`fail` plans trouble for paths that contain a text."""

    def __init__(self) -> None:
        super().__init__()
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

    # --- planning trouble -----------------------------------------------------------------------

    def fail(self, verb: str, containing: str, text: str, times: int = 1) -> None:
        self._failures.append([verb, containing, text, times])

    def mend(self) -> None:
        """Forget all planned trouble."""
        self._failures.clear()

    def _begin(self, verb: str, target: Path) -> None:
        self.calls.append((verb, str(target)))
        note(f"{verb} of {target}")
        for plan in self._failures:
            kind, containing, text, times = plan
            if kind == verb and str(containing) in str(target) and isinstance(times, int) and times > 0:
                plan[3] = times - 1
                raise MountError(str(text))

    def _is_busy(self, target: Path) -> bool:
        return str(target) in self.busy

    # --- the port -------------------------------------------------------------------------------

    def tmpfs(self, target: Path, *, size_bytes: int | None) -> None:
        super().tmpfs(target, size_bytes=size_bytes)
        self.sizes[str(target)] = size_bytes

    def by_tool(
        self, source: str, target: Path, *, fs_type: str, options: Sequence[str], seconds: float | None
    ) -> None:
        if not source.startswith("-") and fs_type.startswith("nfs") and "mount.nfs" not in self.tools:
            needs = f"an {fs_type} volume needs the program mount.nfs (package nfs-common)"
            raise ToolMissing(f"{needs}, which this host does not have")
        super().by_tool(source, target, fs_type=fs_type, options=options, seconds=seconds)

    def run(self, *command: str, seconds: float | None, allow: Container[int] = (), shown: str = "") -> str:
        self.commands.append(command)
        if command[0] not in self.tools:
            return super().run(*command, seconds=seconds, allow=allow, shown=shown)
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
