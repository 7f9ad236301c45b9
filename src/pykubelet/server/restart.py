"""Restarting a pod or one of its containers in place, because a person asks for it.

Stops what runs with its hooks and its grace, in the order a pod ends; the sandbox and its address stay, and the pod's
worker starts the containers again at once, without the wait of a crash. Refuses what would not come back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pykubelet.api.types import Pod
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import AnyContainer, ContainerKind, effective_restart_policy, find_container, readable, uid_of
from pykubelet.model.problems import KillCause
from pykubelet.model.runtime_status import ContainerStatus, PodRuntimeStatus
from pykubelet.runtime.stop import StopOrder, Stopping

ASKED = "Stopping container {name}: a restart was asked for"


class CannotRestart(PykubeletError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """What HTTP says about it."""


class Look(Protocol):
    async def inspect(self, uid: str, *, requested: bool) -> PodRuntimeStatus: ...


class ContainerStopper(Protocol):
    async def stop_container(
        self, pod: Pod, one: Stopping, *, grace: int | None = None, order: StopOrder | None = None
    ) -> None: ...


class InPlaceRestart:
    def __init__(
        self,
        *,
        look: Look,
        stopper: ContainerStopper,
        is_ending: Callable[[str], bool],
        forgive: Callable[[Pod, AnyContainer], None] = lambda pod, container: None,
    ) -> None:
        """`forgive` forgets earlier crashes of a container, so that it starts without waiting."""
        self._look = look
        self._stopper = stopper
        self._is_ending = is_ending
        self._forgive = forgive

    async def restart(self, pod: Pod, container: str = "") -> Sequence[str]:
        """Names of the containers that were stopped. Raises CannotRestart."""
        if container and find_container(pod, container) is None:
            raise CannotRestart(404, f"pod {readable(pod)} has no container {container}")
        if self._is_ending(uid_of(pod)):
            raise CannotRestart(409, f"pod {readable(pod)} is ending")
        seen = await self._look.inspect(uid_of(pod), requested=False)
        chosen = [one for run in seen.running() if (one := _stopping(pod, run, container)) is not None]
        if not chosen:
            what = f"container {container} of pod {readable(pod)} does not run"
            raise CannotRestart(409, what if container else f"nothing of pod {readable(pod)} runs")
        for one in chosen:
            if one.container is not None:
                self._forgive(pod, one.container)
        order = StopOrder(pod, chosen)
        await gather_all(*(self._stopper.stop_container(pod, one, order=order) for one in chosen))
        return [one.status.name for one in chosen]


def _stopping(pod: Pod, run: ContainerStatus, wanted: str) -> Stopping | None:
    found = find_container(pod, run.name)
    if found is None or (wanted and run.name != wanted) or found[0] is ContainerKind.EPHEMERAL:
        return None
    kind, container = found
    policy = effective_restart_policy(pod, container)
    if policy != "Always":
        raise CannotRestart(
            409, f"container {run.name} has restartPolicy {policy}: stopped by hand it might not be started again"
        )
    message, cause = ASKED.format(name=run.name), KillCause.RESTART_REQUESTED
    return Stopping(status=run, container=container, kind=kind, message=message, cause=cause)
