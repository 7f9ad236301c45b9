"""The manifest files of a folder (or a single file) and the pod each of them holds.

Files are read only when they changed. A file that is bad or unreadable keeps the last good pod it held; one
that is gone loses it. Dot files, sub-directories and anything irregular are no manifests. When two files
hold pods of the same name, the first by file name wins. Does not watch and never waits (static.py).
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from pykubelet.api.manifest import (
    NOTHING_SPECIAL,
    SHOWN_PROBLEMS,
    Allowed,
    InvalidManifest,
    ManifestWarnings,
    load_static_pods,
)
from pykubelet.api.types import Pod
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import full_name

logger = logging.getLogger(__name__)

MAX_BYTES: Final = 10 * 1024 * 1024
BIG_BYTES: Final = 128 * 1024
"""Larger manifests are read in a thread; smaller ones take less time than handing them over."""
LOAD_WITHIN: Final = 600.0
SETTLE_SECONDS: Final = 0.1
"""How long a replaced or conflicting file may be in flux: editors save by renaming files around."""

LoadPod = Callable[[bytes, str], Pod]
LoadPods = Callable[[bytes, str], Sequence[Pod]]
Signature = tuple[int, int, int, int]


class UnreadableManifest(PykubeletError):
    """A manifest file or folder cannot be read as it is."""


class Problem(Struct, frozen=True, kw_only=True):
    """A problem to report once. An empty text says that an earlier problem is over."""

    path: str
    text: str
    pod: Pod | None
    """The pod the file held before, which stays; None if there is none."""


class _File(Struct):
    signature: Signature | None = None
    digest: bytes = b""
    pod: Pod | None = None
    problem: str = ""
    since: float = 0.0
    leaving: float | None = None
    is_link: bool = False


class Outcome(Struct, frozen=True, kw_only=True):
    """What reading a file brought: a pod, a problem, that it is gone, or (nothing set) that it did not change."""

    pod: Pod | None = None
    digest: bytes = b""
    problem: str = ""
    gone: bool = False


class Reading(Struct, frozen=True, kw_only=True):
    """One file that must be read. Touches nothing else, so it may be done in a thread."""

    name: str
    place: Path
    size: int
    unchanged: bytes
    """Digest of the content whose pod is known already."""
    parse: LoadPod

    def load(self) -> Outcome:
        try:
            data = read_manifest(self.place)
            digest = hashlib.blake2b(data, digest_size=16).digest()
            if digest == self.unchanged:
                return Outcome()
            return Outcome(pod=self.parse(data, str(self.place)), digest=digest)
        except FileNotFoundError:
            return Outcome(gone=True)
        except Exception as error:  # one bad file must not trouble the others
            return Outcome(problem=in_one_line(error))


class ManifestFiles:
    def __init__(self, path: Path, load: LoadPod, report: Callable[[Problem], None]) -> None:
        self.path = path
        self._load = load
        self._report = report
        self._files: dict[str, _File] = {}
        self._problem = ""
        self._conflicts: dict[str, str] = {}

    # -- what is there

    def list_names(self) -> list[str] | None:
        """Names of the files that are there, sorted; None when the folder cannot be listed (reported)."""
        try:
            names = self._list()
        except OSError as error:
            self._set_problem(f"cannot read the manifest path: {error.strerror or error}")
            return None
        self._set_problem("")
        return names

    def _list(self) -> list[str]:
        try:
            mode = os.stat(self.path).st_mode
            if not stat.S_ISDIR(mode):
                return [self.path.name]
            return sorted(name for name in os.listdir(self.path) if is_manifest_name(name))
        except FileNotFoundError:
            return []  # a path that does not exist holds no pods; it may appear later

    def has_links(self) -> bool:
        return any(file.is_link for file in self._files.values())

    def is_settled_on_creation(self, name: str) -> bool:
        """Links are complete the moment they appear; a fresh file is complete when its writer closes it."""
        try:
            found = os.lstat(self._place(name))
        except OSError:
            return True
        return stat.S_ISLNK(found.st_mode) or found.st_nlink > 1

    def _place(self, name: str) -> Path:
        return self.path if name == self.path.name and not self.path.is_dir() else self.path / name

    # -- changes

    def inspect(self, name: str, *, force: bool = False) -> Reading | None:
        """Return what must be read because it changed or was bad before; `force` reads in any case.

        The caller runs `Reading.load`, in a thread if it is big, and brings the outcome to `apply`.
        """
        place = self._place(name)
        try:
            found = os.stat(place)
        except FileNotFoundError:
            self.forget(name)
            return None
        except OSError as error:
            self._fail(name, self._files.setdefault(name, _File()), in_one_line(error))
            return None
        if not stat.S_ISREG(found.st_mode):
            self.forget(name)
            return None
        file = self._files.setdefault(name, _File())
        file.leaving = None
        signature = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
        if signature == file.signature and not file.problem and not force:
            return None
        file.signature = signature
        file.is_link = place.is_symlink()
        unchanged = file.digest if file.pod is not None and not file.problem else b""
        return Reading(name=name, place=place, size=found.st_size, unchanged=unchanged, parse=self._load)

    def apply(self, name: str, outcome: Outcome, now: float) -> None:
        """Take over what was read. `now` is when the batch began: its files count as simultaneous."""
        file = self._files.get(name)
        if outcome.gone or file is None:
            self.forget(name)
        elif outcome.problem:
            self._fail(name, file, outcome.problem)
        elif outcome.pod is not None:
            if file.pod is None:
                file.since = now
            if file.problem:
                self._report(Problem(path=str(self._place(name)), text="", pod=outcome.pod))
            file.digest, file.pod, file.problem = outcome.digest, outcome.pod, ""

    def leave(self, name: str, now: float) -> None:
        """The file was renamed away; it is gone unless another takes its name in a moment."""
        file = self._files.get(name)
        if file is not None:
            file.leaving = now + SETTLE_SECONDS

    def await_return(self, name: str, until: float) -> None:
        """A file that was renamed away is being written anew: its pod stays until that is done."""
        file = self._files.get(name)
        if file is not None and file.leaving is not None:
            file.leaving = max(file.leaving, until)

    def forget(self, name: str) -> None:
        file = self._files.pop(name, None)
        if file is not None and file.problem:
            self._report(Problem(path=str(self._place(name)), text="", pod=None))

    def forget_absent(self, present: list[str]) -> None:
        """Drop what a listing does not show; a file that is being replaced gets its moment."""
        there = set(present)
        for name in [name for name, file in self._files.items() if name not in there and file.leaving is None]:
            self.forget(name)

    def _fail(self, name: str, file: _File, problem: str) -> None:
        if problem != file.problem:
            file.problem = problem
            self._report(Problem(path=str(self._place(name)), text=problem, pod=file.pod))

    def _set_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._report(Problem(path=str(self.path), text=problem, pod=None))

    # -- the outcome

    def pod_in(self, name: str) -> Pod | None:
        """The pod of one file, whether or not another file's comes first."""
        file = self._files.get(name)
        return file.pod if file is not None else None

    def pods(self, now: float) -> list[Pod]:
        """The pods of all files by file name, each pod name once. Reports files that come second."""
        for name in [n for n, file in self._files.items() if file.leaving is not None and file.leaving <= now]:
            self.forget(name)
        winners: dict[str, tuple[str, _File]] = {}
        conflicts: dict[str, str] = {}
        for name, file in sorted(self._files.items()):
            if file.pod is None:
                continue
            key = full_name(file.pod)
            if key not in winners:
                winners[key] = (name, file)
                continue
            holder, held = winners[key]
            if held.since + SETTLE_SECONDS > now and file.since < held.since:
                # A file that just appeared takes a pod over only if it is still there in a moment:
                # tools that edit in place write a copy under another name first.
                winners[key] = (name, file)
            elif file.since + SETTLE_SECONDS <= now:
                conflicts[name] = holder
        self._report_conflicts(conflicts)
        return [file.pod for _, file in sorted(winners.values(), key=lambda pair: pair[0]) if file.pod is not None]

    def _report_conflicts(self, conflicts: dict[str, str]) -> None:
        for name, holder in conflicts.items():
            file = self._files[name]
            if self._conflicts.get(name) != holder and file.pod is not None:
                text = f'holds the same pod name as "{holder}", which comes first by file name and wins'
                self._report(Problem(path=str(self.path / name), text=text, pod=file.pod))
        self._conflicts = conflicts

    def next_deadline(self, now: float) -> float | None:
        """When `pods` must be called again although nothing happened; None when never."""
        ends = [file.leaving for file in self._files.values() if file.leaving is not None]
        names: dict[str, float] = {}
        for file in self._files.values():
            if file.pod is None:
                continue
            key, settled = full_name(file.pod), file.since + SETTLE_SECONDS
            if key in names and max(names[key], settled) > now:
                ends.append(max(names[key], settled))
            names[key] = max(names.get(key, 0.0), settled)
        return min(ends, default=None)

    def problems(self) -> dict[str, str]:
        found = {str(self._place(name)): file.problem for name, file in self._files.items() if file.problem}
        return {**found, **({str(self.path): self._problem} if self._problem else {})}


def is_manifest_name(name: str) -> bool:
    return not name.startswith(".")


def read_manifest(path: Path) -> bytes:
    """The content of a regular file of acceptable size; never blocks on a pipe."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableManifest("is not a regular file")
        data = file.read(MAX_BYTES + 1) if found.st_size <= MAX_BYTES else b""
    if found.st_size > MAX_BYTES or len(data) > MAX_BYTES:
        raise UnreadableManifest(f"is larger than {MAX_BYTES // 1024 // 1024} MiB")
    if not data.strip():
        raise UnreadableManifest("is empty")
    return data


def in_one_line(error: Exception) -> str:
    """What went wrong, without the name of the file, which is reported beside it."""
    if isinstance(error, InvalidManifest):
        shown = [str(problem) for problem in error.problems[:SHOWN_PROBLEMS]]
        more = len(error.problems) - len(shown)
        return "; ".join([*shown, *([f"and {more} more"] if more else [])])
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip()) or type(error).__name__


def file_loader(node_name: str, *, allowed: Allowed = NOTHING_SPECIAL) -> LoadPod:
    """Make what reads the one pod of a manifest file."""

    def load(data: bytes, origin: str) -> Pod:
        warnings: ManifestWarnings = []
        pods = load_static_pods(
            data, node_name=node_name, source="file", origin=origin, warnings=warnings, allowed=allowed
        )
        _log_unknown_fields(warnings, origin)
        return pods[0]

    return load


def url_loader(node_name: str, *, allowed: Allowed = NOTHING_SPECIAL) -> LoadPods:
    """Make what reads the pods of an answer from a URL."""

    def load(data: bytes, origin: str) -> Sequence[Pod]:
        warnings: ManifestWarnings = []
        pods = load_static_pods(
            data, node_name=node_name, source="http", origin=origin, warnings=warnings, allowed=allowed
        )
        _log_unknown_fields(warnings, origin)
        return pods

    return load


def _log_unknown_fields(warnings: ManifestWarnings, origin: str) -> None:
    if warnings:
        shown = "; ".join(str(warning) for warning in warnings)
        logger.warning("manifest has unknown fields, which are ignored", extra={"path": origin, "fields": shown})
