"""The cause of a pod that is not ready, in its conditions and events: stable, once, and behind upstream's words."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pykubelet.api.types import Pod, PodCondition, PodStatus
from pykubelet.explain.conditions import REPORTED_STATES, WhyNotReady, event_text
from pykubelet.explain.explain import CAUSES, GAP, PASSING, explain
from pykubelet.explain.view import Explanation
from pykubelet.kit.clock import LoopClock
from pykubelet.recorder import LifeEntry, LifeRecorder, Step
from tests.builders import NOW, a_context, a_pod, at
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.explain.making import crashed, ended, entry, facts, failed, only, running, waiting

UNREADY = "containers with unready status: [app]"


class Told:
    """The part under test between a node that knows some facts and an event sink."""

    def __init__(self, *life: LifeEntry) -> None:
        self.events = RecordedEvents()
        self.looks = 0
        self._life = list(life)
        recorder = LifeRecorder(LoopClock())
        recorder.name_pod("uid-web", "default", "web")
        found = recorder.life("uid-web")
        assert found is not None
        found.entries.extend(life)
        self.why = WhyNotReady(a_context(events=self.events, recorder=recorder), self)

    def explain_status(self, pod: Pod, status: PodStatus) -> Explanation:
        self.looks += 1
        return explain(replace(facts(pod=pod, life=self._life), status=status))

    def messages(self, status: PodStatus, pod: Pod | None = None) -> list[str]:
        made = self.why(pod or a_pod(), status)
        return [condition.message or "" for condition in made.conditions]


def unready(*told, phase: str = "Running", reason: str = "ContainersNotReady") -> PodStatus:  # type: ignore[no-untyped-def]
    conditions = [
        PodCondition(type=kind, status="False", reason=reason, message=UNREADY) for kind in ("Ready", "ContainersReady")
    ]
    return PodStatus(phase=phase, start_time=at(NOW - 60), conditions=conditions, container_statuses=list(told))


async def test_a_crash_is_told_behind_upstreams_complaint_and_once_as_an_event() -> None:
    told = Told()
    said = f"{UNREADY}: the program of container app keeps ending (exit code 3)"
    assert told.messages(unready(crashed(ended(3)))) == [said, said]
    assert told.messages(unready(crashed(ended(3), restarts=4, delay="5m0s"))) == [said, said]
    (event,) = told.events.recorded
    assert event[:2] == ("Warning", "Explained")
    assert event[2].startswith(
        "The program of container app keeps ending (exit code 3) (crash-loop). You can: see what"
    )


async def test_what_went_wrong_before_containers_is_told_too() -> None:
    told = Told(failed(Step.CGROUP, message="no such file"))
    (first, _) = told.messages(unready(waiting("ContainerCreating"), phase="Pending"))
    assert first == f"{UNREADY}: the pod cannot start; its cgroup cannot be made: no such file"


async def test_a_pod_on_its_way_costs_no_look() -> None:
    told = Told(entry(Step.SEEN), entry(Step.SANDBOX))
    assert told.messages(unready(waiting("ContainerCreating"), phase="Pending")) == [UNREADY, UNREADY]
    assert told.messages(unready(running(ready=False))) == [UNREADY, UNREADY]
    assert (told.looks, told.events.all) == (0, [])


@pytest.mark.parametrize(
    "status",
    [
        unready(crashed(ended(3)), reason="ReadinessGatesNotReady"),
        PodStatus(phase="Running", conditions=[PodCondition(type="Ready", status="True")]),
        PodStatus(phase="Failed", conditions=[PodCondition(type="Ready", status="False", reason="PodFailed")]),
    ],
)
async def test_other_conditions_stay_as_they_are(status: PodStatus) -> None:
    told = Told()
    assert told.why(a_pod(), status) is status
    assert told.events.all == []


async def test_a_pod_that_is_being_deleted_stays_as_it_is() -> None:
    pod = a_pod()
    pod.metadata.deletion_timestamp = at(NOW)
    status = unready(crashed(ended(3)))
    assert Told().why(pod, status) is status


def test_a_brief_does_not_change_from_one_try_to_the_next() -> None:
    def tried(sandbox: str) -> str:
        problem = f'failed to set up network for sandbox "{sandbox}": no addresses'
        return only(facts(life=[failed(Step.SANDBOX, message=problem)])).brief

    assert tried("3f2a" * 16) == tried("9b1c" * 16)
    assert tried("3f2a" * 16).endswith("the network plugin failed: failed to set up network for sandbox: no addresses")


def test_every_cause_that_is_told_has_a_brief_of_its_own() -> None:
    for cause in CAUSES:
        assert PASSING.isdisjoint(GAP.findall(cause.brief)), cause.id
        if cause.state in REPORTED_STATES and not cause.brief:
            stable = [line for line in cause.chain if PASSING.isdisjoint(GAP.findall(line))]
            assert len(stable) == len(cause.chain), f"{cause.id}: what matters is in lines that change; give it a brief"


def test_a_cause_without_advice_makes_a_short_event() -> None:
    view = replace(only(facts(life=[failed(Step.CGROUP, message="x")])), advice=())
    assert event_text(view) == "The pod cannot start; its cgroup cannot be made: x (cgroup-failed)"
