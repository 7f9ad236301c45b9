"""Starting one container: back-off, image, config, create, start, hook; with the reason when it fails.

Every failure becomes a `StartError` whose problem has the waiting reason users see; its event is published here,
once. What to start is decided by `plan.py`; how configs look is in the spec builders.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from pykubelet.api.types import EphemeralContainer, LifecycleHandler, Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.port import PodFolders
from pykubelet.images.pull import ImageError, ImagePuller
from pykubelet.kit.clock import Clock
from pykubelet.model.container_keys import restart_count_of
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.model.events import EventSink
from pykubelet.model.pod import AnyContainer, ContainerKind, log_form, uid_of
from pykubelet.model.problems import CreateFailed, HookFailed, PullFailed
from pykubelet.model.reasons import (
    CREATE_CONTAINER_CONFIG_ERROR,
    CREATE_CONTAINER_ERROR,
    NORMAL,
    RUN_CONTAINER_ERROR,
    WARNING,
)
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.recorder import LifeRecorder, Step
from pykubelet.runtime.backoff import CrashBackoff
from pykubelet.runtime.errors import ConfigProblem, StartError
from pykubelet.runtime.hooks import HookError
from pykubelet.runtime.stop import Stopper, Stopping
from pykubelet.volumes.image_volumes import ImageVolumes
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

LOG_NAME = re.compile(r"^(\d+)\.log")


class ContainerRequest(Struct, frozen=True, kw_only=True):
    """What the spec builder needs to know beyond the pod itself."""

    image_ref: str
    restart_count: int
    pod_ips: tuple[str, ...]
    target_id: str = ""
    """Container whose process namespace an ephemeral container joins."""


class SpecBuilder(Protocol):
    async def sandbox(self, pod: Pod, attempt: int) -> cri_pb2.PodSandboxConfig: ...

    async def container(
        self, pod: Pod, kind: ContainerKind, container: AnyContainer, request: ContainerRequest
    ) -> cri_pb2.ContainerConfig:
        """The container's config; raises ConfigProblem when something it refers to is missing or wrong."""
        ...


class PostStart(Protocol):
    async def run(self, pod: Pod, container: AnyContainer, container_id: str, hook: LifecycleHandler) -> None: ...


class SandboxInUse(Struct, kw_only=True):
    """The sandbox new containers go into."""

    id: str
    config: cri_pb2.PodSandboxConfig
    ips: tuple[str, ...]
    images: dict[str, asyncio.Task[str | PykubeletError]] = field(default_factory=dict)
    """Images that are being looked for since the sandbox was begun, by container name."""


class ContainerStarter:
    def __init__(
        self,
        *,
        cri: CriClient,
        images: ImagePuller,
        specs: SpecBuilder,
        folders: PodFolders,
        hooks: PostStart,
        stopper: Stopper,
        backoff: CrashBackoff,
        events: EventSink,
        recorder: LifeRecorder,
        clock: Clock,
        image_volumes: ImageVolumes | None = None,
    ) -> None:
        self._cri = cri
        self._images = images
        self._image_volumes = image_volumes or ImageVolumes()
        self._specs = specs
        self._folders = folders
        self._hooks = hooks
        self._stopper = stopper
        self._backoff = backoff
        self._events = events
        self._recorder = recorder
        self._clock = clock

    async def find_image(
        self, pod: Pod, kind: ContainerKind, container: AnyContainer, sandbox: cri_pb2.PodSandboxConfig
    ) -> str | PykubeletError:
        """The image of a container that starts later; a failure is kept until then."""
        try:
            return await self._image(pod, kind, container, sandbox)
        except PykubeletError as error:
            return error

    async def find_volume_images(self, pod: Pod, sandbox: cri_pb2.PodSandboxConfig, handler: str) -> None:
        """Images of the pod's image volumes; failures are kept for when a container that mounts one is started."""
        await self._image_volumes.fetch(self._images, pod, sandbox, handler)

    async def start(
        self,
        pod: Pod,
        kind: ContainerKind,
        container: AnyContainer,
        sandbox: SandboxInUse,
        seen: PodRuntimeStatus,
    ) -> str:
        """Start the container; its id. Raises StartError, or RuntimeDown when nobody is to blame."""
        name = container.name or ""
        ended = (c for c in seen.runs_of(name) if c.state is ContainerState.EXITED)
        crashed = self._backoff.check(pod, container, next(ended, None), self._clock.now())
        if crashed is not None:
            text = f"Back-off restarting failed container {name} in pod {log_form(pod)}"
            self._publish(pod, kind, name, WARNING, "BackOff", text)
            self._recorder.note(uid_of(pod), Step.BACKOFF, name, reason=crashed.reason, message=crashed.message)
            raise StartError(crashed)
        for error in self._image_volumes.problems(pod, container):
            raise self._image_failed(pod, kind, name, error) from error
        image_ref = await self._found_image(pod, kind, container, sandbox)
        count = self._restart_count(pod, name, seen.container(name))
        request = ContainerRequest(
            image_ref=image_ref,
            restart_count=count,
            pod_ips=sandbox.ips,
            target_id=self._target(pod, kind, container, seen),
        )
        container_id = await self._create(pod, kind, container, sandbox, request)
        await self._run(pod, kind, name, container_id)
        self._link_log(pod, name, container_id, count)
        await self._post_start(pod, kind, container, container_id)
        return container_id

    # --- steps ----------------------------------------------------------------------------------

    async def _image(
        self, pod: Pod, kind: ContainerKind, container: AnyContainer, sandbox: cri_pb2.PodSandboxConfig
    ) -> str:
        path = kind.field_path(container.name or "")
        return await self._images.ensure_image(
            pod, container.image or "", container.image_pull_policy, sandbox_config=sandbox, field_path=path
        )

    async def _found_image(self, pod: Pod, kind: ContainerKind, container: AnyContainer, sandbox: SandboxInUse) -> str:
        name = container.name or ""
        looking = sandbox.images.pop(name, None)
        try:
            found = await (looking or self._image(pod, kind, container, sandbox.config))
            if isinstance(found, PykubeletError):
                raise found
            return found
        except RuntimeDown:
            raise
        except PykubeletError as error:
            raise self._image_failed(pod, kind, name, error) from error

    async def _create(
        self,
        pod: Pod,
        kind: ContainerKind,
        container: AnyContainer,
        sandbox: SandboxInUse,
        request: ContainerRequest,
    ) -> str:
        name = container.name or ""
        with self._recorder.step(uid_of(pod), Step.CREATE, name):
            try:
                config = await self._specs.container(pod, kind, container, request)
            except ConfigProblem as error:
                raise self._failed(pod, kind, name, CREATE_CONTAINER_CONFIG_ERROR, error) from error
            try:
                self._folders.make_container_logs(pod, name)
            except OSError as error:
                raise self._failed(pod, kind, name, CREATE_CONTAINER_CONFIG_ERROR, error) from error
            try:
                container_id = await self._cri.create_container(sandbox.id, config, sandbox.config)
            except RuntimeDown:
                raise
            except CriError as error:
                raise self._failed(pod, kind, name, CREATE_CONTAINER_ERROR, error) from error
        self._publish(pod, kind, name, NORMAL, "Created", "Container created")
        return container_id

    async def _run(self, pod: Pod, kind: ContainerKind, name: str, container_id: str) -> None:
        with self._recorder.step(uid_of(pod), Step.START, name):
            try:
                await self._cri.start_container(container_id)
            except RuntimeDown:
                raise
            except CriError as error:
                raise self._failed(pod, kind, name, RUN_CONTAINER_ERROR, error) from error
        self._publish(pod, kind, name, NORMAL, "Started", "Container started")

    async def _post_start(self, pod: Pod, kind: ContainerKind, container: AnyContainer, container_id: str) -> None:
        hook = container.lifecycle.post_start if container.lifecycle is not None else None
        if hook is None:
            return
        name = container.name or ""
        try:
            with self._recorder.step(uid_of(pod), Step.HOOK, name):
                await self._hooks.run(pod, container, container_id, hook)
        except HookError as error:
            self._publish(pod, kind, name, WARNING, "FailedPostStartHook", "PostStartHook failed")
            status = ContainerStatus(id=container_id, name=name, state=ContainerState.RUNNING)
            doomed = Stopping(status=status, container=container, kind=kind, message="FailedPostStartHook")
            await self._stopper.stop_container(pod, doomed)
            raise StartError(HookFailed(container=name, text=str(error))) from error

    def _link_log(self, pod: Pod, name: str, container_id: str, count: int) -> None:
        """For log collectors only: the container runs, and its hook must run too."""
        try:
            log = self._folders.make_container_logs(pod, name) / f"{count}.log"
            self._folders.link_log(pod, name, container_id, Path(log))
        except OSError as error:
            logger.warning(
                "a container's log cannot be linked for log collectors",
                extra={"pod": log_form(pod), "container": name, "problem": str(error)},
            )

    # --- small things ---------------------------------------------------------------------------

    def _target(self, pod: Pod, kind: ContainerKind, container: AnyContainer, seen: PodRuntimeStatus) -> str:
        """The newest container of the name an ephemeral one is to look into, whether it runs or not."""
        wanted = container.target_container_name if isinstance(container, EphemeralContainer) else None
        if not wanted:
            return ""
        target = seen.container(wanted)
        if target is None:
            error = ConfigProblem(f"unable to find target container {wanted}")
            raise self._failed(pod, kind, container.name or "", CREATE_CONTAINER_CONFIG_ERROR, error)
        return target.id

    def _restart_count(self, pod: Pod, name: str, newest: ContainerStatus | None) -> int:
        """One more than the last; after the runtime lost the containers, the log files remember the number."""
        if newest is not None:
            return restart_count_of(newest) + 1
        try:
            return next_number(self._folders.log_files(pod, name))
        except OSError as error:
            logger.warning("restart count begins at 0: %s", error, extra={"pod": log_form(pod), "container": name})
            return 0

    def _image_failed(self, pod: Pod, kind: ContainerKind, name: str, error: PykubeletError) -> StartError:
        problem = error.problem if isinstance(error, ImageError) else PullFailed(text=str(error))
        self._publish(pod, kind, name, WARNING, "Failed", f"Error: {problem.reason}")
        return StartError(replace(problem, container=name))

    def _failed(self, pod: Pod, kind: ContainerKind, name: str, reason: str, error: Exception) -> StartError:
        self._publish(pod, kind, name, WARNING, "Failed", f"Error: {error}")
        missing = error.missing if isinstance(error, ConfigProblem) else ""
        return StartError(CreateFailed(container=name, reason=reason, text=str(error), missing=missing))

    def _publish(self, pod: Pod, kind: ContainerKind, name: str, severity: str, reason: str, message: str) -> None:
        self._events.pod_event(pod, severity, reason, message, field_path=kind.field_path(name))


def next_number(log_names: Sequence[str]) -> int:
    """The restart count after those whose log files are there."""
    numbers = [int(match.group(1)) for name in log_names if (match := LOG_NAME.match(name))]
    return max(numbers) + 1 if numbers else 0
