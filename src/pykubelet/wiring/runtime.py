"""What runs containers: images, hooks, start, stop, removal and the manager over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.images.build import Images
from pykubelet.images.build import build as build_images
from pykubelet.images.gc import wanted_images
from pykubelet.images.provider import ServiceAccounts
from pykubelet.kit.clock import Clock
from pykubelet.kit.memory import give_back
from pykubelet.kit.metrics import Registry
from pykubelet.model.events import EventSink
from pykubelet.model.runtime_status import PodRuntimeStatus
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeRecorder
from pykubelet.runtime.backoff import CrashBackoff, crash_delays
from pykubelet.runtime.gc import ContainerGc, ContainerRemover, GcPolicy
from pykubelet.runtime.hooks import HookCaller, LifecycleHooks
from pykubelet.runtime.logs_rotate import LogRotation, RotationPolicy
from pykubelet.runtime.manager import Resizer, RuntimeHandlers, RuntimeManager
from pykubelet.runtime.spec.builder import PodSpecBuilder
from pykubelet.runtime.spec.collaborators import References
from pykubelet.runtime.start import ContainerStarter
from pykubelet.runtime.stop import Stopper
from pykubelet.settings.settings import Settings
from pykubelet.volumes.image_volumes import ImageVolumes


class PodLook(Protocol):
    async def inspect(self, uid: str) -> PodRuntimeStatus: ...


class RuntimeNeeds(Struct, frozen=True, kw_only=True):
    """What the runtime parts take from the rest of the agent."""

    ctx: Context
    specs: PodSpecBuilder
    handlers: RuntimeHandlers
    resizer: Resizer
    references: References
    accounts: ServiceAccounts | None
    image_volumes: ImageVolumes
    look: PodLook
    table: PodTable
    events: EventSink
    recorder: LifeRecorder
    metrics: Registry


class RuntimeParts(Struct, frozen=True, kw_only=True):
    manager: RuntimeManager
    images: Images
    remover: ContainerRemover
    backoff: CrashBackoff
    stopper: Stopper
    clock: Clock

    async def forget(self) -> None:
        """A chore: crashes long past, and memory that nothing uses any more."""
        self.backoff.collect(self.clock.now())
        give_back()


def crash_backoff(settings: Settings) -> CrashBackoff:
    reduced = settings.gates.enabled("ReduceDefaultCrashLoopBackOffDecay")
    # None with gate KubeletCrashLoopBackOffMax off; else what the operator chose, or the default.
    chosen = settings.config.runtime.crash_loop_back_off.max_container_restart_period
    initial, longest = crash_delays(chosen, reduced=reduced)
    return CrashBackoff(initial=initial, maximum=longest)


def runtime_parts(settings: Settings, edges: Edges, needs: RuntimeNeeds) -> RuntimeParts:
    clock, cri, events, recorder = edges.clock, edges.cri, needs.events, needs.recorder
    images = build_images(
        needs.ctx,
        cri,
        edges.paths.root,
        secrets=needs.references,
        accounts=needs.accounts,
        also_used=lambda: wanted_images(w.pod for w in needs.table.workers() if w.pod is not None and not w.is_ending),
    )

    async def pod_ip(uid: str) -> str:
        """A postStart hook may run before anybody looked at the new sandbox: ask the runtime then."""
        ips = needs.table.runtime_status(uid).ips or (await needs.look.inspect(uid)).ips
        return ips[0] if ips else ""

    http_hooks = HookCaller(network=edges.network, pod_ip=pod_ip, events=events, metrics=needs.metrics)
    hooks = LifecycleHooks(cri=cri, http=http_hooks, clock=clock, metrics=needs.metrics)
    stopper = Stopper(cri=cri, hooks=hooks, events=events, recorder=recorder, clock=clock)
    backoff = crash_backoff(settings)
    starter = ContainerStarter(
        cri=cri,
        images=images.puller,
        specs=needs.specs,
        folders=edges.folders,
        hooks=hooks,
        stopper=stopper,
        backoff=backoff,
        events=events,
        recorder=recorder,
        clock=clock,
        image_volumes=needs.image_volumes,
    )
    remover = ContainerRemover(cri=cri, links=edges.folders, pod_logs=edges.paths.pod_logs)
    manager = RuntimeManager(
        cri=cri,
        starter=starter,
        stopper=stopper,
        remover=remover,
        specs=needs.specs,
        handlers=needs.handlers,
        resizer=needs.resizer,
        table=needs.table,
        events=events,
        recorder=recorder,
    )
    needs.specs.check_resolv_conf()
    return RuntimeParts(manager=manager, images=images, remover=remover, backoff=backoff, stopper=stopper, clock=clock)


def log_rotation(settings: Settings, edges: Edges) -> LogRotation:
    logs = settings.config.container_logs
    policy = RotationPolicy(
        max_bytes=logs.max_size_bytes, max_files=logs.max_files, workers=logs.max_workers, period=logs.monitor_interval
    )
    return LogRotation(cri=edges.cri, clock=edges.clock, policy=policy)


def container_gc(
    settings: Settings,
    edges: Edges,
    side: RuntimeParts,
    *,
    table: PodTable,
    events: EventSink,
    sources_ready: Callable[[], bool],
) -> ContainerGc:
    keep = settings.flags.container_gc
    return ContainerGc(
        cri=edges.cri,
        remover=side.remover,
        fate=table,
        statuses=table,
        sources_ready=sources_ready,
        events=events,
        clock=edges.clock,
        pod_logs=edges.paths.pod_logs,
        container_logs=edges.paths.container_logs,
        policy=GcPolicy(min_age=keep.min_age, max_per_container=keep.max_per_container, max_total=keep.max_total),
        busy=table.any_terminating,
    )
