"""Gathers everything a pod's status is made from and calls the pure generator.

The meeting point of the runtime's view, probe results, start failures, termination messages and the status
told before. It decides nothing itself except whether the active deadline has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from pykubelet.api.pod_resources import Amounts
from pykubelet.api.types import Pod, PodCondition, PodStatus, QuantityValue, ResourceRequirements, ResourceStatus
from pykubelet.clients.host.port import PodFolders
from pykubelet.kit.clock import Clock
from pykubelet.model.container_keys import TERMINATION_MESSAGE_PATH_KEY, falls_back_to_logs
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import is_terminal_phase, uid_of
from pykubelet.model.pod_resources import pod_limits, pod_requests
from pykubelet.model.reasons import NORMAL
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.pods.table import PodTable
from pykubelet.settings.gates import Gates
from pykubelet.status.generate import generate_pod_status
from pykubelet.status.inputs import StatusInputs, StatusOverride

MESSAGE_LIMIT_BYTES = 4096
LOG_FALLBACK_BYTES = 2048
LOG_FALLBACK_LINES = 80
DEADLINE_EXCEEDED = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


class NodeAddresses(Protocol):
    def host_ips(self) -> tuple[str, ...]: ...


class LogTail(Protocol):
    def tail(self, path: Path, *, lines: int, limit_bytes: int) -> str:
        """The last lines of a CRI log file as the container wrote them."""
        ...


class Resizes(Protocol):
    """What is in force for pods, and how far their resizes are."""

    def actuated(self, uid: str) -> dict[str, ResourceRequirements]: ...

    @property
    def tells_pod_resources(self) -> bool:
        """Whether statuses say what a pod as a whole was promised and holds."""
        ...

    def in_force(self, pod: Pod) -> Pod:
        """The pod with what is in force for it, as far as that is known."""
        ...

    def conditions(self, uid: str, *, terminal: bool) -> tuple[PodCondition, ...]: ...


class PodStatusMaker:
    def __init__(
        self,
        *,
        table: PodTable,
        folders: PodFolders,
        logs: LogTail,
        addresses: NodeAddresses,
        resizes: Resizes,
        events: EventRecorder,
        clock: Clock,
        runtime_name: str,
        recursive_read_only: Callable[[Pod], bool] = lambda pod: False,
        health: Callable[[Pod, str], list[ResourceStatus]] = lambda pod, container: [],
        gates: Gates | None = None,
    ) -> None:
        """`health(pod, container)`: the devices the container holds and how they are."""
        gates = gates or Gates({})
        self._keeps_reported = not gates.enabled("ChangeContainerStatusOnKubeletRestart")
        self._tells_ready_to_start = gates.enabled("PodReadyToStartContainersCondition")
        self._health = health
        self._table = table
        self._folders = folders
        self._logs = logs
        self._addresses = addresses
        self._resizes = resizes
        self._events = events
        self._clock = clock
        self._runtime_name = runtime_name
        self._recursive_read_only = recursive_read_only
        self._messages: dict[str, dict[str, str]] = {}

    def make(self, pod: Pod, seen: PodRuntimeStatus, *, terminal: bool) -> PodStatus:
        uid = uid_of(pod)
        previous = self._table.reported_status(uid)
        addresses = self._addresses.host_ips()
        status = generate_pod_status(
            StatusInputs(
                pod=pod,
                runtime=seen,
                now=self._clock.now(),
                probes=self._table.probe_outcomes(uid),
                previous=previous,
                keeps_reported=self._keeps_reported,
                shows_ready_to_start=self._tells_ready_to_start,
                terminal=terminal,
                failures=self._table.start_failures(uid),
                messages=self._termination_messages(seen),
                actuated=self._resizes.actuated(uid),
                override=self._deadline(pod, previous),
                resize_conditions=self._resizes.conditions(uid, terminal=terminal),
                runtime_name=self._runtime_name,
                host_ips=addresses,
                prefers_ipv6=bool(addresses) and ":" in addresses[0],
                recursive_read_only=self._recursive_read_only(pod),
            )
        )
        if self._resizes.tells_pod_resources:
            status.allocated_resources = _texts(pod_requests(pod))
            status.resources = self._in_force(pod)
        for each in (*status.init_container_statuses, *status.container_statuses):
            each.allocated_resources_status = self._health(pod, each.name or "")
        return status

    def _in_force(self, pod: Pod) -> ResourceRequirements:
        """What the pod as a whole holds, its overhead included."""
        held = self._resizes.in_force(pod)
        claims = list(pod.spec.resources.claims) if pod.spec.resources is not None else []
        return ResourceRequirements(requests=_texts(pod_requests(held)), limits=_texts(pod_limits(held)), claims=claims)

    def _deadline(self, pod: Pod, previous: PodStatus | None) -> StatusOverride | None:
        limit = pod.spec.active_deadline_seconds
        told = previous or pod.status
        exceeded = StatusOverride(phase="Failed", reason=DEADLINE_EXCEEDED, message=DEADLINE_MESSAGE)
        if limit is None or told.start_time is None:
            return None
        if is_terminal_phase(told.phase):
            # Containers may end well when they are told to; the pod has failed all the same.
            return exceeded if told.reason == DEADLINE_EXCEEDED else None
        if self._clock.now() < told.start_time.timestamp() + limit:
            return None
        self._events.pod_event(pod, NORMAL, DEADLINE_EXCEEDED, DEADLINE_MESSAGE)
        return exceeded

    def _termination_messages(self, seen: PodRuntimeStatus) -> dict[str, str]:
        """Last words of the containers that ended, read once each and kept while the runtime has them."""
        known = self._messages.get(seen.uid, {})
        ended = (status for status in seen.containers if status.state is ContainerState.EXITED)
        found = {s.id: known[s.id] if s.id in known else self._read_message(s) for s in ended}
        if found:
            self._messages[seen.uid] = found
        return found

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._messages if uid not in wanted]:
            del self._messages[uid]

    def _read_message(self, status: ContainerStatus) -> str:
        path = status.annotations.get(TERMINATION_MESSAGE_PATH_KEY, "")
        place = path if path.startswith("/") else f"/{path}"
        host = next((m.host_path for m in status.mounts if path and m.container_path == place), "")
        text = self._folders.read_tail(Path(host), MESSAGE_LIMIT_BYTES).decode(errors="replace") if host else ""
        if not text and falls_back_to_logs(status):
            text = self._logs.tail(Path(status.log_path), lines=LOG_FALLBACK_LINES, limit_bytes=LOG_FALLBACK_BYTES)
        return text


def _texts(amounts: Amounts) -> dict[str, QuantityValue]:
    return {name: str(amount) for name, amount in amounts.items()}
