"""Removing dead containers, sandboxes and their logs.

A pass each minute over everything, and a quick one over a single pod after one of its containers ended or
when it is gone for good. Each removal is checked once more right before it happens, and pods do not wait
for each other's. Already gone is success, so a pass may be repeated after a crash half-way.
The numbers are upstream's: the newest dead container of each name is kept for its logs and exit code, the newest
sandbox for its addresses; pods that are gone keep nothing. What runs, what is ready, and what a wanted pod has just
created is never chosen. Things that belong to no pod are not ours to remove.
Does not cover: killing of unwanted pods, images, pod folders.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.port import PodFolders
from pykubelet.context import Context
from pykubelet.kit import tracing
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import CLOCK_STEP
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import TaskSet, Wakeup, beside, gather_all
from pykubelet.model.container_keys import deletion_grace_of, restart_count_of, termination_grace_of
from pykubelet.model.errors import CriError, NotFound, PykubeletError
from pykubelet.model.pod import name_of, namespace_of, uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    PodRuntimeStatus,
    SandboxRecord,
    SandboxState,
)
from pykubelet.pods.table import PodTable
from pykubelet.signals import ContainerDied

logger = logging.getLogger(__name__)

PERIOD = 60.0
DISK_WITHIN = 120.0
SOURCES_PAUSE = 0.5
PRUNE_PAUSE = 1.0
"""Seconds between an end and the removal of older dead ones: the restart comes first."""
COLLECT_PAUSE = 0.5
COLLECT_QUIET = 2.0
"""Seconds without a start or an end after which ended pods are removed. A removal takes the runtime as much as a start,
and a pod that takes the place of another starts right after it."""
COLLECT_WITHIN = 20.0
"""Seconds that ended pods wait for such a time at the most, or for a moment between two starts or ends."""
CALM_PAUSE = 0.1
STUCK_AFTER = 1.0
"""Seconds after which the next pod is removed beside one whose removal is still under way."""
AT_ONCE = 8
"""Pods whose things are removed at the same time."""
MINIMUM_GRACE = 2
REMOVING = ".removing"


class _Dead(Struct, frozen=True, kw_only=True):
    """A container to remove, and where its logs are."""

    id: str
    pod_uid: str
    pod_name: str
    pod_namespace: str
    name: str
    restart_count: int
    stop_first: int | None = None
    """Grace in seconds for one that may still run."""


class ContainerRemover:
    """Removes a container with its log files and link."""

    def __init__(self, *, cri: CriClient, folders: PodFolders, pod_logs: Path) -> None:
        self._cri = cri
        self._folders = folders
        self.pod_logs = pod_logs

    async def remove(self, pod: Pod, status: ContainerStatus, *, keep_logs: bool = False) -> None:
        """Remove a dead container; already gone is success."""
        dead = _Dead(
            id=status.id,
            pod_uid=uid_of(pod),
            pod_name=name_of(pod),
            pod_namespace=namespace_of(pod),
            name=status.name,
            restart_count=restart_count_of(status),
        )
        await self.remove_dead(dead, keep_logs=keep_logs)

    async def remove_dead(self, dead: _Dead, *, keep_logs: bool = False) -> None:
        if dead.stop_first is not None:
            await self._cri.stop_container(dead.id, dead.stop_first)
        if not keep_logs:
            await host_calls.run(partial(self._remove_logs, dead), name="removing logs", within=DISK_WITHIN)
        await self._cri.remove_container(dead.id)

    async def remove_log_folder(self, folder: Path) -> None:
        """Raises OSError."""
        work = partial(self._folders.remove_logs, folder)
        await host_calls.run(work, name="removing logs", key=str(folder), within=DISK_WITHIN)

    def _remove_logs(self, dead: _Dead) -> None:
        folder = self.pod_logs / f"{dead.pod_namespace}_{dead.pod_name}_{dead.pod_uid}" / dead.name
        for log in folder.glob(f"{dead.restart_count}.log*"):
            log.unlink(missing_ok=True)
        self._folders.unlink_log(dead.pod_namespace, dead.pod_name, dead.name, dead.id)


class ContainerGc:
    name = "container gc"

    def __init__(
        self,
        ctx: Context,
        cri: CriClient,
        *,
        table: PodTable,
        remover: ContainerRemover,
        container_logs: Path,
        policy: GcPolicy,
        sources_ready: Callable[[], bool],
    ) -> None:
        self._cri = cri
        self._table = table
        self._remover = remover
        self._pod_logs = remover.pod_logs
        self._container_logs = container_logs
        self._policy = policy
        self._sources_ready = sources_ready
        self._events = ctx.events
        self._clock = ctx.clock
        self._tasks: TaskSet | None = None
        self._pruning: set[tuple[str, str]] = set()
        self._ended: set[str] = set()
        self._renewed: set[str] = set()
        """Pods with a sandbox that ended; they may have another one since."""
        self._due = Wakeup()
        self._last_change = -COLLECT_QUIET
        """When a container was last started or a pod finished, by the monotonic clock."""
        self._log_lock = asyncio.Lock()
        """Held while log folders are removed: two removals of one folder would report each other."""

    async def run(self) -> None:
        async with TaskSet("container gc", on_error=self._task_failed) as tasks:
            self._tasks = tasks
            tasks.spawn(self._run_collections(), name="collect ended pods")
            try:
                await self._wait_for_sources()
                while True:
                    await self._pass()
                    await self._clock.sleep(PERIOD)
            finally:
                self._tasks = None

    async def _wait_for_sources(self) -> None:
        """Until then no pod counts as deleted, and leftovers would have to wait for the second pass."""
        for _ in range(int(PERIOD / SOURCES_PAUSE)):
            if self._sources_ready():
                return
            await self._clock.sleep(SOURCES_PAUSE)

    def container_died(self, died: ContainerDied) -> None:
        """Remove shortly what the pod has no use for since this container or sandbox ended."""
        if died.sandbox:
            self.prune_sandboxes_soon(died.uid)
        else:
            self.prune_soon(died.uid, died.name)

    def prune_soon(self, uid: str, container: str) -> None:
        """Remove the older dead containers of that name shortly. Never waits; a repeat changes nothing."""
        key = (uid, container)
        if self._tasks is not None and key not in self._pruning:
            self._pruning.add(key)
            self._tasks.spawn(self._prune_later(key), name=f"prune {uid}")

    def collect_pod_soon(self, uid: str) -> None:
        """Remove everything of a pod that is gone for good, without waiting for the next pass."""
        self._ended.add(uid)
        self.runtime_used()
        self._due.set()

    def prune_sandboxes_soon(self, uid: str) -> None:
        """Remove the sandboxes of a pod that has a newer one, or is gone, without waiting for the next pass."""
        self._renewed.add(uid)
        self.runtime_used()
        self._due.set()

    def runtime_used(self) -> None:
        """A pod was started or ended: others may follow, and removals wait for them."""
        self._last_change = self._clock.monotonic()

    async def collect(self, *, evict_ended: bool = False) -> None:
        """One pass over the node; raises PykubeletError when something could not be removed.

        `evict_ended`: pods that have ended lose everything too, although they are still wanted as objects;
        for a disk that is full.
        """
        with tracing.span("Containers/GarbageCollect"):
            is_gone = self._gone_question(evict_ended=evict_ended)
            sandboxes, containers = await self._cri.list_pod_sandboxes(), await self._cri.list_containers()
            failures = await self._remove(sandboxes, containers, is_gone)
            if self._sources_ready():
                failures += await self._remove_log_folders()
            failures += await self._remove_dead_links(containers)
            if failures:
                raise PykubeletError("; ".join(dict.fromkeys(failures)))

    async def prune(self, uid: str, container: str) -> None:
        """Remove the older dead containers of that name now; all names when it is empty."""
        if uid in self._ended:
            return  # all of it is removed soon
        observed = self._table.runtime_status(uid)
        gone = self._sources_ready() and self._table.should_remove_content(uid)
        keep = self._policy.max_per_container
        # Even where the passes keep none: the newest one shows how the container ended.
        for status in plan_prune(observed, container, keep=keep if keep < 0 else max(1, keep), is_gone=gone):
            await self._remover.remove_dead(
                _Dead(
                    id=status.id,
                    pod_uid=uid,
                    pod_name=observed.name,
                    pod_namespace=observed.namespace,
                    name=status.name,
                    restart_count=restart_count_of(status),
                )
            )

    def _gone_question(self, *, evict_ended: bool) -> Callable[[str], bool]:
        def is_gone(uid: str) -> bool:
            if not self._sources_ready():
                return False
            return self._table.should_remove_content(uid) or (evict_ended and self._table.should_remove_runtime(uid))

        return is_gone

    async def _pass(self) -> None:
        try:
            await self.collect()
        except (PykubeletError, OSError) as error:
            logger.warning("container garbage collection failed", extra={"problem": str(error)})
            self._events.node_event(WARNING, "ContainerGCFailed", str(error))

    def _task_failed(self, error: BaseException) -> None:
        self._removal_failed(str(error))

    def _removal_failed(self, problem: str) -> None:
        # A single pod's clean-up; it is tried again, and the next pass reports.
        logger.warning("clean-up of a pod failed, it is repeated", extra={"problem": problem})

    async def _prune_later(self, key: tuple[str, str]) -> None:
        await self._clock.sleep(PRUNE_PAUSE)
        self._pruning.discard(key)  # before pruning: an end reported from now on causes another prune
        await self.prune(*key)

    async def _run_collections(self) -> None:
        """Remove pods that ended, once the runtime is not busy with others: removal can wait."""
        again = Backoff(initial=COLLECT_QUIET, maximum=PERIOD)
        failed: set[str] = set()
        retry_at = math.inf
        while True:
            await self._due.wait(at_most=max(0.0, retry_at - self._clock.monotonic()) if failed else None)
            deadline = self._clock.monotonic() + COLLECT_WITHIN
            while self._is_busy() and self._clock.monotonic() < deadline:
                await self._clock.sleep(COLLECT_PAUSE)
            retried = failed if self._clock.monotonic() >= retry_at else set()
            is_gone = self._gone_question(evict_ended=False)
            chosen = {uid for uid in self._ended if is_gone(uid)} | self._renewed | retried
            self._ended, self._renewed = set(), set()
            try:
                anew = await self._collect_pods(chosen, is_gone, deadline)
            except Exception as error:  # of one removal, never the end of all later ones
                logger.exception("ended pods cannot be removed, will retry", extra={"problem": str(error)})
                anew = chosen
            failed = (failed - retried) | anew
            if anew:
                retry_at = self._clock.monotonic() + again.next()
            elif not failed:
                again.reset()

    def _is_busy(self) -> bool:
        return self._table.any_at_work() or self._clock.monotonic() - self._last_change < COLLECT_QUIET

    async def _collect_pods(self, uids: set[str], is_gone: IsGone, calm_until: float) -> set[str]:
        """Pod by pod, between starts and ends until `calm_until`; one that is stuck does not hold up the others.

        Gives those of which something could not be removed.
        """
        if not uids:
            return set()
        try:
            sandboxes = [s for s in await self._cri.list_pod_sandboxes() if s.pod_uid in uids]
            containers = [c for c in await self._cri.list_containers() if c.pod_uid in uids]
        except CriError as error:
            self._removal_failed(str(error))
            return uids
        removals: dict[str, asyncio.Task[list[str]]] = {}
        async with beside() as begin:
            for uid in uids:
                while self._table.any_at_work() and self._clock.monotonic() < calm_until:
                    await self._clock.sleep(CALM_PAUSE)
                own = [s for s in sandboxes if s.pod_uid == uid], [c for c in containers if c.pod_uid == uid]
                removals[uid] = begin(self._remove(*own, is_gone))
                await asyncio.wait([removals[uid]], timeout=STUCK_AFTER)
            failures = {uid: await removal for uid, removal in removals.items()}
        texts = [text for each in failures.values() for text in each] + await self._remove_log_folders(uids)
        if texts:
            self._removal_failed("; ".join(dict.fromkeys(texts)))
        return {uid for uid, each in failures.items() if each}

    # Containers and sandboxes

    async def _remove(
        self,
        sandboxes: Sequence[SandboxRecord],
        containers: Sequence[ContainerRecord],
        is_gone: Callable[[str], bool],
    ) -> list[str]:
        """Remove what the plans choose, pod by pod; the texts of what failed."""
        dead = plan_containers(containers, now_ns=self._clock.now_ns(), policy=self._policy, is_gone=is_gone)
        chosen = {c.id for c in dead}
        left = [c for c in containers if c.id not in chosen]
        boxes = plan_sandboxes(sandboxes, left, is_gone=is_gone)
        limit = asyncio.Semaphore(AT_ONCE)
        work = []
        for uid in dict.fromkeys([c.pod_uid for c in dead] + [s.pod_uid for s in boxes]):
            own = [c for c in dead if c.pod_uid == uid], [s for s in boxes if s.pod_uid == uid]
            was_gone = is_gone(uid)
            work.append(self._remove_pod(*own, partial(_has_returned, uid, was_gone, is_gone), limit))
        return [text for texts in await gather_all(*work) for text in texts]

    async def _remove_pod(
        self,
        containers: Sequence[ContainerRecord],
        sandboxes: Sequence[SandboxRecord],
        has_returned: Callable[[], bool],
        limit: asyncio.Semaphore,
    ) -> list[str]:
        """The texts of what failed. What cannot be removed keeps nothing else but its own sandbox.

        `has_returned`: the pod is wanted again since its removal was planned; the next pass plans anew.
        """
        failures: list[str] = []
        stuck: set[str] = set()
        async with limit:
            for container in containers:
                if has_returned():
                    return failures
                try:
                    await self._remover.remove_dead(_dead(container))
                except (PykubeletError, OSError) as error:
                    failures.append(str(error))
                    stuck.add(container.sandbox_id)
            for sandbox in (s for s in sandboxes if s.id not in stuck):
                if has_returned():
                    return failures
                try:
                    await self._cri.stop_pod_sandbox(sandbox.id)
                    await self._cri.remove_pod_sandbox(sandbox.id)
                except PykubeletError as error:
                    failures.append(str(error))
        return failures

    # Logs

    async def _remove_log_folders(self, uids: set[str] | None = None) -> list[str]:
        """Log folders of pods that are gone, or of those; the texts of what failed."""
        failures: list[str] = []
        async with self._log_lock:
            try:
                work = partial(_log_folders, self._pod_logs)
                folders = await host_calls.run(work, name="listing log folders", within=DISK_WITHIN)
            except OSError as error:
                return [f"log folders cannot be listed: {error}"]
            for folder in folders:
                if not folder.name.endswith(REMOVING):
                    owner = folder.name.rpartition("_")[2]
                    if (uids is not None and owner not in uids) or not self._table.should_remove_content(owner):
                        continue
                try:
                    await self._remove_folder(folder)
                except OSError as error:
                    failures.append(f"log folder {folder}: {error}")
        return failures

    async def _remove_folder(self, folder: Path) -> None:
        # Renamed without an await since the check: a static pod that returns has the same
        # uid, and must not lose new logs to a removal that began for the old ones.
        if not folder.name.endswith(REMOVING):
            aside = folder.with_name(f".{folder.name}.{self._clock.now_ns()}{REMOVING}")
            folder.rename(aside)
            folder = aside
        await self._remover.remove_log_folder(folder)

    async def _remove_dead_links(self, containers: Sequence[ContainerRecord]) -> list[str]:
        """Links to log files that are no more; one whose container lives is only between two rotated files."""
        states = {c.id: c.state for c in containers}
        failures: list[str] = []
        try:
            work = partial(_dead_links, self._container_logs)
            links = await host_calls.run(work, name="listing log links", within=DISK_WITHIN)
        except OSError as error:
            return [f"log links cannot be listed: {error}"]
        for link in links:
            id = link.stem.rpartition("-")[2]
            try:
                if await self._has_ended(id, states):
                    link.unlink(missing_ok=True)
            except (CriError, OSError) as error:
                failures.append(f"log link {link}: {error}")
        return failures

    async def _has_ended(self, id: str, states: dict[str, ContainerState]) -> bool:
        state = states.get(id)
        if state is None:
            try:
                state = (await self._cri.container_status(id)).state
            except NotFound:
                return True
        return state is ContainerState.EXITED


def _has_returned(uid: str, was_gone: bool, is_gone: IsGone) -> bool:
    return was_gone and not is_gone(uid)


def _dead(record: ContainerRecord) -> _Dead:
    stop_first = None
    if record.state is ContainerState.UNKNOWN:
        grace = deletion_grace_of(record) or termination_grace_of(record) or MINIMUM_GRACE
        stop_first = max(MINIMUM_GRACE, grace)
    return _Dead(
        id=record.id,
        pod_uid=record.pod_uid,
        pod_name=record.pod_name,
        pod_namespace=record.pod_namespace,
        name=record.name,
        restart_count=restart_count_of(record),
        stop_first=stop_first,
    )


def _log_folders(root: Path) -> list[Path]:
    """Folders named after a pod, and leftovers of removals that were interrupted."""
    try:
        entries = list(os.scandir(root))
    except FileNotFoundError:
        return []
    return [Path(e.path) for e in entries if "_" in e.name and e.is_dir(follow_symlinks=False)]


def _dead_links(root: Path) -> list[Path]:
    return [link for link in root.glob("*.log") if link.is_symlink() and not link.exists()]


# --- what is of no more use; pure -----------------------------------------------------------------

IsGone = Callable[[str], bool]
"""Whether everything of the pod with this uid may go."""


class GcPolicy(Struct, frozen=True, kw_only=True):
    min_age: float = 0.0
    """Seconds a container is kept at the least, counted from its creation."""
    max_per_container: int = 1
    """Dead containers kept for each container of a pod; below 0 = all."""
    max_total: int = -1
    """Dead containers kept on the whole node; below 0 = no limit."""


def plan_containers(
    containers: Iterable[ContainerRecord], *, now_ns: int, policy: GcPolicy, is_gone: IsGone
) -> list[ContainerRecord]:
    """Containers to remove, the oldest of each name first."""
    units: dict[tuple[str, str], list[ContainerRecord]] = {}
    newest: dict[tuple[str, str], tuple[int, int]] = {}
    for container in containers:
        key = (container.pod_uid, container.name)
        newest[key] = max(newest.get(key, (0, 0)), _age_key(container))
        if container.pod_uid and container.state is not ContainerState.RUNNING:
            units.setdefault(key, []).append(container)
    chosen: list[ContainerRecord] = []
    kept: list[list[ContainerRecord]] = []
    for key, unit in units.items():
        uid = key[0]
        unit.sort(key=_age_key, reverse=True)
        if is_gone(uid):
            chosen += _old_enough(reversed(unit), now_ns, policy)
            continue
        if unit[0].state is ContainerState.CREATED and _age_key(unit[0]) == newest[key]:
            unit = unit[1:]  # about to be started; an older one was given up by a killed agent
        unit = list(_old_enough(unit, now_ns, policy))
        if policy.max_per_container >= 0:
            chosen += reversed(unit[policy.max_per_container :])
            unit = unit[: policy.max_per_container]
        kept.append(unit)
    if policy.max_total >= 0:
        chosen += _over_total(kept, policy.max_total)
    return chosen


def _age_key(item: ContainerRecord | ContainerStatus | SandboxRecord) -> tuple[int, int]:
    """Orders by age: the attempt first, because the clock may have been set back between two of them."""
    return item.attempt, item.created_at


def _old_enough(unit: Iterable[ContainerRecord], now_ns: int, policy: GcPolicy) -> Iterable[ContainerRecord]:
    if not policy.min_age:
        return unit  # however young: the clock may have been set back to just before it was created
    youngest = now_ns - int(policy.min_age * 1_000_000_000)
    future = now_ns + int(CLOCK_STEP * 1_000_000_000)
    # One from the future was created before the clock was set back.
    return (c for c in unit if not youngest < c.created_at <= future)


def _over_total(units: Sequence[list[ContainerRecord]], limit: int) -> list[ContainerRecord]:
    """An even share for every container, at least one each; if that is still too much, the oldest go."""
    units = [unit for unit in units if unit]
    if sum(map(len, units)) <= limit:
        return []
    share = max(1, limit // len(units))
    chosen = [c for unit in units for c in reversed(unit[share:])]
    left = sorted((c for unit in units for c in unit[:share]), key=lambda c: c.created_at)
    return chosen + left[: max(0, len(left) - limit)]


def plan_sandboxes(
    sandboxes: Iterable[SandboxRecord], containers: Iterable[ContainerRecord], *, is_gone: IsGone
) -> list[SandboxRecord]:
    """Sandboxes to remove, oldest first. `containers` are those that are still there."""
    in_use = {container.sandbox_id for container in containers}
    pods: dict[str, list[SandboxRecord]] = {}
    for sandbox in sandboxes:
        if sandbox.pod_uid:
            pods.setdefault(sandbox.pod_uid, []).append(sandbox)
    chosen: list[SandboxRecord] = []
    for uid, owned in pods.items():
        owned.sort(key=_age_key)
        candidates = owned if is_gone(uid) else owned[:-1]
        chosen += [s for s in candidates if s.state is not SandboxState.READY and s.id not in in_use]
    return chosen


def plan_prune(status: PodRuntimeStatus, name: str, *, keep: int, is_gone: bool) -> list[ContainerStatus]:
    """Ended containers of one pod to remove after one named `name` ended; of all names when the pod is gone."""
    ended = [c for c in status.containers if c.state is ContainerState.EXITED]
    if is_gone:
        return ended
    mine = [c for c in ended if not name or c.name == name]
    mine.sort(key=_age_key, reverse=True)
    if name:
        return mine[keep:] if keep >= 0 else []
    return [c for other in {c.name for c in mine} for c in plan_prune(status, other, keep=keep, is_gone=False)]
