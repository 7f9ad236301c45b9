"""Gathers everything a pod's status is made from, calls the pure generator and reports the result.

The meeting point of the runtime status, probe results, start failures, termination messages and the status reported
before. It decides nothing itself except whether the active deadline has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pykubelet.api.pod_resources import Amounts
from pykubelet.api.types import Pod, PodStatus, QuantityValue, ResourceRequirements
from pykubelet.cm.build import ContainerManager
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.model.container_keys import TERMINATION_MESSAGE_PATH_KEY, falls_back_to_logs
from pykubelet.model.pod import is_terminal_phase, uid_of
from pykubelet.model.pod_resources import pod_limits, pod_requests
from pykubelet.model.reasons import NORMAL
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.node.own_node import OwnNode
from pykubelet.pods.record import StatusChange
from pykubelet.pods.table import PodTable
from pykubelet.runtime.logs import LogFiles
from pykubelet.status.generate import generate_pod_status
from pykubelet.status.inputs import StatusInputs, StatusOverride
from pykubelet.status.manager import StatusManager

MESSAGE_LIMIT_BYTES = 4096
LOG_FALLBACK_BYTES = 2048
LOG_FALLBACK_LINES = 80
DEADLINE_EXCEEDED = "DeadlineExceeded"
DEADLINE_MESSAGE = "Pod was active on the node longer than the specified deadline"


class PodStatusMaker:
    def __init__(
        self,
        ctx: Context,
        edges: Edges,
        *,
        table: PodTable,
        statuses: StatusManager,
        own_node: OwnNode,
        cm: ContainerManager,
        recursive_read_only: Callable[[Pod], bool],
    ) -> None:
        gates = ctx.settings.gates
        self._keeps_reported = not gates.enabled("ChangeContainerStatusOnKubeletRestart")
        self._shows_ready_to_start = gates.enabled("PodReadyToStartContainersCondition")
        self._shows_image_refs = gates.enabled("ImageVolumeWithDigest")
        self._shows_device_health = gates.enabled("ResourceHealthStatus")
        self._cm = cm
        self._table = table
        self._statuses = statuses
        self._folders = edges.folders
        self._logs = LogFiles()
        self._own_node = own_node
        self._allocation = cm.allocation
        self._events = ctx.events
        self._clock = ctx.clock
        self._runtime_name = edges.runtime_name
        self._recursive_read_only = recursive_read_only

    def report(
        self,
        pod: Pod,
        observed: PodRuntimeStatus,
        *,
        changes: Sequence[StatusChange] = (),
        terminal: bool = False,
    ) -> PodStatus:
        """Make the pod's status and report it; `changes` are made to it before."""
        status = self.make(pod, observed, terminal=terminal)
        for change in changes:
            change(status)
        self._statuses.set_status(pod, status)
        return status

    def finish(self, pod: Pod, status: PodStatus) -> None:
        """The pod holds nothing any more: its last status may be sent and the object be deleted."""
        self._statuses.terminate(pod, status)

    def make(self, pod: Pod, observed: PodRuntimeStatus, *, terminal: bool) -> PodStatus:
        uid = uid_of(pod)
        previous = self._table.reported_status(uid)
        addresses = self._own_node.host_ips()
        status = generate_pod_status(
            StatusInputs(
                pod=pod,
                runtime=observed,
                now=self._clock.now(),
                probes=self._table.probe_outcomes(uid),
                previous=previous,
                keeps_reported=self._keeps_reported,
                shows_ready_to_start=self._shows_ready_to_start,
                shows_image_refs=self._shows_image_refs,
                terminal=terminal,
                failures=self._table.start_failures(uid),
                messages=self._termination_messages(observed),
                actuated=self._allocation.actuated(uid),
                override=self._deadline(pod, previous),
                resize_conditions=self._allocation.conditions(uid, terminal=terminal),
                runtime_name=self._runtime_name,
                host_ips=addresses,
                prefers_ipv6=bool(addresses) and ":" in addresses[0],
                recursive_read_only=self._recursive_read_only(pod),
            )
        )
        if self._allocation.tells_pod_resources:
            status.allocated_resources = _texts(pod_requests(pod))
            status.resources = self._in_force(pod)
        if self._shows_device_health:
            for each in (*status.init_container_statuses, *status.container_statuses):
                each.allocated_resources_status = self._cm.device_health(pod, each.name or "")
        return status

    def _in_force(self, pod: Pod) -> ResourceRequirements:
        """What the pod as a whole holds, its overhead included."""
        held = self._allocation.in_force(pod)
        claims = list(pod.spec.resources.claims) if pod.spec.resources is not None else []
        return ResourceRequirements(requests=_texts(pod_requests(held)), limits=_texts(pod_limits(held)), claims=claims)

    def _deadline(self, pod: Pod, previous: PodStatus | None) -> StatusOverride | None:
        limit = pod.spec.active_deadline_seconds
        reported = previous or pod.status
        exceeded = StatusOverride(phase="Failed", reason=DEADLINE_EXCEEDED, message=DEADLINE_MESSAGE)
        if limit is None or reported.start_time is None:
            return None
        if is_terminal_phase(reported.phase):
            # Containers may exit with success when they are stopped; the pod has failed all the same.
            return exceeded if reported.reason == DEADLINE_EXCEEDED else None
        if self._clock.now() < reported.start_time.timestamp() + limit:
            return None
        self._events.pod_event(pod, NORMAL, DEADLINE_EXCEEDED, DEADLINE_MESSAGE)
        return exceeded

    def _termination_messages(self, observed: PodRuntimeStatus) -> Mapping[str, str]:
        """Termination messages of the containers that ended, read once each and kept while the runtime has them."""
        known = self._table.termination_messages(observed.uid)
        ended = (status for status in observed.containers if status.state is ContainerState.EXITED)
        found = {s.id: known[s.id] if s.id in known else self._read_message(s) for s in ended}
        if found:
            self._table.keep_termination_messages(observed.uid, found)
        return found

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
