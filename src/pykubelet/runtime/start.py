"""Starting a sandbox, and containers in it: back-off, image, config, create, start, hook.

Every failure becomes a `StartError` whose problem has the waiting reason users see; its event is published here,
once. What to start is decided by `plan.py`; how configs are made in the spec builders.
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

from pykubelet.api.types import EphemeralContainer, Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.host.port import PodFolders
from pykubelet.context import Context
from pykubelet.images.pull import ImageError, ImagePuller
from pykubelet.kit.tasks import Beginner, Wakeup, both
from pykubelet.model.container_keys import restart_count_of
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.model.lifecycle import newest_exited
from pykubelet.model.pod import (
    CRITICAL_PRIORITY,
    AnyContainer,
    ContainerKind,
    deletion_requested,
    log_form,
    uid_of,
    uses_host_network,
)
from pykubelet.model.problems import CreateFailed, HookFailed, PullFailed, SandboxFailed
from pykubelet.model.reasons import (
    CREATE_CONTAINER_CONFIG_ERROR,
    CREATE_CONTAINER_ERROR,
    NORMAL,
    RUN_CONTAINER_ERROR,
    WARNING,
)
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.recorder import Step
from pykubelet.runtime.backoff import CrashBackoff
from pykubelet.runtime.errors import ConfigProblem, StartError
from pykubelet.runtime.hooks import HookError
from pykubelet.runtime.pacing import Pacer, Rank
from pykubelet.runtime.plan import PodPlan
from pykubelet.runtime.spec.builder import PodSpecBuilder
from pykubelet.runtime.spec.container import ContainerRequest
from pykubelet.runtime.stop import Stopper, Stopping
from pykubelet.volumes.image_volumes import ImageVolumes
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

LOG_NAME = re.compile(r"^(\d+)\.log")


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
        ctx: Context,
        cri: CriClient,
        *,
        images: ImagePuller,
        image_volumes: ImageVolumes,
        specs: PodSpecBuilder,
        folders: PodFolders,
        stopper: Stopper,
        backoff: CrashBackoff,
    ) -> None:
        self._cri = cri
        self._images = images
        self._image_volumes = image_volumes
        self._specs = specs
        self._folders = folders
        self._stopper = stopper
        self._backoff = backoff
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._clock = ctx.clock

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
        observed: PodRuntimeStatus,
    ) -> str:
        """Start the container; its id. Raises StartError, or RuntimeDown."""
        name = container.name
        crashed = self._backoff.check(pod, container, newest_exited(observed, name), self._clock.now())
        if crashed is not None:
            text = f"Back-off restarting failed container {name} in pod {log_form(pod)}"
            self._publish(pod, kind, name, WARNING, "BackOff", text)
            self._recorder.note(uid_of(pod), Step.BACKOFF, name, reason=crashed.reason, message=crashed.message)
            raise StartError(crashed)
        for error in self._image_volumes.problems(pod, container):
            raise self._image_failed(pod, kind, name, error) from error
        image_ref = await self._found_image(pod, kind, container, sandbox)
        count = self._restart_count(pod, name, observed.container(name))
        request = ContainerRequest(
            image_ref=image_ref,
            restart_count=count,
            pod_ips=sandbox.ips,
            target_id=self._target(pod, kind, container, observed),
        )
        config = await self._config(pod, kind, container, request)
        async with self._stopper.pacer.turn(uid_of(pod), Rank.RESTART if count else Rank.CONTAINER):
            container_id = await self._create(pod, kind, name, sandbox, config)
            await self._run(pod, kind, name, container_id)
        self._link_log(pod, name, container_id, count)
        await self._post_start(pod, kind, container, container_id)
        return container_id

    # --- steps ----------------------------------------------------------------------------------

    async def _image(
        self, pod: Pod, kind: ContainerKind, container: AnyContainer, sandbox: cri_pb2.PodSandboxConfig
    ) -> str:
        path = kind.field_path(container.name)
        return await self._images.ensure_image(
            pod, container.image or "", container.image_pull_policy, sandbox_config=sandbox, field_path=path
        )

    async def _found_image(self, pod: Pod, kind: ContainerKind, container: AnyContainer, sandbox: SandboxInUse) -> str:
        name = container.name
        begun = sandbox.images.pop(name, None)
        try:
            found = await (begun or self._image(pod, kind, container, sandbox.config))
            if isinstance(found, PykubeletError):
                raise found
            return found
        except RuntimeDown:
            raise
        except PykubeletError as error:
            raise self._image_failed(pod, kind, name, error) from error

    async def _config(
        self, pod: Pod, kind: ContainerKind, container: AnyContainer, request: ContainerRequest
    ) -> cri_pb2.ContainerConfig:
        name = container.name
        try:
            config = await self._specs.container(pod, kind, container, request)
            self._folders.make_container_logs(pod, name)
        except (ConfigProblem, OSError) as error:
            failed = self._failed(pod, kind, name, CREATE_CONTAINER_CONFIG_ERROR, error)
            self._recorder.fail_with(uid_of(pod), Step.CREATE, name, failed)
            raise failed from error
        return config

    async def _create(
        self, pod: Pod, kind: ContainerKind, name: str, sandbox: SandboxInUse, config: cri_pb2.ContainerConfig
    ) -> str:
        with self._recorder.step(uid_of(pod), Step.CREATE, name):
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
        name = container.name
        try:
            with self._recorder.step(uid_of(pod), Step.HOOK, name):
                await self._stopper.hooks.run(pod, container, container_id, hook)
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

    def _target(self, pod: Pod, kind: ContainerKind, container: AnyContainer, observed: PodRuntimeStatus) -> str:
        """The newest container of the name an ephemeral one is to inspect, running or not."""
        wanted = container.target_container_name if isinstance(container, EphemeralContainer) else None
        if not wanted:
            return ""
        target = observed.container(wanted)
        if target is None:
            error = ConfigProblem(f"unable to find target container {wanted}")
            raise self._failed(pod, kind, container.name, CREATE_CONTAINER_CONFIG_ERROR, error)
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


class RuntimeHandlers(Protocol):
    async def handler_for(self, pod: Pod) -> str:
        """The runtime handler of the pod's RuntimeClass; '' for the default one."""
        ...

    def handler_now(self, pod: Pod) -> str | None:
        """The same as far as it is known without a request to the API server; None when it is not."""
        ...


class SandboxStarter:
    def __init__(
        self,
        ctx: Context,
        cri: CriClient,
        *,
        specs: PodSpecBuilder,
        handlers: RuntimeHandlers,
        containers: ContainerStarter,
        pacer: Pacer,
    ) -> None:
        self._cri = cri
        self._pacer = pacer
        self._specs = specs
        self._handlers = handlers
        self._containers = containers
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._without_sandbox: set[str] = set()
        """Pods whose sandbox could not be made when it was last tried."""

    def forget(self, uid: str) -> None:
        """Forget how the last try went."""
        self._without_sandbox.discard(uid)

    async def start(
        self, pod: Pod, observed: PodRuntimeStatus, plan: PodPlan, begin: Beginner, stepped: Wakeup
    ) -> SandboxInUse:
        """The sandbox for new containers, made if the plan says so. Raises StartError.

        Work for later steps is begun with `begin`; `stepped` is set once the sandbox is there.
        """
        try:
            config = await self._specs.sandbox(pod, plan.attempt)
        except ConfigProblem as error:
            raise self._failed(pod, error) from error
        if not plan.create_sandbox:
            await self._find_volume_images(pod, config)
            return SandboxInUse(id=plan.sandbox_id, config=config, ips=observed.ips)
        # The runtime prepares the network while images are looked for: neither needs the other, and no container
        # waits for the image of one behind it. One that ran before may be in back-off, which is judged when its turn
        # comes. Without a sandbox all this is given up, so it is not begun with every try.
        uid = uid_of(pod)
        images = {
            container.name: begin(self._containers.find_image(pod, kind, container, config))
            for kind, container in starts(plan)
            if observed.container(container.name) is None and uid not in self._without_sandbox
        }
        self._without_sandbox.add(uid)
        made, _ = await both(self._make(pod, config, stepped), self._find_volume_images(pod, config))
        return SandboxInUse(id=made[0], config=config, ips=made[1], images=images)

    async def _find_volume_images(self, pod: Pod, config: cri_pb2.PodSandboxConfig) -> None:
        if all(volume.image is None for volume in pod.spec.volumes):
            return
        try:
            handler = await self._handlers.handler_for(pod)
        except PykubeletError as error:
            raise self._failed(pod, error) from error
        await self._containers.find_volume_images(pod, config, handler)

    async def _make(self, pod: Pod, config: cri_pb2.PodSandboxConfig, stepped: Wakeup) -> tuple[str, tuple[str, ...]]:
        """Id and addresses of a new sandbox."""
        uid = uid_of(pod)
        try:
            handler = await self._handlers.handler_for(pod)
        except PykubeletError as error:
            failed = self._failed(pod, error)
            self._recorder.fail_with(uid, Step.SANDBOX, "", failed)
            raise failed from error
        # Not is_critical: every static pod is critical for eviction.
        rank = Rank.CRITICAL if (pod.spec.priority or 0) >= CRITICAL_PRIORITY else Rank.NEW
        async with self._pacer.turn(uid, rank, len(pod.spec.containers) + len(pod.spec.init_containers)):
            made = await self._run(pod, config, handler)
        self._without_sandbox.discard(uid)
        stepped.set()
        return made

    async def _run(self, pod: Pod, config: cri_pb2.PodSandboxConfig, handler: str) -> tuple[str, tuple[str, ...]]:
        with self._recorder.step(uid_of(pod), Step.SANDBOX):
            try:
                sandbox_id = await self._cri.run_pod_sandbox(config, handler)
            except RuntimeDown:
                raise
            except PykubeletError as error:
                raise self._failed(pod, error) from error
            return sandbox_id, () if uses_host_network(pod) else await self._addresses(pod, sandbox_id)

    async def _addresses(self, pod: Pod, sandbox_id: str) -> tuple[str, ...]:
        try:
            return (await self._cri.pod_sandbox_status(sandbox_id)).ips
        except CriError as error:
            text = f"Unable to get pod sandbox status: {error}"
            self._events.pod_event(pod, WARNING, "FailedPodSandBoxStatus", text)
            raise

    def _failed(self, pod: Pod, error: PykubeletError) -> StartError:
        problem = SandboxFailed(text=str(error))
        if not deletion_requested(pod):
            self._events.pod_event(pod, WARNING, "FailedCreatePodSandBox", problem.message)
        return StartError(problem)


def starts(plan: PodPlan) -> Sequence[tuple[ContainerKind, AnyContainer]]:
    """Containers in the order they start."""
    return [
        *((ContainerKind.EPHEMERAL, c) for c in plan.start_ephemeral),
        *((ContainerKind.INIT, c) for c in plan.start_init),
        *((ContainerKind.REGULAR, c) for c in plan.start_regular),
    ]


def next_number(log_names: Sequence[str]) -> int:
    """The restart count after those whose log files are there."""
    numbers = [int(match.group(1)) for name in log_names if (match := LOG_NAME.match(name))]
    return max(numbers) + 1 if numbers else 0
