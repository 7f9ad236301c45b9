"""Admission with what is known about the node at the moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from pykubelet.api.types import Pod
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
