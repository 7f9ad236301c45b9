from __future__ import annotations

from pykubelet.api.types import PodCondition, PodResourceClaimStatus, PodStatus
from pykubelet.status.changes import ends_pod, merged_status
from tests.builders import NOW, at


def condition(kind: str, status: str = "True", reason: str | None = None, when: float = NOW) -> PodCondition:
    return PodCondition(type=kind, status=status, reason=reason, last_transition_time=at(when))


def test_conditions_and_fields_of_others_stay() -> None:
    claims = [PodResourceClaimStatus(name="c")]
    there = PodStatus(
        phase="Pending",
        conditions=[condition("example.com/gate"), condition("Ready", "False")],
        resource_claim_statuses=claims,
    )
    own = PodStatus(phase="Running", conditions=[condition("Ready"), condition("example.com/gate", "False")])
    merged = merged_status(there, own, could_run=True)
    assert {c.type: c.status for c in merged.conditions} == {"example.com/gate": "True", "Ready": "True"}
    assert merged.resource_claim_statuses == claims
    assert merged.phase == "Running"


def test_an_end_is_held_back_while_containers_could_run() -> None:
    there = PodStatus(phase="Running", reason=None)
    own = PodStatus(phase="Failed", reason="Evicted", message="low memory", conditions=[condition("DisruptionTarget")])
    held = merged_status(there, own, could_run=True)
    assert (held.phase, held.reason, held.message, held.conditions) == ("Running", None, None, [])
    assert ends_pod(there, own)
    sent = merged_status(there, own, could_run=False)
    assert (sent.phase, sent.reason, sent.message) == ("Failed", "Evicted", "low memory")
    assert [c.type for c in sent.conditions] == ["DisruptionTarget"]
    assert own.phase == "Failed" and len(own.conditions) == 1


def test_a_pod_that_ended_is_not_ready() -> None:
    there = PodStatus(phase="Running")
    own = PodStatus(phase="Succeeded", conditions=[condition("Ready"), condition("ContainersReady")])
    merged = merged_status(there, own, could_run=False)
    assert [(c.type, c.status, c.reason) for c in merged.conditions] == [
        ("Ready", "False", "PodCompleted"),
        ("ContainersReady", "False", "PodCompleted"),
    ]


def test_a_disruption_mark_that_is_there_keeps_its_time() -> None:
    there = PodStatus(phase="Running", conditions=[condition("DisruptionTarget", when=NOW - 60)])
    own = PodStatus(phase="Failed", conditions=[condition("DisruptionTarget", reason="TerminationByKubelet")])
    merged = merged_status(there, own, could_run=False)
    assert merged.conditions[0].last_transition_time == at(NOW - 60)
    assert merged.conditions[0].reason == "TerminationByKubelet"
