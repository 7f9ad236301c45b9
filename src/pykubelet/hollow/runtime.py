"""The container runtime of a hollow node: the one in memory, with latencies and programs from the workload file, or
from recorded histories where there are any."""

from __future__ import annotations

import random
from collections import Counter

from msgspec.structs import replace

from pykubelet.hollow.cri import MemoryCri
from pykubelet.hollow.cri_values import (
    Behaviour,
    Exec,
    MemoryContainer,
    MemoryImage,
    MemorySandbox,
    digest_of,
    made_id,
)
from pykubelet.hollow.history import Histories, Life
from pykubelet.hollow.workload import Program, Workload, drawn
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, ExecResult, RuntimeVersion

CRASHED = 1
REFUSED = Exec(result=ExecResult(stderr=b"connection refused\n", exit_code=1))
ANSWERED = Exec()


class HollowCri(MemoryCri):
    def __init__(
        self,
        clock: Clock,
        *,
        workload: Workload,
        rng: random.Random,
        pod_cidr: str,
        number: int,
        history: Histories | None = None,
    ) -> None:
        """Where there is a history, it says what the workload's `runtime`, `images` and `programs` say otherwise."""
        super().__init__(clock, pod_cidrs=(pod_cidr,))
        self.runtime_version = RuntimeVersion(name="hollow", version="1.0.0", api_version="v1")
        self._workload = workload
        self._rng = rng
        self._number = number
        self._history = history
        self._failed_sandboxes: Counter[str] = Counter()
        """By pod, until one succeeds; only where a history is replayed."""
        self.on_exec(lambda container, command: ANSWERED if self.answers(container) else REFUSED)

    def answers(self, container: MemoryContainer) -> bool:
        """Whether the program answers a probe now."""
        behaviour = container.behaviour
        if container.state is not ContainerState.RUNNING or self._rng.random() < behaviour.deaf:
            return False
        return self.clock.now_ns() >= container.started_at + behaviour.answers_after * 1e9

    def answers_at(self, address: str) -> bool:
        """Whether a pod answers: as soon as all its programs do."""
        box = self.at_address(address)
        if box is None:
            return False
        running = [each for each in self._containers_of(box) if each.state is ContainerState.RUNNING]
        return bool(running) and all(self.answers(each) for each in running)

    def power_off(self) -> None:
        """Everything ends at once, and the runtime does not answer until `restore`."""
        self.crash()
        for box in list(self.sandboxes.values()):
            self._stop_sandbox(box)

    def _container_status(self, c: MemoryContainer) -> ContainerStatus:
        status = super()._container_status(c)
        return status if self.write_logs else replace(status, log_path="")

    # -- what the workload decides

    def _new_id(self, kind: str) -> str:
        self._next_id += 1
        return made_id(f"{self._number}-{kind}", self._next_id)

    def _life(self, box: MemorySandbox) -> Life | None:
        if self._history is None:
            return None
        pod = box.config.metadata
        return self._history.life_of(pod.namespace, pod.name, random.Random(pod.uid))

    async def _set_up(self, box: MemorySandbox, deadline: float) -> None:
        life = self._life(box)
        if life is not None and life.sandboxes:
            failed = self._failed_sandboxes.pop(box.pod_uid, 0)
            attempt = life.sandboxes[min(failed, len(life.sandboxes) - 1)]
            await self._spend(attempt.seconds, deadline)
            if attempt.error:
                self._failed_sandboxes[box.pod_uid] = failed + 1
                raise CriError(attempt.error)
            return
        runtime = self._workload.runtime
        await self._spend(drawn(runtime.sandbox, self._rng), deadline)
        if self._rng.random() < runtime.sandbox_failures:
            raise CriError("failed to setup network for sandbox: the workload lets this share of them fail")

    def _usual(self, container: MemoryContainer) -> Behaviour:
        life = self._life(container.sandbox)
        run = life.run(container.name, container.attempt) if life is not None else None
        if life is not None and run is not None:
            return Behaviour(
                exits_after=run.seconds,
                exit_code=run.exit_code,
                stops_after=life.stops.get(container.name, 0.0),
                create_error=CriError(run.create.error) if run.create.error else None,
                start_error=CriError(run.start.error) if run.start.error else None,
                create_takes=run.create.seconds,
                start_takes=run.start.seconds,
            )
        return self._drawn(container)

    def _drawn(self, container: MemoryContainer) -> Behaviour:
        runtime, rng = self._workload.runtime, self._rng
        pod = container.sandbox.config.metadata
        image = container.config.image.user_specified_image or container.config.image.image
        program = self._workload.program_of(pod.namespace, pod.name, container.name, image)
        fails = rng.random() < runtime.start_failures
        ends, code, killed = self._end_of(program)
        return Behaviour(
            exits_after=ends,
            exit_code=code,
            oom=killed,
            stops_after=None if program.ignores_sigterm else drawn(program.stops, rng),
            start_error=CriError("failed to start: the workload lets this share of them fail") if fails else None,
            create_takes=drawn(runtime.create, rng),
            start_takes=drawn(runtime.start, rng),
            answers_after=drawn(program.ready_after, rng),
            deaf=program.probe_failures,
        )

    def _end_of(self, program: Program) -> tuple[float | None, int, bool]:
        """Seconds to the program's own end, its exit code, and whether it is an out-of-memory kill."""
        if self._rng.random() < program.crashes:
            return drawn(program.crash_after, self._rng), CRASHED, self._rng.random() < program.out_of_memory
        if program.runs is None:
            return None, 0, False
        return drawn(program.runs, self._rng), program.exit_code, False

    def _offered(self, name: str) -> MemoryImage:
        images = self._workload.images
        size = images.size_of(name)
        by_digest = "@" in name
        takes, error = images.pull_takes(size, self._rng), ""
        pull = self._history.pull_of(name, self._rng) if self._history is not None else None
        if pull is not None:
            takes, error = pull.seconds, pull.error
        elif self._rng.random() < images.failures:
            error = f'failed to pull image "{name}": the workload lets this share fail'
        return MemoryImage(
            id=f"sha256:{made_id(name, 0)}",
            tags=[] if by_digest else [name],
            digests=[name if by_digest else digest_of(name)],
            size_bytes=size,
            takes=takes,
            error=CriError(error) if error else None,
        )
