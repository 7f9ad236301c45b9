"""Static pods from manifest files: the service that follows a folder and delivers its pods.

Reacts to a finished write within milliseconds; a burst of files is handled as it comes in, the first pods
being delivered while later files are still read. A full scan every `check_period` is the safety net. The
first delivery always follows a complete scan, so a running pod is never taken for an orphan. What a file
holds is decided in manifests.py, what happened to it comes from watch.py.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import Source, readable
from pykubelet.model.reasons import WARNING
from pykubelet.sources.manifests import BIG_BYTES, LOAD_WITHIN, LoadPod, ManifestFiles, Problem, is_manifest_name
from pykubelet.sources.mux import FAILED_VALIDATION, Deliver
from pykubelet.sources.watch import FileEvent, FolderWatch, Happened, OpenWatch, open_inotify

logger = logging.getLogger(__name__)

SLICE_SECONDS: Final = 0.01
"""Files read for longer than this are delivered before the next ones are read."""
CREATED_PATIENCE: Final = 1.0
WRITER_PATIENCE: Final = 10.0
"""A file that is being written is left alone until it is closed, or nothing was written for so long."""


class StaticSourceSnapshot(Struct, frozen=True, kw_only=True):
    path: str
    pods: tuple[str, ...]
    problems: dict[str, str]
    watching: bool


class StaticSource:
    name = "source-file"

    def __init__(
        self,
        *,
        path: Path,
        check_period: float,
        load: LoadPod,
        deliver: Deliver,
        events: EventRecorder,
        clock: Clock,
        open_watch: OpenWatch = open_inotify,
    ) -> None:
        self._period = check_period
        self._deliver_set = deliver
        self._events = events
        self._clock = clock
        self._open_watch = open_watch
        self._files = ManifestFiles(path, load, self._report)
        self._being_written: dict[str, float] = {}
        self._delivered: list[Pod] | None = None
        self._watching = False
        self._watch_problem = ""
        self._retry = Backoff(initial=1.0, maximum=20.0)

    async def run(self) -> None:
        while True:
            # Watch first, scan second: what changes in between is seen twice rather than not at all.
            watch = self._try_watch()
            try:
                await self.rescan()
                if watch is None:
                    await self._clock.sleep(min(self._retry.next(), self._period))
                else:
                    self._retry.reset()
                    await self._follow(watch)
            finally:
                self._watching = False
                if watch is not None:
                    watch.close()

    def snapshot(self) -> StaticSourceSnapshot:
        return StaticSourceSnapshot(
            path=str(self._files.path),
            pods=tuple(readable(pod) for pod in self._delivered or ()),
            problems=self._files.problems(),
            watching=self._watching,
        )

    async def rescan(self) -> None:
        """Inspect every file once and deliver. Nothing is delivered when the folder cannot be listed."""
        names = self._files.list_names()
        if names is None:
            return
        self._files.forget_absent(names)
        now = self._clock.monotonic()
        await self._read([name for name in names if self._being_written.get(name, 0.0) <= now], force=False)
        self._deliver()

    # -- following

    def _try_watch(self) -> FolderWatch | None:
        try:
            watch = self._open_watch(self._files.path)
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self._watch_problem:
                logger.warning(
                    "cannot watch the manifest path; it is scanned instead",
                    extra={"path": str(self._files.path), "problem": problem},
                )
            self._watch_problem = problem
            return None
        self._watch_problem = ""
        self._watching = True
        return watch

    async def _follow(self, watch: FolderWatch) -> None:
        """Handle what happens until the watch must be opened anew."""
        rescan_at = self._clock.monotonic() + self._period
        while True:
            now = self._clock.monotonic()
            wake_at = min((rescan_at, *self._deadlines(now)))
            events = await watch.wait(max(0.0, wake_at - now))
            kinds = {event.kind for event in events}
            if Happened.REOPEN in kinds:
                return
            await self.handle(events)
            if Happened.RESCAN in kinds:
                self._being_written.clear()  # the end of a write may be among what was missed
            if Happened.RESCAN in kinds or self._is_swap(events) or self._clock.monotonic() >= rescan_at:
                await self.rescan()
                rescan_at = self._clock.monotonic() + self._period

    def _deadlines(self, now: float) -> list[float]:
        settled = self._files.next_deadline(now)
        return [*self._being_written.values(), *([settled] if settled is not None else [])]

    def _is_swap(self, events: Iterable[FileEvent]) -> bool:
        """Mounted ConfigMaps change all files at once by renaming a hidden link that they go through."""
        hidden = any(each.kind is Happened.WRITTEN and each.name.startswith("..") for each in events)
        return hidden and self._files.has_links()

    async def handle(self, events: Sequence[FileEvent]) -> None:
        """Apply a batch of events and what has become due meanwhile, and deliver the outcome."""
        if self._delivered is None:
            await self.rescan()  # the folder could not be listed yet: single files are not the whole set
            return
        now = self._clock.monotonic()
        changed: dict[str, None] = {}
        deleted: set[str] = set()
        lost = False
        for event in events:
            if not is_manifest_name(event.name):
                continue
            changed.pop(event.name, None)
            if self._note(event, now):
                changed[event.name] = None
            lost = lost or event.kind in (Happened.DELETED, Happened.MOVED_AWAY)
            if event.kind is Happened.DELETED:
                deleted.add(event.name)
        for name in [name for name, until in self._being_written.items() if until <= now]:
            del self._being_written[name]
            changed[name] = None
        # With a loss in the batch everything is delivered together: a pod that merely moved to
        # another file must not be seen to vanish in between.
        await self._read(list(changed), force=True, deliver_early=not lost)
        # A file that was deleted and is there again, all in one batch, ended its pod all the same.
        back = {id(pod) for name in deleted if (pod := self._files.pod_in(name)) is not None}
        if back:
            self._deliver(without=back)
        self._deliver()

    def _note(self, event: FileEvent, now: float) -> bool:
        """Whether the file is to be read now."""
        name = event.name
        match event.kind:
            case Happened.WRITTEN:
                self._being_written.pop(name, None)
                return True
            case Happened.TOUCHED:
                # Writers set the mode before they write, too; then the end of the write is what counts.
                return name not in self._being_written
            case Happened.CREATED:
                if self._files.is_settled_on_creation(name):
                    return True
                self._wait_for_writer(name, now + CREATED_PATIENCE)
            case Happened.MODIFIED:
                self._wait_for_writer(name, now + WRITER_PATIENCE)
            case Happened.MOVED_AWAY:
                self._being_written.pop(name, None)
                self._files.leave(name, now)
            case Happened.DELETED:
                self._being_written.pop(name, None)
                self._files.forget(name)
            case Happened.RESCAN | Happened.REOPEN:
                pass
        return False

    def _wait_for_writer(self, name: str, until: float) -> None:
        self._being_written[name] = until
        self._files.await_return(name, until)

    async def _read(self, names: Sequence[str], *, force: bool, deliver_early: bool = False) -> None:
        now = begun = self._clock.monotonic()
        for name in names:
            reading = self._files.inspect(name, force=force)
            if reading is None:
                continue
            big = reading.size > BIG_BYTES
            if big:
                outcome = await host_calls.run(reading.load, name="reading a manifest", within=LOAD_WITHIN)
            else:
                outcome = reading.load()
            self._files.apply(name, outcome, now)
            if self._clock.monotonic() - begun < SLICE_SECONDS:
                continue
            if deliver_early:
                self._deliver()
            await self._clock.sleep(0)  # pods already delivered get going while the rest is read
            begun = self._clock.monotonic()

    def _deliver(self, *, without: Collection[int] = ()) -> None:
        """`without`: ids of pod objects to leave out."""
        pods = [pod for pod in self._files.pods(self._clock.monotonic()) if id(pod) not in without]
        old = self._delivered
        if old is not None and len(old) == len(pods) and all(a is b for a, b in zip(old, pods, strict=True)):
            return
        self._delivered = pods
        self._deliver_set(Source.FILE, pods)

    # -- reporting

    def _report(self, problem: Problem) -> None:
        if not problem.text:
            logger.info("manifest problem is over", extra={"path": problem.path})
            return
        logger.error(
            "manifest is not used; the last good pod of the file, if any, stays",
            extra={
                "path": problem.path,
                "problem": problem.text,
                "kept": readable(problem.pod) if problem.pod is not None else "",
            },
        )
        message = f"Manifest {problem.path}: {problem.text}"
        if problem.pod is not None:
            self._events.pod_event(problem.pod, WARNING, FAILED_VALIDATION, message)
        else:
            self._events.node_event(WARNING, FAILED_VALIDATION, message)


class MergedSets:
    """Several manifest paths as one source: passes on the union of their pods, in the order of the paths.

    The first delivery waits until every path has been read: a running pod must never be taken for an orphan only
    because its file comes second.
    """

    def __init__(self, deliver: Deliver, count: int) -> None:
        self._deliver_set = deliver
        self._parts: list[tuple[Pod, ...] | None] = [None] * count
        self._closed = False

    def part(self, number: int) -> Deliver:
        """What the source of path `number` delivers to."""
        return partial(self._deliver_part, number)

    def _deliver_part(self, number: int, source: Source, pods: Sequence[Pod]) -> None:
        self._parts[number] = tuple(pods)
        if not self._closed and all(part is not None for part in self._parts):
            self._deliver_set(source, [pod for part in self._parts for pod in part or ()])

    def close(self) -> None:
        """Take all pods away for good, in spite of the files: they are stopped by their grace period."""
        self._closed = True
        self._deliver_set(Source.FILE, [])
