"""Everything a pod's status is made from, bundled so that callers read well.

The status is a pure function of this value: what is not in here cannot influence it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct, field

from pykubelet.api.types import Pod, PodCondition, PodStatus, ResourceRequirements
from pykubelet.kit.clock import utc
from pykubelet.model.pod import ProbeKey, ProbeOutcome
from pykubelet.model.problems import ContainerProblem
from pykubelet.model.runtime_status import PodRuntimeStatus


class StatusOverride(Struct, frozen=True, kw_only=True):
    """How the pod ends by decision (active deadline, eviction) and not by its containers."""

    phase: str
    reason: str
    message: str


class StatusInputs(Struct, frozen=True, kw_only=True):
    pod: Pod
    """The pod as its source has it now; its own status is what the API server has."""
    runtime: PodRuntimeStatus
    now: float
    """Wall time in unix seconds."""
    probes: Mapping[ProbeKey, ProbeOutcome]
    previous: PodStatus | None = None
    """The status this agent generated last; None at first, then the API server's serves."""
    keeps_reported: bool = True
    """What the API server shows of `started` and `ready` stands after a restart of the agent."""
    shows_ready_to_start: bool = True
    """Whether the pod shows PodReadyToStartContainers."""
    shows_image_refs: bool = False
    """Whether statuses name the images that image volumes were mounted from."""
    terminal: bool = False
    """The pod is being ended: its containers will not start again."""
    failures: Mapping[str, ContainerProblem] = field(default_factory=dict)
    """Why containers of this pod could not start, by container name."""
    messages: Mapping[str, str] = field(default_factory=dict)
    """Termination messages by container id."""
    actuated: Mapping[str, ResourceRequirements] = field(default_factory=dict)
    """Resources last put into force, by container name; the runtime does not know memory requests."""
    override: StatusOverride | None = None
    resize_conditions: tuple[PodCondition, ...] = ()
    """PodResizePending and PodResizeInProgress as they stand, complete with times and generation."""
    runtime_name: str = "containerd"
    host_ips: tuple[str, ...] = ()
    """The node's addresses, preferred one first; empty when unknown or without an API server."""
    prefers_ipv6: bool = False
    """The node's first address is an IPv6 one."""
    recursive_read_only: bool = False
    """The pod's runtime handler can make mounts recursively read-only."""

    @property
    def old(self) -> PodStatus:
        """What was reported about the pod before."""
        return self.pod.status if self.previous is None else self.previous

    @property
    def reported_containers(self) -> PodStatus:
        """The statuses that show whether a running container had started or was ready."""
        return self.old if self.keeps_reported or self.previous is not None else PodStatus()

    @property
    def moment(self) -> datetime:
        return utc(self.now)
