"""Gathering facts: ending pods are found, names may be short, parts that fail to know make no trouble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pykubelet.api.types import Pod, PodStatus
from pykubelet.explain.service import Explainer
from pykubelet.kit.clock import LoopClock
from pykubelet.model.pod import uid_of
from pykubelet.model.problems import VolumeFailed
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.pods.record import PodWorker, ReportedStatus, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeRecorder, Step
from tests.builders import a_context, a_pod
from tests.unit.explain.making import crashed, ended


@dataclass
class ExplainerFixture:
    """Everything an explainer asks, in one object."""

    table: PodTable = field(default_factory=PodTable)
    up: bool = True

    def want(self, pod: Pod) -> Pod:
        self.table.put(pod)
        return pod

    def work(self, pod: Pod, state: WorkerState = WorkerState.SYNCING) -> None:
        self.table.add_worker(PodWorker(uid_of(pod), "", pod, state, grace=30))

    def problems(self, uid: str) -> Sequence[VolumeFailed]:
        return []

    def is_up(self) -> bool:
        return self.up

    def runtime_problem(self) -> str:
        return ""

    def network_problem(self) -> str:
        return ""

    def explainer(self, recorder: LifeRecorder) -> Explainer:
        return Explainer(
            a_context(recorder=recorder),
            table=self.table,
            volumes=self,
            runtime=self,
        )


async def test_a_crash_is_told_with_the_end_of_the_right_log(tmp_path: Path) -> None:
    clock = LoopClock()
    recorder = LifeRecorder(clock)
    recorder.note("uid-web", Step.SEEN)
    world = ExplainerFixture()
    status = PodStatus(phase="Running", container_statuses=[crashed(ended(1))])
    world.table.report(ReportedStatus(pod=world.want(a_pod()), status=status, version=1, plain=status))
    new, old = tmp_path / "1.log", tmp_path / "0.log"
    new.write_text("".join(f"2026-01-02T03:04:05.6Z stdout F {line}\n" for line in ("first", "", "second\r")))
    old.write_text("2026-01-02T03:04:04.6Z stdout F before\n")
    runs = (
        ContainerStatus(id="2", name="app", state=ContainerState.EXITED, log_path=str(new)),
        ContainerStatus(id="1", name="app", state=ContainerState.EXITED, log_path=str(old)),
    )
    world.table.observe(PodRuntimeStatus(uid="uid-web", containers=runs), {})
    found = world.explainer(recorder)("default", "web")
    assert found is not None
    assert found["causes"][0]["evidence"] == ("first", "second")
    assert [moment["step"] for moment in found["timeline"]] == ["seen"]


async def test_a_pod_whose_source_gave_it_up_is_found_while_it_ends() -> None:
    world = ExplainerFixture()
    world.work(a_pod("gone"), WorkerState.TERMINATING)
    world.work(a_pod("other"))
    explainer = world.explainer(LifeRecorder(LoopClock()))
    assert [pod.metadata.name for pod in explainer.pods()] == ["gone"]
    found = explainer("default", "gone")
    assert found is not None
    assert found["state"] == "ending"


async def test_names_and_strangers() -> None:
    world = ExplainerFixture()
    static = world.want(a_pod("web-node1", static=True, node_name="node1"))
    explainer = world.explainer(LifeRecorder(LoopClock()))
    assert explainer.find("default", "web") is static
    assert explainer.find("default", "web-node1") is static
    assert explainer.find("other", "web") is None
    assert explainer("default", "nobody") is None


async def test_a_runtime_that_is_away_is_told_even_without_words() -> None:
    world = ExplainerFixture(up=False)
    world.want(a_pod())
    found = world.explainer(LifeRecorder(LoopClock()))("default", "web")
    assert found is not None
    assert found["causes"][0]["id"] == "runtime-down"
