"""The runtimes of the CRI contract suite, and programs that mean the same in all.

A `Subject` opens a client and makes configs; the fake is told what a program does, a real
runtime gets a shell line that does it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.clients.cri.port import CriClient
from pykubelet.hollow.cri import MemoryCri
from pykubelet.hollow.cri_values import Behaviour, Exec
from pykubelet.hollow.runtime import HollowCri
from pykubelet.hollow.workload import RuntimePlan, Spread, Workload
from pykubelet.kit.clock import Clock, LoopClock, SystemClock
from pykubelet.model.container_keys import (
    CONTAINER_NAME_LABEL,
    POD_NAME_LABEL,
    POD_NAMESPACE_LABEL,
    POD_UID_LABEL,
)
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, ExecResult
from pykubelet.wire import cri_pb2
from tests.fakes.fake_cri import FakeCri

IMAGE = "pykubelet.local/busybox:1"


class Program(Enum):
    """What a container runs."""

    POLITE = "runs forever, ends with 0 on SIGTERM"
    STUBBORN = "runs forever, ignores SIGTERM"
    SUCCEEDS = "prints a line and exits 0"
    FAILS = "exits 3"
    MISSING = "does not exist"


# `wait` on a background child lets the shell handle the signal at once. The file says that the trap is set: a
# signal before that is lost, for the kernel drops what the first process of a container does not handle.
_SHELL = {
    Program.POLITE: "trap 'exit 0' TERM; : > /ready; sleep 1000 & wait",
    Program.STUBBORN: "trap '' TERM; : > /ready; while true; do sleep 1000; done",
    Program.SUCCEEDS: "echo hello",
    Program.FAILS: "exit 3",
}

_BEHAVIOUR = {
    Program.POLITE: Behaviour(stop_code=0),
    Program.STUBBORN: Behaviour(stops_after=None),
    Program.SUCCEEDS: Behaviour(exits_after=0.05, output=("hello",)),
    Program.FAILS: Behaviour(exits_after=0.05, exit_code=3),
    Program.MISSING: Behaviour(start_error=CriError("exec: no such file or directory")),
}

_EXECS = {
    "echo out; echo err >&2; exit 5": Exec(result=ExecResult(stdout=b"out\n", stderr=b"err\n", exit_code=5)),
    "sleep 60": Exec(takes=60.0),
}


def command_of(program: Program) -> list[str]:
    return ["/no/such/program"] if program is Program.MISSING else ["sh", "-c", _SHELL[program]]


@dataclass(slots=True)
class PodConfig:
    """A sandbox config and what goes with it."""

    config: cri_pb2.PodSandboxConfig

    @property
    def uid(self) -> str:
        return self.config.metadata.uid


class FakeSubject:
    real = False

    def __init__(self) -> None:
        self.clock: Clock = LoopClock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[CriClient]:
        fake = FakeCri(self.clock, write_logs=True)
        program(fake)
        yield fake


class HollowSubject:
    """The runtime of hollow nodes, with latencies."""

    real = False

    def __init__(self) -> None:
        self.clock: Clock = LoopClock()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[CriClient]:
        slow = RuntimePlan(sandbox=Spread(median=0.2, p99=1.0), create=0.05, start=Spread(min=0.01, max=0.1))
        made = HollowCri(
            self.clock, workload=Workload(runtime=slow), rng=random.Random(1), pod_cidr="10.0.0.0/22", number=0
        )
        made.write_logs = True
        program(made)
        yield made


def program(runtime: MemoryCri) -> None:
    for image in (IMAGE, "pykubelet.local/pause:1"):
        runtime.add_image(image)
    for program, behaviour in _BEHAVIOUR.items():
        runtime.program(behaviour, name=program.name.lower())
    for line, script in _EXECS.items():
        runtime.on_exec(script, command=["sh", "-c", line])


class RuntimeSubject:
    real = True

    def __init__(self, endpoint: str) -> None:
        self.clock: Clock = SystemClock()
        self._endpoint = endpoint

    @asynccontextmanager
    async def open(self) -> AsyncIterator[CriClient]:
        async with GrpcCriClient(self._endpoint, clock=self.clock, request_timeout=30.0) as client:
            yield client


Subject = FakeSubject | HollowSubject | RuntimeSubject

_numbers = itertools.count(1)


def a_pod_config(
    log_directory: Path | None = None, *, host_network: bool = False, attempt: int = 0, uid: str = ""
) -> PodConfig:
    uid = uid or str(uuid.uuid4())
    name = f"contract-{next(_numbers)}"
    config = cri_pb2.PodSandboxConfig(
        metadata=cri_pb2.PodSandboxMetadata(name=name, namespace="default", uid=uid, attempt=attempt),
        log_directory=str(log_directory or ""),
        labels={POD_NAME_LABEL: name, POD_NAMESPACE_LABEL: "default", POD_UID_LABEL: uid},
        annotations={"note": "kept"},
    )
    network = cri_pb2.NODE if host_network else cri_pb2.POD
    options = cri_pb2.NamespaceOption(network=network, pid=cri_pb2.CONTAINER, ipc=cri_pb2.POD)
    config.linux.security_context.namespace_options.CopyFrom(options)
    return PodConfig(config)


def a_container_config(
    pod: PodConfig, program: Program, *, attempt: int = 0, image: str = IMAGE
) -> cri_pb2.ContainerConfig:
    name = program.name.lower()
    return cri_pb2.ContainerConfig(
        metadata=cri_pb2.ContainerMetadata(name=name, attempt=attempt),
        image=cri_pb2.ImageSpec(image=image, user_specified_image=IMAGE),
        command=command_of(program),
        labels={**pod.config.labels, CONTAINER_NAME_LABEL: name},
        annotations={"io.kubernetes.container.restartCount": str(attempt)},
        log_path=f"{name}-{attempt}.log" if pod.config.log_directory else "",
        linux=cri_pb2.LinuxContainerConfig(
            resources=cri_pb2.LinuxContainerResources(cpu_shares=2),
            security_context=cri_pb2.LinuxContainerSecurityContext(
                namespace_options=pod.config.linux.security_context.namespace_options
            ),
        ),
    )


@asynccontextmanager
async def sandbox(cri: CriClient, pod: PodConfig) -> AsyncIterator[str]:
    """A running sandbox that is gone afterwards, whatever happened."""
    sandbox_id = await cri.run_pod_sandbox(pod.config)
    try:
        yield sandbox_id
    finally:
        await cri.stop_pod_sandbox(sandbox_id)
        await cri.remove_pod_sandbox(sandbox_id)


async def start(cri: CriClient, sandbox_id: str, pod: PodConfig, program: Program, attempt: int = 0) -> str:
    config = a_container_config(pod, program, attempt=attempt)
    container_id = await cri.create_container(sandbox_id, config, pod.config)
    await cri.start_container(container_id)
    if program in (Program.POLITE, Program.STUBBORN):
        await until_listening(cri, container_id)
    return container_id


async def until_listening(cri: CriClient, container_id: str) -> None:
    """The program has set up what it does with signals. In the fake it always has."""
    async with asyncio.timeout(10):
        while (await cri.exec_sync(container_id, ["test", "-e", "/ready"], 5)).exit_code != 0:
            pass


async def until(clock: Clock, what: Callable[[], Awaitable[bool]], within: float = 60.0) -> None:
    """Look again and again until it is so; an answer that never comes fails the test."""
    async with asyncio.timeout(within):
        while not await what():
            await clock.sleep(0.02)


async def until_exited(clock: Clock, cri: CriClient, container_id: str) -> ContainerStatus:
    async def exited() -> bool:
        return (await cri.container_status(container_id)).state is ContainerState.EXITED

    await until(clock, exited)
    return await cri.container_status(container_id)


def sleepers() -> Sequence[str]:
    return ["sh", "-c", "sleep 60"]
