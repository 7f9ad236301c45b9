"""Reports out-of-memory kills: upstream's SystemOOM event on the node, and an event on the pod that was hit.

Without it a killed child of a container that keeps running would go unnoticed, because no status changes. Kills are
read from the kernel log as they happen; where that cannot be read, from the cgroups' counters, which give the container
but not the process. Also sets the agent's own oom_score_adj. Does not cover the reason OOMKilled of a container that
ended: the runtime reports it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from pykubelet.clients.host.port import AlarmRefused, MemoryAlarm
from pykubelet.context import Context
from pykubelet.edges import GuardEdges
from pykubelet.kit.host_calls import HostCallStuck, host_calls
from pykubelet.kit.tasks import TaskSet, Wakeup
from pykubelet.model.pod import all_containers
from pykubelet.model.reasons import WARNING
from pykubelet.model.runtime_status import ContainerState
from pykubelet.pods.table import PodTable
from pykubelet.recorder import Step
from pykubelet.stats.snapshot import CgroupNames

logger = logging.getLogger(__name__)

REASON: Final = "OOMKilling"
SYSTEM_REASON: Final = "SystemOOM"
REPORT_AFTER: Final = 0.3
"""Seconds until it is known whether the container outlived the process."""
SEEN_WITHIN: Final = 15.0
"""Seconds until a container that was just started must be in the table: one may be killed sooner than it is seen."""
COUNT_PERIOD: Final = 10.0
COUNT_WITHIN: Final = 60.0
QUIET: Final = 5.0
"""Seconds for which further kills in one container are only counted."""
MODERN: Final = re.compile(
    r"^oom-kill:constraint=(?P<constraint>[^,]*),nodemask=.*,mems_allowed=.*?,"
    r"(?:global_oom|oom_memcg=(?P<limit>.*?)),task_memcg=(?P<group>.*?),task=(?P<comm>.*),pid=(?P<pid>\d+),uid=\d+$"
)
OLD_GROUP: Final = re.compile(r"^Task in (?P<group>.*) killed as a result of limit of (?P<limit>.*)$")
KILLED: Final = re.compile(r"(?:^|: )Killed process (?P<pid>\d+),? \((?P<comm>.*?)\)")


class Kill(Struct, frozen=True, kw_only=True):
    process: str
    """Its name, as the kernel keeps it: 15 characters at most."""
    pid: int
    group: str
    """The cgroup the process was in."""
    limit: str
    """The cgroup whose limit was hit; '/' when the machine itself was out of memory."""


class KillReader:
    """Reads kills from lines of the kernel log.

    Since 5.0 one line has everything (`oom-kill:constraint=...`). Older kernels use two: the cgroup, then the process.
    """

    def __init__(self) -> None:
        self._group: re.Match[str] | None = None
        self._last_pid: int | None = None
        """The pid of a modern line, which the next line repeats."""

    def read(self, line: str) -> Kill | None:
        if (found := MODERN.match(line)) is not None:
            self._group, self._last_pid = None, int(found["pid"])
            return Kill(process=found["comm"], pid=int(found["pid"]), group=found["group"], limit=found["limit"] or "/")
        if (found := OLD_GROUP.match(line)) is not None:
            self._group = found
            return None
        if (found := KILLED.search(line)) is None:
            return None
        group, self._group = self._group, None
        if self._last_pid == int(found["pid"]):
            self._last_pid = None
            return None
        where, limit = (group["group"], group["limit"]) if group is not None else ("/", "/")
        return Kill(process=found["comm"], pid=int(found["pid"]), group=where, limit=limit)


class Victim(Struct, frozen=True, kw_only=True):
    """The container a killed process was in."""

    uid: str
    container: str
    id: str


class OomWatcher:
    name = "oom watcher"

    def __init__(self, ctx: Context, guard: GuardEdges, *, cgroups: CgroupNames, table: PodTable) -> None:
        self._log = guard.kernel_log
        self._alarms = guard.alarms
        self._cgroups = guard.cgroups
        self._set_score = guard.set_oom_score
        self._score = ctx.settings.config.node.oom_score_adj
        self._names = cgroups
        self._table = table
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._clock = ctx.clock
        self._reader = KillReader()
        self._counts: dict[str, int] = {}
        self._new_kills: list[tuple[Victim, int, str]] = []
        self._reported: dict[str, tuple[float, int]] = {}
        """Container id to the time of its last event, and how many kills had none since."""

    async def run(self) -> None:
        self._protect()
        async with TaskSet("oom watcher", on_error=_task_failed) as tasks:
            try:
                end = self._log.follow(lambda line: self._line(line, tasks))
            except AlarmRefused as error:
                logger.warning(
                    "the kernel's log cannot be read; out-of-memory kills are taken from the groups' counters, "
                    "without the names of processes",
                    extra={"error": str(error)},
                )
                await self._count_forever()
            try:
                await asyncio.Event().wait()
            finally:
                end()

    def _protect(self) -> None:
        if self._set_score is None:
            return
        try:
            self._set_score(self._score)
        except AlarmRefused as error:
            logger.warning(
                "the agent cannot be kept from being killed when memory is out (oomScoreAdj)",
                extra={"wanted": self._score, "error": str(error)},
            )

    # --- from the kernel's log ------------------------------------------------------------------

    def _line(self, line: str, tasks: TaskSet) -> None:
        kill = self._reader.read(line)
        if kill is None:
            return
        logger.warning(
            "the kernel killed a process for memory",
            extra={"victim": kill.process, "victim_pid": kill.pid, "group": kill.group, "limit_of": kill.limit},
        )
        if kill.limit == "/":
            text = f"System OOM encountered, victim process: {kill.process}, pid: {kill.pid}"
            self._events.node_event(WARNING, SYSTEM_REASON, text)
        tasks.spawn(self._report_later(kill), name=f"oom {kill.pid}")

    async def _report_later(self, kill: Kill) -> None:
        """Nothing is said of a process that was in no container."""
        deadline = self._clock.monotonic() + SEEN_WITHIN
        await self._clock.sleep(REPORT_AFTER)
        while (victim := find_victim(kill.group, self._table)) is None:
            if self._clock.monotonic() > deadline:
                return
            await self._clock.sleep(REPORT_AFTER)
        self._report(victim, f"process {kill.process} (pid {kill.pid})", whose_limit(kill, victim), kill.group)

    def _report(self, victim: Victim, process: str, limit: str, group: str) -> None:
        pod = self._table.pod(victim.uid)
        if pod is None:
            return
        last, unreported = self._reported.get(victim.id, (float("-inf"), 0))
        if self._clock.monotonic() - last < QUIET:
            self._reported[victim.id] = (last, unreported + 1)
            return
        self._reported = {
            key: value for key, value in self._reported.items() if self._clock.monotonic() - value[0] < QUIET * 60
        }
        self._reported[victim.id] = (self._clock.monotonic(), 0)
        lives = self._lives_on(victim, group)
        then = "which runs on without it" if lives else "which ends with it"
        text = f"Out of memory: the kernel killed {process} of container {victim.container}, {then} ({limit})"
        if unreported:
            text += f"; {unreported} more were killed since the last event"
        kind = next((kind for kind, each in all_containers(pod) if each.name == victim.container), None)
        path = kind.field_path(victim.container) if kind is not None else ""
        self._events.pod_event(pod, WARNING, REASON, text, field_path=path)
        reason = "ChildKilled" if lives else "Killed"
        self._recorder.fail(
            victim.uid, Step.OOM, victim.container, reason=reason, message=f"{process} was killed: {limit}"
        )

    def _lives_on(self, victim: Victim, group: str) -> bool:
        status = self._table.runtime_status(victim.uid)
        runs = any(each.id == victim.id and each.state is ContainerState.RUNNING for each in status.containers)
        return runs and (bool(self._cgroups.processes(group)) if self._cgroups.exists(group) else not group)

    # --- from counters --------------------------------------------------------------------------

    async def _count_forever(self) -> None:
        changed = Wakeup()
        alarm = self._watch_groups(changed.set)
        try:
            while True:
                try:
                    await host_calls.run(self._count, name="counting kills", key="all pods", within=COUNT_WITHIN)
                except HostCallStuck as error:
                    logger.warning("out-of-memory kills cannot be counted", extra={"problem": str(error)})
                    self._new_kills = []
                for victim, more, group in self._new_kills:
                    self._report(victim, "a process" if more == 1 else f"{more} processes", "its memory limit", group)
                await changed.wait(at_most=COUNT_PERIOD)
                if alarm is not None and alarm.is_over:
                    alarm.close()
                    alarm = self._watch_groups(changed.set)
        finally:
            if alarm is not None:
                alarm.close()

    def _watch_groups(self, wake: Callable[[], None]) -> MemoryAlarm | None:
        """Watch for kills below the cgroup of all pods; only v2 can, with v1 they are counted each period."""
        if self._alarms is None:
            return None
        try:
            return self._alarms.watch(self._names.pods(), 1 << 62, wake)
        except AlarmRefused:
            return None

    def _count(self) -> None:
        """Count kills, in a thread; those before a container was first counted are not reported."""
        self._new_kills = []
        counts: dict[str, int] = {}
        for victim, group in self._running_groups():
            now = self._cgroups.oom_kills(group)
            if now is None:
                continue
            counts[victim.id] = now
            if victim.id in self._counts and now > self._counts[victim.id]:
                self._new_kills.append((victim, now - self._counts[victim.id], group))
        self._counts = counts

    def _running_groups(self) -> Sequence[tuple[Victim, str]]:
        found = []
        for pod in self._table.pods():
            parent = self._names.pod(pod)
            uid = pod.metadata.uid or ""
            if parent is None:
                continue
            for each in self._table.runtime_status(uid).running():
                group = self._cgroups.locate(parent, each.id)
                if group is not None:
                    found.append((Victim(uid=uid, container=each.name, id=each.id), group))
        return found


def find_victim(group: str, table: PodTable) -> Victim | None:
    """Return the container whose id is in the cgroup's path; None when it is no container's."""
    for status in table.runtime_statuses():
        for each in status.containers:
            if each.id and each.id in group:
                return Victim(uid=status.uid, container=each.name, id=each.id)
    return None


def whose_limit(kill: Kill, victim: Victim) -> str:
    """Return whose limit was hit: the container's, the pod's, that of all pods, or the machine's."""
    if kill.limit == "/":
        return "the machine was out of memory"
    if victim.id in kill.limit:
        return "it hit its memory limit"
    if victim.uid in kill.limit or victim.uid.replace("-", "_") in kill.limit:
        return "the pod hit its memory limit"
    return "all pods together hit their memory limit"


def _task_failed(error: BaseException) -> None:
    logger.error("an out-of-memory kill could not be reported", extra={"error": str(error)})
