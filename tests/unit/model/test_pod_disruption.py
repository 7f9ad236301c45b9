"""The mark on pods that the node ends on its own account."""

from __future__ import annotations

from pykubelet.api.types import PodCondition, PodStatus
from pykubelet.kit.clock import utc
from pykubelet.model.lifecycle import mark_disrupted


def test_the_condition_is_added_once_and_keeps_its_time() -> None:
    status = PodStatus(conditions=[PodCondition(type="Ready", status="True")])
    mark_disrupted(status, "room", at=10.0)
    mark_disrupted(status, "shutdown", at=20.0)
    assert [each.type for each in status.conditions] == ["Ready", "DisruptionTarget"]
    told = status.conditions[1]
    assert (told.status, told.reason, told.message) == ("True", "TerminationByKubelet", "shutdown")
    assert told.last_transition_time == utc(10.0)


def test_others_conditions_are_not_touched() -> None:
    before = [PodCondition(type="Ready", status="True")]
    status = PodStatus(conditions=before)
    mark_disrupted(status, "room", at=10.0)
    assert len(before) == 1
