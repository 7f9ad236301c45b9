"""Crash-loop back-off: how long a container that ended waits before it is started again.

Counted on wall time from the container's own exit, because that is the time the runtime keeps; an exit in the
future means that the clock was set back, and is not waited for. The first restart is immediate and each further one
waits twice as long; a run of ten minutes makes a container count as healthy again. The table is in memory only: after
a restart of the agent every container gets one immediate restart. Does not cover failed pulls and creates.
"""

from __future__ import annotations

import msgspec

from pykubelet.api.types import Pod
from pykubelet.kit.backoff import BackoffTable
from pykubelet.kit.clock import CLOCK_STEP
from pykubelet.model.pod import AnyContainer, log_form, name_of, namespace_of, uid_of
from pykubelet.model.problems import CrashLoop
from pykubelet.model.runtime_status import ContainerStatus

INITIAL_DELAY = 10.0
MAXIMUM_DELAY = 300.0
REDUCED_INITIAL_DELAY = 1.0
REDUCED_MAXIMUM_DELAY = 60.0
HEALTHY_AFTER = 600.0


def crash_delays(longest: float | None, *, reduced: bool) -> tuple[float, float]:
    """First and longest delay: `longest` as configured, if it is, never below the first; `reduced` by its gate."""
    first, most = (REDUCED_INITIAL_DELAY, REDUCED_MAXIMUM_DELAY) if reduced else (INITIAL_DELAY, MAXIMUM_DELAY)
    most = longest or most
    return min(first, most), most


class CrashBackoff:
    def __init__(self, *, initial: float = INITIAL_DELAY, maximum: float = MAXIMUM_DELAY) -> None:
        self._table = BackoffTable(initial, maximum, reset_after=HEALTHY_AFTER)

    def check(
        self, pod: Pod, container: AnyContainer, newest_exited: ContainerStatus | None, now: float
    ) -> CrashLoop | None:
        """None if the container may start now, and then the next wait is already doubled."""
        if newest_exited is None:
            return None
        key = backoff_key(pod, container)
        finished = newest_exited.finished_at / 1e9
        delay = self._table.delay(key)
        if not self._table.is_quiet(key, finished) and -CLOCK_STEP <= now - finished < delay:
            return CrashLoop(
                container=container.name,
                pod=log_form(pod),
                delay=delay,
                exit_code=newest_exited.exit_code,
                retry_at=finished + delay,
            )
        self._table.advance(key, now, quiet_until=finished)
        return None

    def forget(self, pod: Pod, container: AnyContainer) -> None:
        """A person asked for the next start: it does not wait."""
        self._table.forget(backoff_key(pod, container))

    def collect(self, now: float) -> None:
        """Forget containers whose last restart is long past, among them those of pods that are gone."""
        self._table.collect(now)

    def __len__(self) -> int:
        return len(self._table)


def backoff_key(pod: Pod, container: AnyContainer) -> str:
    """Names the container and what it runs, so that a changed image or changed resources start afresh."""
    resources = msgspec.json.encode(container.resources, order="sorted").decode()
    parts = (name_of(pod), namespace_of(pod), uid_of(pod), container.name, container.image or "", resources)
    return "/".join(parts)
