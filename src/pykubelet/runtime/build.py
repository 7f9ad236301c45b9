"""Build what runs containers: images, specs, start, stop, garbage collection, log rotation, and the manager over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from pykubelet.cm.build import ContainerManager
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.context import Context
from pykubelet.edges import Edges
from pykubelet.images.build import Images
from pykubelet.images.build import build as build_images
from pykubelet.images.gc import wanted_images
from pykubelet.images.provider import ServiceAccounts
from pykubelet.kit.clock import Clock
from pykubelet.kit.memory import release_unused
from pykubelet.kit.tasks import Services
from pykubelet.pleg.pleg import Pleg
from pykubelet.pods.table import PodTable
from pykubelet.runtime.backoff import CrashBackoff, crash_delays
from pykubelet.runtime.gc import ContainerGc, ContainerRemover, GcPolicy
from pykubelet.runtime.hooks import HttpHooks, LifecycleHooks
from pykubelet.runtime.logs_rotate import LogRotation, RotationPolicy
from pykubelet.runtime.manager import RuntimeManager
from pykubelet.runtime.pacing import Pacer, Width
from pykubelet.runtime.resize import PodResizer
from pykubelet.runtime.spec.builder import EnvSources, PodSpecBuilder
from pykubelet.runtime.spec.env import References
from pykubelet.runtime.start import ContainerStarter, RuntimeHandlers, SandboxStarter
from pykubelet.runtime.stop import Stopper
from pykubelet.settings.settings import Settings
from pykubelet.volumes.build import Volumes


class ContainerObjects(Struct, frozen=True, kw_only=True):
    """Objects of the API server that containers are made from, or what stands in for them."""

    references: References
    runtime_classes: RuntimeHandlers
    accounts: ServiceAccounts | None
    """None without an API server."""
    host_ips: Callable[[], Sequence[str]]
    """The node's addresses as containers learn them."""


class ContainerRuntime(Struct, frozen=True, kw_only=True):
    manager: RuntimeManager
    images: Images
    stopper: Stopper
    backoff: CrashBackoff
    pacer: Pacer
    gc: ContainerGc
    clock: Clock
    services: Services

    async def tidy(self) -> None:
        """Forget crashes long past, and give unused memory back to the system. A chore of housekeeping."""
        self.backoff.collect(self.clock.now())
        release_unused(self.clock.monotonic())


def build(
    ctx: Context,
    edges: Edges,
    spec: NodeSpec,
    table: PodTable,
    pleg: Pleg,
    cm: ContainerManager,
    volumes: Volumes,
    objects: ContainerObjects,
    sources_ready: Callable[[], bool],
) -> ContainerRuntime:
    cri = edges.cri
    images = _images(ctx, edges, table, objects)
    specs = _specs(ctx, edges, spec, cm, volumes, objects)
    pacer = Pacer(ctx, Width(edges.machine.cpus, ctx.clock, edges.idle_seconds))
    stopper = Stopper(ctx, cri, _hooks(ctx, edges, table, pleg), pacer)
    backoff = _crash_backoff(ctx.settings)
    containers = ContainerStarter(
        ctx,
        cri,
        images=images.puller,
        image_volumes=volumes.image_volumes,
        specs=specs,
        folders=edges.folders,
        stopper=stopper,
        backoff=backoff,
    )
    remover = ContainerRemover(cri=cri, folders=edges.folders, pod_logs=edges.paths.pod_logs)
    manager = RuntimeManager(
        ctx,
        sandboxes=SandboxStarter(
            ctx, cri, specs=specs, handlers=objects.runtime_classes, containers=containers, pacer=pacer
        ),
        containers=containers,
        stopper=stopper,
        remover=remover,
        resizer=_resizer(ctx, edges, spec, cm),
        table=table,
    )
    gc = ContainerGc(
        ctx,
        cri,
        table=table,
        remover=remover,
        container_logs=edges.paths.container_logs,
        policy=_gc_policy(ctx.settings),
        sources_ready=sources_ready,
    )
    rotation = LogRotation(cri=cri, clock=ctx.clock, policy=_rotation_policy(ctx.settings))
    services = Services(sinks=[stopper], managers=[gc, images.gc, rotation])
    return ContainerRuntime(
        manager=manager,
        images=images,
        stopper=stopper,
        backoff=backoff,
        pacer=pacer,
        gc=gc,
        clock=ctx.clock,
        services=services,
    )


def _specs(
    ctx: Context, edges: Edges, spec: NodeSpec, cm: ContainerManager, volumes: Volumes, objects: ContainerObjects
) -> PodSpecBuilder:
    specs = PodSpecBuilder(
        node=spec,
        folders=edges.folders,
        images=edges.cri,
        events=ctx.events,
        env=EnvSources(references=objects.references, volumes=volumes.manager, node=spec, host_ips=objects.host_ips),
        volumes=volumes.manager,
        resources=cm.container_resources,
        user_namespaces=cm.user_namespaces,
    )
    specs.check_resolv_conf()
    return specs


def _images(ctx: Context, edges: Edges, table: PodTable, objects: ContainerObjects) -> Images:
    def wanted() -> set[str]:
        return wanted_images(
            worker.pod for worker in table.workers() if worker.pod is not None and not worker.is_ending
        )

    root = edges.paths.root
    return build_images(ctx, edges.cri, root, secrets=objects.references, accounts=objects.accounts, also_used=wanted)


def _hooks(ctx: Context, edges: Edges, table: PodTable, pleg: Pleg) -> LifecycleHooks:
    async def pod_ip(uid: str) -> str:
        # A postStart hook may run before the new sandbox was inspected: ask the runtime then.
        ips = table.runtime_status(uid).ips or (await pleg.inspect(uid)).ips
        return ips[0] if ips else ""

    return LifecycleHooks(ctx, edges.cri, HttpHooks(ctx, edges.network, pod_ip))


def _resizer(ctx: Context, edges: Edges, spec: NodeSpec, cm: ContainerManager) -> PodResizer:
    return PodResizer(
        cri=edges.cri,
        groups=cm.cgroups,
        record=cm.allocation.actuation,
        node=spec,
        clock=ctx.clock,
        metrics=ctx.metrics,
        exclusive=cm.resource_managers.is_exclusive,
    )


def _crash_backoff(settings: Settings) -> CrashBackoff:
    reduced = settings.gates.enabled("ReduceDefaultCrashLoopBackOffDecay")
    # None with gate KubeletCrashLoopBackOffMax off; else what the operator chose, or the default.
    chosen = settings.config.runtime.crash_loop_back_off.max_container_restart_period
    initial, longest = crash_delays(chosen, reduced=reduced)
    return CrashBackoff(initial=initial, maximum=longest)


def _gc_policy(settings: Settings) -> GcPolicy:
    keep = settings.flags.container_gc
    return GcPolicy(min_age=keep.min_age, max_per_container=keep.max_per_container, max_total=keep.max_total)


def _rotation_policy(settings: Settings) -> RotationPolicy:
    logs = settings.config.container_logs
    return RotationPolicy(
        max_bytes=logs.max_size_bytes, max_files=logs.max_files, workers=logs.max_workers, period=logs.monitor_interval
    )
