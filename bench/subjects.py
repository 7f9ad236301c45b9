"""The three that are compared: bare CRI calls, the Go kubelet and pykubelet, behind one small face.

Both agents get the same configuration file and manifests; the floor makes the same runtime calls for the same pods
with nothing around them. Starting an agent means starting its process; whether it does its work is for the scenario
to see.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bench.measure import Logs
from bench.pods import GRACE, Shape
from bench.stage import Stage

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.standalone.images import BUSYBOX

REPO = Path(__file__).resolve().parent.parent
NODE = "bench-node"
Pods = Mapping[str, tuple[str, ...]]
"""Name -> command."""


class Subject(Protocol):
    """Something that runs pods."""

    name: str
    logs: Logs

    @property
    def pid(self) -> int | None:
        """The agent's process; None where there is none."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Leave; pods may stay."""
        ...

    async def add(self, pods: Pods) -> int:
        """Ask for the pods; gives the time the request was complete."""
        ...

    async def remove(self, names: Sequence[str]) -> int:
        """Ask for their end; gives the time the request was complete."""
        ...


WIDTHS = (2, 4, 8, 50)
"""Pods at a time that the floor tries in a burst; the best one counts."""


class Floor:
    """The calls an agent cannot do without, `width` pods at a time."""

    name = "floor"
    pid = None

    def __init__(self, stage: Stage, shape: Shape) -> None:
        self._stage = stage
        self._shape = shape
        self._pod_logs = stage.folder / self.name / "logs"
        self.logs = Logs(self._pod_logs)
        self._cri: GrpcCriClient | None = None
        self._turns = asyncio.Semaphore(WIDTHS[-1])
        self._made: dict[str, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def go_by(self, width: int) -> None:
        self._turns = asyncio.Semaphore(width)

    async def start(self) -> None:
        self._cri = self._stage.client()
        await self._cri.connect()

    async def stop(self) -> None:
        await asyncio.gather(*self._tasks)
        if self._cri is not None:
            await self._cri.close()

    async def add(self, pods: Pods) -> int:
        asked = time.time_ns()
        for name, command in pods.items():
            self._begin(self._run(name, command))
        return asked

    async def remove(self, names: Sequence[str]) -> int:
        await asyncio.gather(*self._tasks)
        asked = time.time_ns()
        for name in names:
            self._begin(self._end(name))
        return asked

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            print(f"bench: floor: {task.exception()}", file=sys.stderr)

    async def _run(self, name: str, command: tuple[str, ...]) -> None:
        assert self._cri is not None
        config = self._shape.sandbox(name, self._pod_logs, self._stage.cgroups.name)
        Path(config.log_directory, "main").mkdir(parents=True)
        async with self._turns:
            sandbox = await self._cri.run_pod_sandbox(config)
            await self._cri.image_status(BUSYBOX)
            container = await self._cri.create_container(sandbox, self._shape.container(command), config)
            await self._cri.start_container(container)
        self._made[name] = (sandbox, container)

    async def _end(self, name: str) -> None:
        assert self._cri is not None
        sandbox, container = self._made.pop(name)
        await self._cri.stop_container(container, GRACE)  # all at once: the grace period of one is no time of others
        async with self._turns:
            await self._cri.stop_pod_sandbox(sandbox)


class Agent:
    """A kubelet as a process of its own, fed by a folder of manifests."""

    def __init__(
        self, name: str, command: Sequence[str | Path], stage: Stage, shape: Shape, **settings: object
    ) -> None:
        """`settings`: what else its configuration says, or says otherwise."""
        self.name = name
        self._shape = shape
        self._home = stage.folder / name
        self._manifests = self._home / "manifests"
        self._drafts = self._home / "drafts"
        self.log_file = self._home / "agent.log"
        for folder in (self._manifests, self._drafts):
            folder.mkdir(parents=True)
        self.logs = Logs(self._home / "logs", suffix=f"-{NODE}", alive=self._alive)
        self._command = [str(word) for word in command]
        self._process: subprocess.Popen[bytes] | None = None
        config, content = self._home / "config.json", kubelet_config(stage, self._home) | settings
        config.write_text(json.dumps(content, indent=2))
        self.port: int = content["port"]
        """Of its server."""
        self._flags = [f"--config={config}", f"--root-dir={self._home / 'root'}", f"--hostname-override={NODE}"]

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def _alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        self._process = self._spawn()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                [*self._command, *self._flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/"
            )

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    async def add(self, pods: Pods) -> int:
        for name, command in pods.items():
            (self._drafts / f"{name}.json").write_bytes(self._shape.manifest(name, command))
        for name in pods:  # by rename: an agent must never see half a manifest
            (self._drafts / f"{name}.json").rename(self._manifests / f"{name}.json")
        return time.time_ns()

    async def remove(self, names: Sequence[str]) -> int:
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                (self._manifests / f"{name}.json").unlink()
        return time.time_ns()

    def last_lines(self, count: int = 15) -> str:
        lines = self.log_file.read_text(errors="replace").splitlines() if self.log_file.exists() else []
        return "\n".join(line[:300] for line in lines[-count:])


def go_kubelet(stage: Stage, shape: Shape, **settings: object) -> Agent:
    """The Go kubelet that belongs to the control plane of the tests."""
    found = subprocess.run(
        [REPO / "tools" / "build-go.sh", "controlplane"], stdout=subprocess.PIPE, text=True, check=True
    )
    return Agent("go", [Path(found.stdout.splitlines()[-1]) / "kubelet"], stage, shape, **settings)


def pykubelet(stage: Stage, shape: Shape, **settings: object) -> Agent:
    return Agent("pykubelet", [Path(sys.executable).with_name("pykubelet")], stage, shape, **settings)


def kubelet_config(stage: Stage, home: Path) -> dict[str, Any]:
    """One configuration for both agents: what the machine demands, and defaults otherwise."""
    ports = _free_ports(2)
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(home / "manifests"),
        "podLogsDir": str(home / "logs"),
        "containerRuntimeEndpoint": stage.endpoint,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": stage.cgroups.name,
        "failSwapOn": False,
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "address": "127.0.0.1",
        "port": ports[0],
        "healthzPort": ports[1],
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "volumePluginDir": str(home / "volume-plugins"),
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 600,
        # A Go kubelet may not raise its limit without CAP_SYS_RESOURCE, and does not start then.
        "maxOpenFiles": _open_files_limit(),
    }


def _open_files_limit() -> int:
    return min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1_000_000)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
