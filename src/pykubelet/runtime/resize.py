"""Put changed resources into force for a pod that runs: its own cgroup, its containers, and the runtime's view of it.

Memory first, then cpu. For each: what grows, grows for the pod before its containers; what shrinks, shrinks for the
pod after them, so that no container is ever promised more than its pod has. The record shows at every moment how far
it got; a failure leaves the rest to the next try. Whether a resize is wanted at all is decided in `plan.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod, QuantityValue, ResourceRequirements
from pykubelet.clients.cri.port import CriClient
from pykubelet.cm.allocation import AllocationState
from pykubelet.cm.cgroups import PodCgroups
from pykubelet.cm.container_resources import ContainerResources
from pykubelet.cm.node_spec import NodeSpec
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.cgroups import CgroupLimits, milli_to_quota, milli_to_shares
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown, Unimplemented
from pykubelet.model.pod import AnyContainer, find_container, uid_of
from pykubelet.model.pod_resources import (
    amount_of,
    differing,
    effect_of,
    effective_resources,
)
from pykubelet.runtime.plan import ContainerResize, PodPlan
from pykubelet.runtime.spec.resources import container_resources, overhead_resources
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

NOT_IMPLEMENTED = "not implemented"
DURATION_BUCKETS_MS = (10.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0)


class ResizeProblem(PykubeletError):
    """A resize could not be put into force, or only in part. The text is for the pod's condition and event."""


class _Work(Struct, kw_only=True):
    """One resize on its way."""

    pod: Pod
    sandbox_id: str
    wanted: CgroupLimits
    current: CgroupLimits | None
    """What the pod's group has; changes with every step. None: the pod has no group of its own."""
    pod_changes: bool
    changes: list[ContainerResize] = field(default_factory=list)
    in_force: dict[str, ResourceRequirements] = field(default_factory=dict)


class PodResizer:
    def __init__(
        self,
        *,
        cri: CriClient,
        groups: PodCgroups,
        record: AllocationState,
        node: NodeSpec,
        clock: Clock,
        metrics: Registry,
        exclusive: Callable[[Pod, AnyContainer], bool] = lambda pod, container: False,
    ) -> None:
        """`exclusive`: whether a container owns its CPUs, which no quota may slow down."""
        self._exclusive = exclusive
        self._cri = cri
        self._groups = groups
        self._record = record
        self._node = node
        self._clock = clock
        self._sandbox_updates = True
        """Until the runtime says that it does not know the call."""
        self._duration = metrics.histogram(
            "kubelet_pod_resize_duration_milliseconds",
            "Time to put a resize into force.",
            ("success",),
            buckets=DURATION_BUCKETS_MS,
        )

    # --- the record -----------------------------------------------------------------------------

    def begin(self, pod: Pod) -> Mapping[str, ResourceRequirements]:
        """What is in force for the pod's containers, by name.

        A pod without any record is new, or ran under an agent that kept none: it counts as being what it should be.
        """
        in_force = self._record.get(uid_of(pod))
        if in_force is None:
            in_force = effect_of(pod)
            self._record.put(uid_of(pod), in_force)
        return in_force.containers

    def starting(self, pod: Pod, container: AnyContainer) -> None:
        """The container is about to be started with what the pod's spec says."""
        resources = effective_resources(pod.spec.resources, container)
        self._record.put_container(uid_of(pod), container.name, resources)

    def is_due(self, pod: Pod, plan: PodPlan) -> bool:
        """Whether `resize` has anything to do for this plan."""
        return bool(plan.resize) or self._pod_changes(pod, plan)

    def _pod_changes(self, pod: Pod, plan: PodPlan) -> bool:
        """Whether the pod as a whole gets other limits, be it only because a container starts with new ones."""
        in_force = self._record.get(uid_of(pod))
        if in_force is None:
            return False
        if any(each.needs_restart for each in plan.resize):
            return True
        if differing(pod.spec.resources, in_force.pod):
            return True
        for container in (*plan.start_init, *plan.start_regular):
            own = in_force.containers.get(container.name)
            if own is not None and differing(effective_resources(pod.spec.resources, container), own):
                return True
        return False

    # --- the resize -----------------------------------------------------------------------------

    async def resize(self, pod: Pod, plan: PodPlan, sandbox_id: str) -> None:
        """Raises ResizeProblem; RuntimeDown passes as it is."""
        begun = self._clock.monotonic()
        done = False
        try:
            await self._resize(pod, plan, sandbox_id)
            done = True
        except RuntimeDown:
            raise
        except (CriError, OSError) as error:
            raise ResizeProblem(str(error)) from error
        finally:
            self._duration.observe((self._clock.monotonic() - begun) * 1000, "true" if done else "false")

    async def _resize(self, pod: Pod, plan: PodPlan, sandbox_id: str) -> None:
        work = _Work(
            pod=pod,
            sandbox_id=sandbox_id,
            wanted=self._groups.wanted(pod),
            current=self._groups.current(pod),
            pod_changes=self._pod_changes(pod, plan),
            changes=[each for each in plan.resize if not each.needs_restart],
        )
        work.in_force = {each.name: each.actuated for each in work.changes}
        memory = [each for each in work.changes if "memory" in each.resources]
        if memory or work.pod_changes:
            await self._check_memory(work, memory)
            await self._step(work, "memory")
        if work.pod_changes or any("cpu" in each.resources for each in work.changes):
            await self._step(work, "cpu")
        if pod.spec.resources is not None:
            self._record.put_pod_level(uid_of(pod), pod.spec.resources)

    async def _step(self, work: _Work, name: str) -> None:
        """One resource, in the order that keeps every group within the one above it."""
        limit, request = _parts(work.wanted, name)
        now_limit, now_request = _parts(work.current or work.wanted, name)
        # Raise the limit before the request and lower it after: a request must never exceed its limit.
        if _is_more(_bound(limit, name), _bound(now_limit, name)):
            await self._change_pod(work, limit)
        if _share(request) > _share(now_request):
            await self._change_pod(work, request)
        for change in in_order([each for each in work.changes if name in each.resources], name):
            await self._change_container(work, change, name)
        if _share(request) < _share(now_request):
            await self._change_pod(work, request)
        if _is_more(_bound(now_limit, name), _bound(limit, name)):
            await self._change_pod(work, limit)

    async def _change_pod(self, work: _Work, limits: CgroupLimits) -> None:
        if work.current is None:
            return
        before, after = work.current, limits.over(work.current)
        # The runtime first: it may refuse, and then nothing has changed yet.
        await self._update_sandbox(work, after)
        try:
            await self._groups.change(work.pod, limits)
        except OSError:
            await self._update_sandbox(work, before)
            raise
        work.current = after

    async def _update_sandbox(self, work: _Work, limits: CgroupLimits) -> None:
        if not self._sandbox_updates:
            return
        overhead = overhead_resources(work.pod, self._node)
        try:
            await self._cri.update_pod_sandbox_resources(
                work.sandbox_id, overhead=overhead, resources=without_overhead(limits, work.pod, self._node)
            )
        except CriError as error:
            if not isinstance(error, Unimplemented) and NOT_IMPLEMENTED not in str(error):
                raise
            # Only runtimes that use it need it; a restarted agent tries again.
            self._sandbox_updates = False
            logger.info("the runtime does not support updates of sandbox resources", extra={"error": str(error)})

    async def _change_container(self, work: _Work, change: ContainerResize, name: str) -> None:
        found = find_container(work.pod, change.name)
        if found is None:
            return
        mixed = with_amount(work.in_force[change.name], change.wanted, name)
        container = msgspec.structs.replace(found[1], resources=mixed)
        resources = ContainerResources(exclusive_cpus=self._exclusive(work.pod, container))
        wanted = container_resources(work.pod, container, self._node, resources)
        await self._cri.update_container_resources(change.id, wanted)
        work.in_force[change.name] = mixed
        self._record.put_container(uid_of(work.pod), change.name, mixed)
        logger.info("container resized", extra={"container": change.name, "resource": name})

    # --- memory that is in use cannot be taken away ----------------------------------------------

    async def _check_memory(self, work: _Work, changes: Sequence[ContainerResize]) -> None:
        lowered = {each.name: limit for each in changes if (limit := lowered_limit(each))}
        pod_limit = work.wanted.memory_bytes
        now = work.current.memory_bytes if work.current is not None else pod_limit
        pod_lowered = work.current is not None and _is_more(now, pod_limit)
        if not lowered and not pod_lowered:
            return
        problems = []
        if pod_lowered:
            usage = self._groups.memory_usage(work.pod)
            if usage is None:
                problems.append("missing pod memory usage")
            elif usage >= (pod_limit or 0):
                problems.append(f"attempting to set pod memory limit ({pod_limit}) below current usage ({usage})")
        if lowered:
            used = await self._container_usage(work.pod)
            problems += [text for name, limit in lowered.items() if (text := _excess(name, limit, used.get(name)))]
        if problems:
            text = problems[0] if len(problems) == 1 else f"[{', '.join(problems)}]"
            raise ResizeProblem(f"cannot decrease memory limits: {text}")

    async def _container_usage(self, pod: Pod) -> dict[str, int]:
        stats = await self._cri.list_container_stats(pod_uid=uid_of(pod))
        return {
            each.attributes.metadata.name: each.memory.usage_bytes.value or each.memory.working_set_bytes.value
            for each in stats
            if each.HasField("memory")
        }


def _excess(name: str, limit: int, usage: int | None) -> str:
    if usage is None:
        return f'missing container "{name}" memory usage'
    if usage >= limit:
        return f'attempting to set container "{name}" memory limit ({limit}) below current usage ({usage})'
    return ""


# --- arithmetic -------------------------------------------------------------------------------------------


def lowered_limit(change: ContainerResize) -> int:
    """The new memory limit in bytes where it is lower than before or was not there; else 0."""
    before, after = amount_of(change.actuated, "memory").limit, amount_of(change.wanted, "memory").limit
    return after.value() if after and (not before or after < before) else 0


def in_order(changes: Sequence[ContainerResize], name: str) -> list[ContainerResize]:
    """Those that shrink first: what they give up may be what the others get."""
    return sorted(changes, key=lambda each: not _shrinks(each, name))


def _shrinks(change: ContainerResize, name: str) -> bool:
    before, after = amount_of(change.actuated, name), amount_of(change.wanted, name)
    return after.limit < before.limit if after.limit != before.limit else after.request < before.request


def with_amount(base: ResourceRequirements, wanted: ResourceRequirements, name: str) -> ResourceRequirements:
    """`base` with one resource as wanted: one resource is changed at a time."""
    return msgspec.structs.replace(
        base, requests=_with(base.requests, wanted.requests, name), limits=_with(base.limits, wanted.limits, name)
    )


def _with(base: dict[str, QuantityValue], wanted: dict[str, QuantityValue], name: str) -> dict[str, QuantityValue]:
    rest = {key: value for key, value in base.items() if key != name}
    return rest | ({name: wanted[name]} if name in wanted else {})


def _parts(limits: CgroupLimits, name: str) -> tuple[CgroupLimits, CgroupLimits]:
    """The limit and the request of one resource, as changes of a group. Memory requests are in no cgroup file."""
    if name == "memory":
        return CgroupLimits(memory_bytes=limits.memory_bytes), CgroupLimits()
    quota = CgroupLimits(cpu_quota_us=limits.cpu_quota_us, cpu_period_us=limits.cpu_period_us)
    return quota, CgroupLimits(cpu_shares=limits.cpu_shares)


def _bound(limits: CgroupLimits, name: str) -> int | None:
    return limits.memory_bytes if name == "memory" else limits.cpu_quota_us


def _share(limits: CgroupLimits) -> int:
    return limits.cpu_shares or 0


def _is_more(one: int | None, other: int | None) -> bool:
    """Whether the first bound is wider; no bound at all is the widest. An unknown one is never changed."""
    if one is None or other is None:
        return False
    return _width(one) > _width(other)


def _width(bound: int) -> float:
    return float("inf") if bound <= 0 else float(bound)


def without_overhead(limits: CgroupLimits, pod: Pod, node: NodeSpec) -> cri_pb2.LinuxContainerResources:
    """A pod's limits for the runtime: apart from what the sandbox itself costs."""
    shares, quota = limits.cpu_shares or 0, max(0, limits.cpu_quota_us or 0)
    memory = max(0, limits.memory_bytes or 0)
    milli = Quantity.parse(pod.spec.overhead.get("cpu", 0)).milli_value()
    if milli:
        shares = max(2, shares - milli_to_shares(milli))
        quota = max(0, quota - milli_to_quota(milli, limits.cpu_period_us)) if quota else 0
    if memory:
        memory = max(0, memory - Quantity.parse(pod.spec.overhead.get("memory", 0)).value())
    return cri_pb2.LinuxContainerResources(
        cpu_shares=shares,
        cpu_quota=quota,
        cpu_period=limits.cpu_period_us if node.cpu_cfs_quota else 0,
        memory_limit_in_bytes=memory,
    )
