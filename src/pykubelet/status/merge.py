"""What of a pod's status goes to the API server, given what is there. Pure.

Conditions of others stay. While containers could still run, an end phase is held back: controllers start a
replacement the moment they read it, and then two would run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pykubelet.api.types import PodCondition, PodStatus
from pykubelet.model.pod import is_terminal_phase
from pykubelet.model.reasons import CONTAINERS_READY, POD_READY
from pykubelet.status.conditions import OWNED, POD_COMPLETED, POD_FAILED, SHARED, find_condition
from pykubelet.status.phase import FAILED


def ends_pod(there: PodStatus, own: PodStatus) -> bool:
    """Whether sending `own` would end the pod in the eyes of the API."""
    return is_terminal_phase(own.phase) and not is_terminal_phase(there.phase)


def merged_status(there: PodStatus, own: PodStatus, *, could_run: bool) -> PodStatus:
    """The status to write. `there` is what the API server has, `could_run` that containers may not be gone yet."""
    ending = ends_pod(there, own)
    merged = msgspec.structs.replace(
        own,
        conditions=_conditions(there, own, with_shared=ending and not could_run),
        resource_claim_statuses=there.resource_claim_statuses,
        extended_resource_claim_status=there.extended_resource_claim_status,
        node_allocatable_resource_claim_statuses=there.node_allocatable_resource_claim_statuses,
        nominated_node_name=there.nominated_node_name,
    )
    if ending and could_run:
        merged.phase, merged.reason, merged.message = there.phase, there.reason, there.message
    if is_terminal_phase(merged.phase):
        merged.conditions = _not_ready_any_more(merged.conditions, merged.phase)
    return merged


def _conditions(there: PodStatus, own: PodStatus, *, with_shared: bool) -> list[PodCondition]:
    found = {c.type: c for c in there.conditions if c.type not in OWNED}
    found |= {c.type: c for c in own.conditions if c.type in OWNED}
    if with_shared:
        for condition in own.conditions:
            if condition.type in SHARED:
                before = find_condition(there.conditions, condition.type or "")
                same = before is not None and before.status == condition.status
                kept = before.last_transition_time if before is not None and same else condition.last_transition_time
                found[condition.type] = msgspec.structs.replace(condition, last_transition_time=kept)
    return list(found.values())


def _not_ready_any_more(conditions: Sequence[PodCondition], phase: str | None) -> list[PodCondition]:
    """An ended pod is not ready, whatever a probe said last."""
    reason = POD_FAILED if phase == FAILED else POD_COMPLETED
    return [
        msgspec.structs.replace(c, status="False", reason=reason, message=None)
        if c.type in (POD_READY, CONTAINERS_READY) and c.status == "True"
        else c
        for c in conditions
    ]
