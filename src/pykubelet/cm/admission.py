"""Admission of pods with the facts of the moment; the resource managers allocate as one check of the chain.

The checks themselves are in `pods/admission.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Pod
from pykubelet.cm.device_manager import DeviceManager
from pykubelet.cm.errors import Refused
from pykubelet.cm.resource_managers import ResourceManagers
from pykubelet.model.pod import uid_of
from pykubelet.model.runtime_status import RuntimeConditions
from pykubelet.pods.admission import (
    AdmissionContext,
    Rejection,
    Verdict,
    admission_chain,
    decide_admission,
    declared_features,
    features_of_change,
)
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.settings.gates import Gates


class NodeNow(Struct, frozen=True, kw_only=True):
    """What admission reads of other subsystems about the node each time."""

    info: Callable[[], NodeInfo]
    """As the API server has the Node, or as the settings say without one."""
    pressure: Callable[[], Collection[str]] = lambda: ()
    """Names of the pressure conditions that hold."""
    shutting_down: Callable[[], bool] = lambda: False


class PodAdmission:
    def __init__(
        self,
        *,
        node: NodeNow,
        sysctls: SysctlAllowList,
        gates: Gates,
        managers: ResourceManagers,
        devices: DeviceManager | None = None,
        apparmor_problem: str | None = None,
        runtime: Callable[[], RuntimeConditions] = RuntimeConditions,
    ) -> None:
        """`apparmor_problem`: why profiles cannot be enforced; None when they can."""
        self._node = node
        self._sysctls = sysctls
        self._apparmor_problem = apparmor_problem
        self._managers = managers
        self._devices = devices
        self._chain = admission_chain(self._allocate)
        self._allocated = False
        """Whether the decision under way allocated for a pod that had nothing before."""
        self._gates = gates
        self._declares = gates.enabled("NodeDeclaredFeatures")
        self._runtime = runtime
        self._taint_comparison = gates.enabled("TaintTolerationComparisonOperators")
        self._pod_level_resources = gates.enabled("PodLevelResources")

    def node_info(self) -> NodeInfo:
        """With the devices that plugins report now, which the API server may not know yet."""
        node = self._node.info()
        amounts = self._devices.admissible() if self._devices is not None else {}
        if not amounts:
            return node
        return replace(node, allocatable={**node.allocatable, **{name: Quantity.of(n) for name, n in amounts.items()}})

    def _declared(self) -> frozenset[str] | None:
        return frozenset(declared_features(self._gates, self._runtime())) if self._declares else None

    def decide(self, pod: Pod, others: Sequence[Pod]) -> Verdict:
        """Also decides about resizes of pods that run: these keep what they had when they are refused."""
        context = AdmissionContext(
            node=self.node_info(),
            others=others,
            sysctls=self._sysctls,
            pressure=tuple(self._node.pressure()),
            shutting_down=self._node.shutting_down(),
            apparmor_problem=self._apparmor_problem,
            declared_features=self._declared(),
            taint_comparison=self._taint_comparison,
            pod_level_resources=self._pod_level_resources,
        )
        self._allocated = False
        verdict = decide_admission(pod, context, self._chain)
        if self._allocated and not verdict.admitted:
            self._managers.release(uid_of(pod))
        return verdict

    def lacking_for_change(self, old: Pod, new: Pod) -> Sequence[str]:
        """Features that a change of a pod needs and this node does not declare."""
        declared = self._declared()
        return [name for name in features_of_change(old, new) if declared is not None and name not in declared]

    def _allocate(self, pod: Pod, _context: AdmissionContext) -> Rejection | None:
        try:
            self._allocated = self._managers.admit(pod)
        except Refused as refused:
            return Rejection(reason=refused.reason, message=refused.message)
        return None
