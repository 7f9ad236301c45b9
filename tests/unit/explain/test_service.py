"""Gathering facts: ending pods are found, names may be short, parts that fail to know make no trouble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pykubelet.api.types import Pod, PodStatus
from pykubelet.explain.service import Explainer
from pykubelet.kit.clock import LoopClock
from pykubelet.model.life import LifeRecorder, Step
from pykubelet.model.pod import uid_of
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from tests.builders import a_pod
from tests.unit.explain.making import Event, Worker, crashed, ended


@dataclass
class State:
    pod: Pod | None
    grace: int | None = 30
    is_ending: bool = False


@dataclass
class World:
    """Everything an explainer asks, in one object."""

    wanted: list[Pod] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    told: dict[str, PodStatus] = field(default_factory=dict)
    up: bool = True
    runs: tuple[ContainerStatus, ...] = ()
    asked_logs: list[Path] = field(default_factory=list)

    def pods(self) -> list[Pod]:
        return self.wanted

    def worker(self, uid: str) -> State | None:
        return next((s for s in self.states if s.pod is not None and uid_of(s.pod) == uid), None)

    def workers(self) -> list[State]:
        return self.states

    def snapshot(self) -> dict[str, Worker]:
        return {"uid-gone": Worker(phase="terminating")}

    def of_pod(self, uid: str) -> Sequence[Event]:
        return []

    def problems(self, uid: str) -> Sequence[str]:
        return []

    def is_up(self) -> bool:
        return self.up

    def runtime_problem(self) -> str:
        return ""

    def network_problem(self) -> str:
        return ""

    def tail(self, path: Path, *, lines: int, limit_bytes: int) -> str:
        self.asked_logs.append(path)
        return "first\n\nsecond\r\n"

    def explainer(self, recorder: LifeRecorder) -> Explainer:
        return Explainer(
            pods=self,
            states=self,
            status=self.told.get,
            seen=lambda uid: PodRuntimeStatus(uid=uid, containers=self.runs),
            lives=recorder,
            workers=self,
            events=self,
            runtime=self,
            logs=self,
            clock=LoopClock(),
            volumes=self,
        )


async def test_a_crash_is_told_with_the_end_of_the_right_log() -> None:
    clock = LoopClock()
    recorder = LifeRecorder(clock)
    recorder.note("uid-web", Step.SEEN)
    world = World(
        wanted=[a_pod()], told={"uid-web": PodStatus(phase="Running", container_statuses=[crashed(ended(1))])}
    )
    world.runs = (
        ContainerStatus(id="2", name="app", state=ContainerState.EXITED, log_path="/log/app/1.log"),
        ContainerStatus(id="1", name="app", state=ContainerState.EXITED, log_path="/log/app/0.log"),
    )
    found = world.explainer(recorder)("default", "web")
    assert found is not None
    assert found["causes"][0]["evidence"] == ("first", "second")
    assert world.asked_logs == [Path("/log/app/1.log")]
    assert [moment["step"] for moment in found["timeline"]] == ["seen"]


async def test_a_pod_whose_source_gave_it_up_is_found_while_it_ends() -> None:
    world = World(states=[State(a_pod("gone"), is_ending=True), State(a_pod("other"))])
    explainer = world.explainer(LifeRecorder(LoopClock()))
    assert [pod.metadata.name for pod in explainer.pods()] == ["gone"]
    found = explainer("default", "gone")
    assert found is not None
    assert found["state"] == "ending"


async def test_names_and_strangers() -> None:
    static = a_pod("web-node1", static=True, node_name="node1")
    explainer = World(wanted=[static]).explainer(LifeRecorder(LoopClock()))
    assert explainer.find("default", "web") is static
    assert explainer.find("default", "web-node1") is static
    assert explainer.find("other", "web") is None
    assert explainer("default", "nobody") is None


async def test_a_runtime_that_is_away_is_told_even_without_words() -> None:
    world = World(wanted=[a_pod()], up=False)
    found = world.explainer(LifeRecorder(LoopClock()))("default", "web")
    assert found is not None
    assert found["causes"][0]["id"] == "runtime-down"
