"""Containers of the runtime in memory: life, signals, exit codes, exec and logs.

Covers: create, start, stop, remove, status, list, exec, attach, resources, log files in the CRI format.
A program's own end is a timer on the event loop, so it needs no call to happen.
Does not cover: stats (cri.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from pykubelet.clients.cri.convert import linux_resources, mount_record
from pykubelet.hollow.cri_logs import close_log, open_log, write_log
from pykubelet.hollow.cri_sandboxes import MemorySandboxes
from pykubelet.hollow.cri_values import (
    KILLED,
    START_FAILED,
    Behaviour,
    Exec,
    ExecScript,
    MemoryContainer,
    MemoryImage,
    Subject,
)
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import CallTimedOut, CriError, CriNotFound, ExecTimedOut, RuntimeDown, Unimplemented
from pykubelet.model.runtime_status import (
    ContainerRecord,
    ContainerState,
    ContainerStatus,
    EventKind,
    ExecResult,
    SandboxState,
)
from pykubelet.wire import cri_pb2


class MemoryContainers(MemorySandboxes):
    def __init__(
        self,
        clock: Clock,
        *,
        request_timeout: float,
        pod_cidrs: Sequence[str],
        handlers: Sequence[str],
        write_logs: bool = False,
    ) -> None:
        super().__init__(clock, request_timeout=request_timeout, pod_cidrs=pod_cidrs, handlers=handlers)
        self.write_logs = write_logs
        self.checkpoints_supported = False
        self._last_created = 0
        self._behaviours: list[tuple[dict[str, str | int], Behaviour]] = []
        self._execs: list[tuple[str | None, tuple[str, ...] | None, ExecScript]] = []
        self.execs_given_up: list[str] = []
        """Containers in which a command ended because its caller gave up, as a runtime ends it then."""

    # -- what tests program and do

    def program(
        self,
        behaviour: Behaviour,
        *,
        name: str | None = None,
        image: str | None = None,
        pod: str | None = None,
        attempt: int | None = None,
    ) -> None:
        """Containers that match everything given behave so; the latest matching program wins."""
        given = {"name": name, "image": image, "pod": pod, "attempt": attempt}
        self._behaviours.append(({k: v for k, v in given.items() if v is not None}, behaviour))

    def on_exec(self, script: ExecScript, *, name: str | None = None, command: Sequence[str] | None = None) -> None:
        """What exec_sync does in containers of that name with that command; default: success, no output."""
        self._execs.append((name, tuple(command) if command is not None else None, script))

    def container(self, name: str, pod: str | None = None) -> MemoryContainer:
        """The newest container of that name (or id), optionally of one pod by name or uid."""
        found = [
            c
            for c in self.containers.values()
            if name in (c.name, c.id) and (pod is None or pod in (c.sandbox.name, c.sandbox.pod_uid))
        ]
        if not found:
            raise LookupError(f"the runtime has no container {name!r} (pod {pod!r})")
        return max(found, key=lambda c: (c.created_at, c.attempt))

    def exit(self, name: str, code: int = 0, *, pod: str | None = None, reason: str = "") -> None:
        """The program of a running container ends now."""
        container = self.container(name, pod)
        if container.state is not ContainerState.RUNNING:
            raise LookupError(f"container {name!r} is {container.state.value}, it cannot exit")
        self._end(container, code, reason)

    def lose(self, name: str, pod: str | None = None) -> None:
        """The runtime cannot tell any more what became of the container."""
        container = self.container(name, pod)
        self._cancel_timer(container)
        container.state = ContainerState.UNKNOWN

    def log(self, name: str, text: str, *, pod: str | None = None, stream: str = "stdout") -> None:
        """The program writes a line."""
        write_log(self.container(name, pod), self.clock.now_ns(), text, stream)

    # -- the port

    async def create_container(
        self, sandbox_id: str, config: cri_pb2.ContainerConfig, sandbox_config: cri_pb2.PodSandboxConfig
    ) -> str:
        name, uid = config.metadata.name, sandbox_config.metadata.uid
        args = {"sandbox_id": sandbox_id, "config": config, "sandbox_config": sandbox_config}
        await self._enter("create_container", Subject(name=name, pod_uid=uid), args=args)
        box = self.sandboxes.get(sandbox_id)
        if box is None:
            raise CriNotFound(f'failed to find sandbox id "{sandbox_id}": not found')
        if box.state is not SandboxState.READY:
            raise CriNotFound(f"failed to get sandbox container task: no running task found: {sandbox_id} not found")
        if not config.HasField("metadata"):
            raise CriError("container config must include metadata")
        own = cri_pb2.ContainerConfig.FromString(config.SerializeToString())
        container = MemoryContainer(
            id=self._new_id("container"),
            sandbox=box,
            config=own,
            image=MemoryImage(id=""),
            behaviour=Behaviour(),
            created_at=0,
        )
        self._reserve("container", container.key, container.id)
        try:
            found = self._find_image(config.image.image)
            if found is None:
                raise CriNotFound(f'failed to resolve image "{config.image.image}": not found')
            container.image = found
            container.behaviour = self._behaviour_of(container)
            await self._spend(container.behaviour.create_takes, self.request_timeout)
            if container.behaviour.create_error is not None:
                raise container.behaviour.create_error
        except BaseException:
            self._reserved.pop(container.key)
            raise
        if config.linux.HasField("resources"):
            container.resources = own.linux.resources
        # Jumping time stands still while the agent works; a runtime's clock never does.
        container.created_at = self._last_created = max(self.clock.now_ns(), self._last_created + 1)
        self.containers[container.id] = box.containers[container.id] = container
        self._containers_of_pod.add(own.labels, container.id, container)
        self._tell(container.id, EventKind.CREATED, box)
        return container.id

    async def start_container(self, container_id: str) -> None:
        await self._enter("start_container", self._about(container_id))
        container = self._known(container_id)
        if container.state is not ContainerState.CREATED:
            state = container.state.name
            raise CriError(
                f'failed to set starting state for container "{container_id}": container is in CONTAINER_{state} state'
            )
        if container.starting:
            raise CriError(f'container "{container_id}" is already in starting state')
        container.starting = True
        try:
            if container.sandbox.state is not SandboxState.READY:
                raise CriError(f'sandbox container "{container.sandbox.id}" is not running')
            await self._spend(container.behaviour.start_takes, self.request_timeout)
            if container.behaviour.start_error is not None:
                raise container.behaviour.start_error
            self._open_log(container)
        except (CallTimedOut, RuntimeDown, asyncio.CancelledError):
            raise
        except CriError as error:
            # containerd turns a container that could not start into an exited one.
            container.state = ContainerState.EXITED
            container.finished_at = self.clock.now_ns()
            container.exit_code, container.reason, container.message = START_FAILED, "StartError", str(error)
            raise
        finally:
            container.starting = False
        self._begin(container)

    async def stop_container(self, container_id: str, timeout: int) -> None:
        deadline = self.request_timeout + timeout
        about = self._about(container_id)
        await self._enter("stop_container", about, args={"timeout": timeout}, deadline=deadline)
        container = self.containers.get(container_id)
        if container is None or container.state not in (ContainerState.RUNNING, ContainerState.UNKNOWN):
            return
        if container.state is ContainerState.UNKNOWN or timeout <= 0:
            self._kill(container)
            return
        self._signal(container)
        stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        container.waiters.append(stopped)
        try:
            if container.state is ContainerState.RUNNING:
                await self._wait(stopped, float(timeout))
        except CallTimedOut:
            self._kill(container)
        finally:
            if stopped in container.waiters:
                container.waiters.remove(stopped)

    async def remove_container(self, container_id: str) -> None:
        await self._enter("remove_container", self._about(container_id))
        container = self.containers.get(container_id)
        if container is None:
            return
        if container.starting:
            raise CriError(f'failed to set removing state for container "{container_id}": it is in starting state')
        self._kill(container)
        self._remove_container(container)

    async def container_status(self, container_id: str) -> ContainerStatus:
        await self._enter("container_status", self._about(container_id))
        return self._container_status(self._known(container_id))

    async def list_containers(
        self,
        *,
        pod_uid: str | None = None,
        id: str | None = None,
        sandbox_id: str | None = None,
        running_only: bool = False,
    ) -> Sequence[ContainerRecord]:
        args = {"sandbox_id": sandbox_id, "running_only": running_only}
        await self._enter("list_containers", Subject(id=id or "", pod_uid=pod_uid or ""), args=args)
        return [_record(c) for c in self._select(pod_uid, id, sandbox_id, running_only)]

    async def update_container_resources(
        self,
        container_id: str,
        resources: cri_pb2.LinuxContainerResources,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        args = {"resources": resources, "annotations": annotations}
        await self._enter("update_container_resources", self._about(container_id), args=args)
        container = self._known(container_id)
        if container.state not in (ContainerState.CREATED, ContainerState.RUNNING):
            raise CriError(f'container "{container_id}" is not in created or running state')
        merged = cri_pb2.LinuxContainerResources()
        if container.resources is not None:
            merged.CopyFrom(container.resources)
        merged.MergeFrom(resources)  # a figure of 0 in the request leaves the old one, as in containerd
        container.resources = merged

    async def reopen_container_log(self, container_id: str) -> None:
        await self._enter("reopen_container_log", self._about(container_id))
        container = self._known(container_id)
        if container.state is not ContainerState.RUNNING:
            raise CriError("container is not running")
        close_log(container)
        self._open_log(container)

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout: int = 0) -> ExecResult:
        args = {"command": tuple(command), "timeout": timeout}
        deadline = self.request_timeout + timeout if timeout > 0 else None
        await self._enter("exec_sync", self._about(container_id), args=args, deadline=deadline)
        container = self._running(container_id, "failed to exec in container: ")
        script = self._exec_script(container, command)
        if timeout > 0 and script.takes > timeout:
            await self._spend(timeout)
            raise ExecTimedOut(f"failed to exec in container: timeout {timeout}s exceeded: context deadline exceeded")
        try:
            await self._spend(script.takes)
        except asyncio.CancelledError:
            if container.state is ContainerState.RUNNING:
                self.execs_given_up.append(container.name)
            raise
        if script.error is not None:
            raise script.error
        return script.result

    async def exec(
        self,
        container_id: str,
        command: Sequence[str],
        *,
        tty: bool = False,
        stdin: bool = False,
        stdout: bool = True,
        stderr: bool = True,
    ) -> str:
        args = {"command": tuple(command), "tty": tty, "stdin": stdin, "stdout": stdout, "stderr": stderr}
        await self._enter("exec", self._about(container_id), args=args)
        self._running(container_id, "")
        return f"http://127.0.0.1:1/exec/{container_id[:8]}"

    async def attach(
        self,
        container_id: str,
        *,
        tty: bool = False,
        stdin: bool = False,
        stdout: bool = True,
        stderr: bool = True,
    ) -> str:
        args = {"tty": tty, "stdin": stdin, "stdout": stdout, "stderr": stderr}
        await self._enter("attach", self._about(container_id), args=args)
        self._running(container_id, "")
        return f"http://127.0.0.1:1/attach/{container_id[:8]}"

    async def checkpoint_container(self, container_id: str, location: str, timeout: int = 0) -> None:
        args = {"location": location, "timeout": timeout}
        await self._enter("checkpoint_container", self._about(container_id), args=args)
        if not self.checkpoints_supported:
            raise Unimplemented("method CheckpointContainer not implemented")
        self._running(container_id, "")

    # -- inside

    def _find_image(self, name: str) -> MemoryImage | None:
        raise NotImplementedError

    def _about(self, container_id: str) -> Subject:
        container = self.containers.get(container_id)
        if container is None:
            return Subject(id=container_id)
        return Subject(id=container_id, name=container.name, pod_uid=container.sandbox.pod_uid)

    def _known(self, container_id: str) -> MemoryContainer:
        container = self.containers.get(container_id)
        if container is None:
            raise CriNotFound(f'an error occurred when try to find container "{container_id}": not found')
        return container

    def _running(self, container_id: str, prefix: str) -> MemoryContainer:
        container = self._known(container_id)
        if container.state is not ContainerState.RUNNING:
            raise CriError(f"{prefix}container is in CONTAINER_{container.state.name} state")
        return container

    def _behaviour_of(self, container: MemoryContainer) -> Behaviour:
        facts = {
            "name": (container.name,),
            "image": (container.config.image.image, container.config.image.user_specified_image, *container.image.tags),
            "pod": (container.sandbox.name, container.sandbox.pod_uid),
            "attempt": (container.attempt,),
        }
        for wanted, behaviour in reversed(self._behaviours):
            if all(value in facts[key] for key, value in wanted.items()):
                return behaviour
        return self._usual(container)

    def _usual(self, container: MemoryContainer) -> Behaviour:
        """What containers do that no program matches."""
        return Behaviour()

    def _exec_script(self, container: MemoryContainer, command: Sequence[str]) -> Exec:
        for name, wanted, script in reversed(self._execs):
            if name in (None, container.name) and wanted in (None, tuple(command)):
                return script(container, command) if callable(script) else script
        return Exec()

    def _begin(self, container: MemoryContainer) -> None:
        behaviour = container.behaviour
        container.state = ContainerState.RUNNING
        container.started_at = self.clock.now_ns()
        self._tell(container.id, EventKind.STARTED, container.sandbox)
        for line in behaviour.output:
            write_log(container, self.clock.now_ns(), line, "stdout")
        if behaviour.exits_after is not None:
            code, reason = (KILLED, "OOMKilled") if behaviour.oom else (behaviour.exit_code, "")
            self.end_later(container, behaviour.exits_after, code, reason)

    def _signal(self, container: MemoryContainer) -> None:
        """Deliver the stop signal, once; the program ends when its behaviour says so."""
        if container.signalled:
            return
        container.signalled = True
        delay = container.behaviour.stops_after
        if delay is not None:
            self.end_later(container, delay, container.behaviour.stop_code, "")

    def end_later(self, container: MemoryContainer, seconds: float, code: int, reason: str) -> None:
        self._cancel_timer(container)
        loop = asyncio.get_running_loop()
        container.timer = loop.call_later(seconds, self._end, container, code, reason)

    def _kill(self, container: MemoryContainer) -> None:
        if container.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
            self._end(container, KILLED, "")

    def _end(self, container: MemoryContainer, code: int, reason: str) -> None:
        self._cancel_timer(container)
        close_log(container)
        container.state = ContainerState.EXITED
        container.finished_at = self.clock.now_ns()
        container.exit_code = code
        container.reason = reason or ("Completed" if code == 0 else "Error")
        for waiter in container.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._tell(container.id, EventKind.STOPPED, container.sandbox)

    def _cancel_timer(self, container: MemoryContainer) -> None:
        if container.timer is not None:
            container.timer.cancel()
            container.timer = None

    def _remove_container(self, container: MemoryContainer) -> None:
        container.removed = True
        del self.containers[container.id]
        del container.sandbox.containers[container.id]
        self._containers_of_pod.remove(container.config.labels, container.id)
        self._reserved.pop(container.key)
        self._tell(container.id, EventKind.DELETED, container.sandbox)

    def _select(
        self, pod_uid: str | None, id: str | None, sandbox_id: str | None, running_only: bool
    ) -> list[MemoryContainer]:
        found: Iterable[MemoryContainer] = self._containers_of_pod.of(pod_uid) if pod_uid else self.containers.values()
        return [
            c
            for c in found
            if (not id or c.id == id)
            and (not sandbox_id or c.sandbox.id == sandbox_id)
            and (not running_only or c.state is ContainerState.RUNNING)
        ]

    def _container_status(self, c: MemoryContainer) -> ContainerStatus:
        return ContainerStatus(
            id=c.id,
            name=c.name,
            attempt=c.attempt,
            state=c.state,
            created_at=c.created_at,
            started_at=c.started_at,
            finished_at=c.finished_at,
            exit_code=c.exit_code,
            image=c.image.tags[0] if c.image.tags else c.config.image.image,
            image_ref=c.image.digests[0] if c.image.digests else c.image.id,
            image_id=c.image.id,
            reason=c.reason,
            message=c.message,
            labels=dict(c.config.labels),
            annotations=dict(c.config.annotations),
            mounts=tuple(mount_record(mount) for mount in c.config.mounts),
            log_path=c.log_path,
            resources=linux_resources(c.resources) if c.resources is not None else None,
        )

    def _open_log(self, container: MemoryContainer) -> None:
        if self.write_logs:
            open_log(container)


def _record(c: MemoryContainer) -> ContainerRecord:
    labels = dict(c.config.labels)
    return ContainerRecord(
        id=c.id,
        sandbox_id=c.sandbox.id,
        pod_uid=labels.get("io.kubernetes.pod.uid", ""),
        pod_name=labels.get("io.kubernetes.pod.name", ""),
        pod_namespace=labels.get("io.kubernetes.pod.namespace", ""),
        name=labels.get("io.kubernetes.container.name", ""),
        attempt=c.attempt,
        state=c.state,
        created_at=c.created_at,
        image=c.config.image.image,
        image_ref=c.image.id,
        image_id=c.image.id,
        labels=labels,
        annotations=dict(c.config.annotations),
    )
