"""The condition by which a pod that this node ends on its own account can be told from one that failed."""

from __future__ import annotations

from typing import Final

from pykubelet.api.types import PodCondition, PodStatus
from pykubelet.kit.clock import utc
from pykubelet.model.reasons import DISRUPTION_TARGET

TERMINATION_BY_KUBELET: Final = "TerminationByKubelet"


def mark_disrupted(status: PodStatus, message: str, *, at: float) -> None:
    """Set DisruptionTarget; one that is there already is replaced but keeps its time. `at` is wall time."""
    before = next((each for each in status.conditions if each.type == DISRUPTION_TARGET), None)
    since = before.last_transition_time if before is not None and before.status == "True" else None
    told = PodCondition(
        type=DISRUPTION_TARGET,
        status="True",
        reason=TERMINATION_BY_KUBELET,
        message=message,
        last_transition_time=since or utc(at),
    )
    status.conditions = [*[each for each in status.conditions if each.type != DISRUPTION_TARGET], told]
