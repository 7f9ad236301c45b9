"""Small adapters between the sync loop and the managers: admission with the facts of the moment, and the
runtime's pods as housekeeping wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pykubelet.api.types import Pod
from pykubelet.model.pod import PodUID
from pykubelet.model.runtime_status import ContainerState, PodRuntimeStatus, SandboxState
from pykubelet.node.facts import declared_features
from pykubelet.pods.admission import (
    AdmissionContext,
    Rejection,
    Verdict,
    admission_chain,
    decide_admission,
    features_of_change,
)
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.record import Orphan
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.settings.gates import Gates


class Allocator(Protocol):
    """The resource managers that give single containers their own part of the machine."""

    def admit(self, pod: Pod) -> Rejection | None:
        """Allocate what the pod needs, or say why that cannot be."""
        ...

    def undo(self, pod: Pod) -> None:
        """The pod that was asked for last is not to run after all."""
        ...


class AdmissionGate:
    """Decides with what is known about the node right now."""

    def __init__(
        self,
        *,
        node: Callable[[], NodeInfo | None],
        sysctls: SysctlAllowList,
        apparmor_problem: str | None = None,
        pressure: Callable[[], Sequence[str]] = lambda: (),
        shutting_down: Callable[[], bool] = lambda: False,
        gates: Gates | None = None,
        allocator: Allocator | None = None,
    ) -> None:
        self._node = node
        self._sysctls = sysctls
        self._apparmor_problem = apparmor_problem
        self._pressure = pressure
        self._shutting_down = shutting_down
        self._allocator = allocator
        self._chain = admission_chain() if allocator is None else admission_chain(self._allocate)
        self._allocated = False
        gates = gates or Gates({})
        declares = gates.enabled("NodeDeclaredFeatures")
        self._declared_features = frozenset(declared_features(gates)) if declares else None
        self._taint_comparison = gates.enabled("TaintTolerationComparisonOperators")
        self._pod_level_resources = gates.enabled("PodLevelResources")

    def decide(self, pod: Pod, others: Sequence[Pod]) -> Verdict:
        context = AdmissionContext(
            node=self._node(),
            others=others,
            sysctls=self._sysctls,
            pressure=self._pressure(),
            shutting_down=self._shutting_down(),
            apparmor_problem=self._apparmor_problem,
            declared_features=self._declared_features,
            taint_comparison=self._taint_comparison,
            pod_level_resources=self._pod_level_resources,
        )
        self._allocated = False
        verdict = decide_admission(pod, context, self._chain)
        if self._allocator is not None and self._allocated and not verdict.admitted:
            self._allocator.undo(pod)
        return verdict

    def lacking_for_change(self, old: Pod, new: Pod) -> Sequence[str]:
        """Features that a change of a pod needs and this node does not declare."""
        declared = self._declared_features
        return [name for name in features_of_change(old, new) if declared is not None and name not in declared]

    def _allocate(self, pod: Pod, _context: AdmissionContext) -> Rejection | None:
        """Also asked about resizes of pods that run: what they have is undone only if it was given right here."""
        self._allocated = True
        return self._allocator.admit(pod) if self._allocator is not None else None


class KnownStatuses(Protocol):
    def uids(self) -> tuple[str, ...]: ...

    def last_known(self, uid: str) -> PodRuntimeStatus: ...

    def is_down(self, uid: str) -> bool: ...


class RunningPods:
    """Pods that hold something in the runtime, from the newest looks at them."""

    def __init__(self, cache: KnownStatuses) -> None:
        self._cache = cache

    def running_pods(self) -> Sequence[Orphan]:
        found = []
        for uid in self._cache.uids():
            seen = self._cache.last_known(uid)
            ready = any(s.state is SandboxState.READY for s in seen.sandboxes)
            if ready or any(c.state is ContainerState.RUNNING for c in seen.containers):
                found.append(Orphan(uid=PodUID(uid), name=seen.name, namespace=seen.namespace))
        return found


class FreshStatuses(Protocol):
    async def status_newer_than(self, uid: str, observed_at: float) -> PodRuntimeStatus: ...

    async def wait_listed(self) -> None: ...


class WorkerStatuses:
    """What pod workers ask before each run; never waits for a relist."""

    def __init__(self, *, pleg: FreshStatuses, cache: KnownStatuses) -> None:
        self._pleg = pleg
        self._cache = cache

    async def fresh(self, uid: str, than: float) -> PodRuntimeStatus:
        return await self._pleg.status_newer_than(uid, than)

    def is_down(self, uid: str) -> bool:
        return self._cache.is_down(uid)

    async def listed(self) -> None:
        await self._pleg.wait_listed()
