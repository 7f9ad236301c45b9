"""The values of a pod's plan: what goes in, what comes out, and the draft the steps fill.

Only data and the smallest questions about it. The decisions are in `plan.py` (sandbox, regular
containers), `plan_init.py` (init containers and sidecars) and `plan_resize.py`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from msgspec import Struct, field

from pykubelet.api.types import Container, EphemeralContainer, Pod, ResourceRequirements
from pykubelet.model.results import ProbeKind, ProbeOutcome, ProbeResults
from pykubelet.model.runtime_status import ContainerStatus, PodRuntimeStatus


class KillReason(enum.Enum):
    """Why a single container is killed; liveness and startup have their own grace periods."""

    LIVENESS = "LivenessProbe"
    STARTUP = "StartupProbe"
    CHANGED = "Changed"
    UNKNOWN = "Unknown"
    RESIZE = "Resize"


class ContainerKill(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    message: str
    """Text of the Killing event."""
    reason: KillReason


class ContainerReset(Struct, frozen=True, kw_only=True):
    """A container to remove, logs kept, because all containers of the pod start over."""

    id: str
    name: str
    kill: bool
    """Not ended yet: kill it without grace before removing it."""


class ContainerResize(Struct, frozen=True, kw_only=True):
    """A running container whose cpu or memory is to be changed."""

    id: str
    name: str
    wanted: ResourceRequirements
    actuated: ResourceRequirements
    resources: tuple[str, ...]
    """Which of memory and cpu change, memory first: the order in which they are applied."""
    needs_restart: bool
    """The container's resize policy asks for a restart; such a one is killed and started, not updated."""


class PodPlan(Struct, frozen=True, kw_only=True):
    """What to do, in the order of the fields."""

    kill_pod: bool = False
    """Kill every container and stop every sandbox first; without `create_sandbox` nothing follows."""
    create_sandbox: bool = False
    sandbox_id: str = ""
    """The sandbox to use, or the one that is replaced; '' when there is none."""
    attempt: int = 0
    kill: tuple[ContainerKill, ...] = ()
    reset: tuple[ContainerReset, ...] = ()
    resize: tuple[ContainerResize, ...] = ()
    """Running containers whose resources change; those that need a restart are also in kill and start."""
    start_ephemeral: tuple[EphemeralContainer, ...] = ()
    start_init: tuple[Container, ...] = ()
    start_regular: tuple[Container, ...] = ()
    stopped: tuple[str, ...] = ()
    """Ids of regular containers that no longer run; what was reserved for them may be released."""

    @property
    def is_idle(self) -> bool:
        """Nothing to do: the pod is as it should be."""
        return not (
            self.kill_pod
            or self.create_sandbox
            or self.kill
            or self.reset
            or self.resize
            or self.start_ephemeral
            or self.start_init
            or self.start_regular
        )


class PlanInputs(Struct, frozen=True, kw_only=True):
    pod: Pod
    """With the allocated resources, where they differ from the wanted ones."""
    runtime: PodRuntimeStatus
    probes: ProbeResults
    restart_all: bool = False
    """The AllContainersRestarting condition is True."""
    actuated: Mapping[str, ResourceRequirements] | None = None
    """Resources last put into force, by container name; None = nothing is resized in place."""


class Draft(Struct):
    """A plan in the making, shared by the steps of one `plan_pod`."""

    inputs: PlanInputs
    kill_pod: bool = False
    kill: list[ContainerKill] = field(default_factory=list)
    resize: list[ContainerResize] = field(default_factory=list)
    start_init: list[Container] = field(default_factory=list)
    start_regular: list[Container] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def add_kill(self, status: ContainerStatus, message: str, reason: KillReason) -> None:
        self.kill.append(ContainerKill(id=status.id, name=status.name, message=message, reason=reason))

    def outcome(self, kind: ProbeKind, status: ContainerStatus) -> ProbeOutcome | None:
        return self.inputs.probes.get(kind, status.id)

    def failed(self, kind: ProbeKind, status: ContainerStatus) -> bool:
        return self.outcome(kind, status) is ProbeOutcome.FAILURE
