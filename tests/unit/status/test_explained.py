"""Explanations in statuses: added once, renewed from the plain status, and never piled up."""

from __future__ import annotations

import msgspec

from pykubelet.api.types import ContainerStatus, Pod, PodCondition, PodStatus
from pykubelet.model.pod import ProbeKind, ProbeOutcome, uid_of
from pykubelet.pods.table import PodTable
from pykubelet.status.manager import StatusManager
from tests.builders import a_context, a_pod

UNREADY = PodStatus(
    phase="Running",
    conditions=[PodCondition(type="Ready", status="False", reason="ContainersNotReady", message="not ready")],
    container_statuses=[ContainerStatus(name="app", container_id="fake://1", ready=False, started=False)],
)


class Why:
    def __init__(self) -> None:
        self.text = "first"

    def __call__(self, pod: Pod, status: PodStatus) -> PodStatus:
        conditions = [msgspec.structs.replace(c, message=f"{c.message}: {self.text}") for c in status.conditions]
        return msgspec.structs.replace(status, conditions=conditions)


async def test_an_explanation_is_renewed_and_never_added_to_another() -> None:
    table, why, pod = PodTable(), Why(), a_pod()
    statuses = StatusManager(a_context(), table)
    statuses.explained = why

    def told() -> tuple[int, str]:
        entry = table.reported(uid_of(pod))
        assert entry is not None
        return entry.version, entry.status.conditions[0].message or ""

    statuses.explain_again(uid_of(pod))
    statuses.set_status(pod, UNREADY)
    assert told() == (1, "not ready: first")
    statuses.explain_again(uid_of(pod))
    assert told() == (1, "not ready: first"), "nothing new is nothing to tell"
    why.text = "second"
    statuses.explain_again(uid_of(pod))
    assert told() == (2, "not ready: second")
    statuses.probe_changed(pod, ProbeKind.STARTUP, "fake://1", ProbeOutcome.SUCCESS)
    assert told()[1] == "not ready: second"
