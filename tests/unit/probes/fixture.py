"""A probe manager on fakes: statuses set by hand, a pod that answers as told, time that jumps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from pykubelet.api.types import (
    ContainerState,
    ContainerStateRunning,
    ContainerStateTerminated,
    ContainerStatus,
    Pod,
    PodStatus,
)
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.http import HttpAnswer, HttpRequest
from pykubelet.model.pod import ProbeKind, ProbeOutcome, uid_of
from pykubelet.model.runtime_status import ExecResult
from pykubelet.pods.record import ReportedStatus
from pykubelet.pods.table import PodTable
from pykubelet.probes.manager import ProbeManager
from pykubelet.recorder import LifeRecorder
from pykubelet.signals import ProbeResultChanged
from tests.builders import a_context, at
from tests.fakes.recorded_events import RecordedEvents

Script = Callable[[str], ExecResult | Exception]


def passes(_: str) -> ExecResult:
    return ExecResult()


def fails(_: str) -> ExecResult:
    return ExecResult(stdout=b"sick", exit_code=1)


class NoNetwork:
    async def get(self, request: HttpRequest, *, timeout: float | None, max_body: int) -> HttpAnswer:
        raise AssertionError("not used")

    async def connect(self, host: str, port: int, *, timeout: float) -> None:
        raise AssertionError("not used")

    async def grpc_health(self, host: str, port: int, service: str, *, timeout: int) -> None:
        raise AssertionError("not used")


class ProbesFixture:
    """One pod, `uid-web`, with exec probes; `requested` holds (time, first word of the command)."""

    def __init__(self, pod: Pod, *, age: float = 0.0, spread: float = 0.5) -> None:
        self.clock = LoopClock()
        self.pod = pod
        self.table = PodTable()
        self.events = RecordedEvents()
        self.recorder = LifeRecorder(self.clock)
        self.requested: list[tuple[float, str]] = []
        self.script: Script = passes
        self.takes = 0.0
        self.changes: list[tuple[float, str, str, str]] = []
        ctx = a_context(clock=self.clock, events=self.events, recorder=self.recorder, started=self.clock.now() - age)
        ctx.signals.subscribe(ProbeResultChanged, self._changed)
        self.manager = ProbeManager(
            ctx,
            cri=self,
            network=NoNetwork(),
            table=self.table,
            spread=lambda: spread,
        )

    @asynccontextmanager
    async def up(self) -> AsyncIterator[None]:
        async with running(self.manager):
            self.manager.add_pod(self.pod)
            yield

    # --- what the manager is given ----------------------------------------------------------------

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout: int = 0) -> ExecResult:
        self.requested.append((round(self.clock.monotonic(), 3), command[0]))
        await self.clock.sleep(self.takes)
        answer = self.script(command[0])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _changed(self, changed: ProbeResultChanged) -> None:
        when = round(self.clock.monotonic(), 3)
        self.changes.append((when, changed.kind.value, changed.container_id, changed.outcome.value))

    # --- what happens to the pod ------------------------------------------------------------------

    def runs(
        self,
        container_id: str = "c1",
        *,
        name: str = "app",
        started: bool = True,
        ago: float = 0.0,
        was_ready: bool = False,
    ) -> None:
        since = at(self.clock.now() - ago)
        running = ContainerState(running=ContainerStateRunning(started_at=since))
        self.report_container(name, container_id, running, started, ready=was_ready)

    def ends(self, container_id: str = "c1", *, code: int = 1, name: str = "app") -> None:
        self.report_container(
            name, container_id, ContainerState(terminated=ContainerStateTerminated(exit_code=code)), False
        )

    def report_container(
        self, name: str, container_id: str, state: ContainerState, started: bool, *, ready: bool = False
    ) -> None:
        old = self.table.reported_status(uid_of(self.pod)) or PodStatus()
        others = [each for each in old.container_statuses if each.name != name]
        mine = ContainerStatus(
            name=name, container_id=f"containerd://{container_id}", state=state, started=started, ready=ready
        )
        status = PodStatus(phase="Running", pod_ip="10.0.0.5", container_statuses=[*others, mine])
        self.report(status)
        self.manager.container_changed(uid_of(self.pod))

    def report(self, status: PodStatus) -> None:
        self.table.report(ReportedStatus(pod=self.pod, status=status, version=1, plain=status))

    def outcome(self, kind: ProbeKind, container_id: str = "c1") -> ProbeOutcome | None:
        return self.table.probe_outcomes(uid_of(self.pod)).get((kind, container_id))

    def times(self, word: str) -> list[float]:
        return [when for when, asked in self.requested if asked == word]
