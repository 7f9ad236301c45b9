"""Admission of pods with what is known about the node at the moment.

A pod and the Node come by two watches. A label that was put on the Node just before a pod was sent here may not be
known yet, so a pod that only labels keep out is judged once more by the Node as the API server has it then. Upstream's
loop waits for that answer; here only the pod waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pykubelet.api.types import Pod
from pykubelet.clients.host.port import Machine
from pykubelet.cm.resource_managers import PinningManager
from pykubelet.context import Context
from pykubelet.kit.mailbox import Signal
from pykubelet.model.pod import PodUID
from pykubelet.node.conditions import NodeConditions
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
from pykubelet.signals import NodeRead


class AdmissionGate:
    """Decides with what is known about the node right now."""

    def __init__(
        self,
        ctx: Context,
        machine: Machine,
        *,
        node: Callable[[], NodeInfo | None],
        conditions: NodeConditions,
        resource_managers: PinningManager | None = None,
        fresh_node: FreshNode | None = None,
    ) -> None:
        """`fresh_node`: with an API server, where pods that only the Node's labels keep out wait for a newer Node."""
        self._node = node
        unsafe = ctx.settings.config.runtime.allowed_unsafe_sysctls
        self._sysctls = SysctlAllowList.for_kernel(machine.kernel, unsafe)
        self._apparmor_problem = None if machine.apparmor else "AppArmor is not enabled on the host"
        self._conditions = conditions
        self._resource_managers = resource_managers
        self._chain = admission_chain() if resource_managers is None else admission_chain(self._allocate)
        self._allocated = False
        self._fresh_node = fresh_node
        gates = ctx.settings.gates
        declares = gates.enabled("NodeDeclaredFeatures")
        self._declared_features = frozenset(declared_features(gates)) if declares else None
        self._taint_comparison = gates.enabled("TaintTolerationComparisonOperators")
        self._pod_level_resources = gates.enabled("PodLevelResources")

    def decide(self, pod: Pod, others: Sequence[Pod]) -> Verdict:
        context = AdmissionContext(
            node=self._node(),
            others=others,
            sysctls=self._sysctls,
            pressure=self._conditions.pressures(),
            shutting_down=self._conditions.shutting_down(),
            apparmor_problem=self._apparmor_problem,
            declared_features=self._declared_features,
            taint_comparison=self._taint_comparison,
            pod_level_resources=self._pod_level_resources,
        )
        self._allocated = False
        verdict = decide_admission(pod, context, self._chain)
        if self._resource_managers is not None and self._allocated and not verdict.admitted:
            self._resource_managers.undo(pod)
        return verdict

    def lacking_for_change(self, old: Pod, new: Pod) -> Sequence[str]:
        """Features that a change of a pod needs and this node does not declare."""
        declared = self._declared_features
        return [name for name in features_of_change(old, new) if declared is not None and name not in declared]

    def waits_for_node(self, uid: PodUID) -> bool:
        """Whether the pod waits for the newest Node."""
        return self._fresh_node is not None and uid in self._fresh_node

    def wait_for_node(self, uid: PodUID, rejection: Rejection) -> bool:
        """Have a rejected pod judged again by the newest Node, if that may help; `NodeRead` tells when."""
        if self._fresh_node is None or not rejection.may_pass_on_fresh_node:
            return False
        self._fresh_node.add(uid)
        return True

    def _allocate(self, pod: Pod, _context: AdmissionContext) -> Rejection | None:
        """Also called for resizes of pods that run: what they have is undone only if it was allocated right here."""
        self._allocated = True
        refusal = self._resource_managers.admit(pod) if self._resource_managers is not None else None
        return None if refusal is None else Rejection(reason=refusal.reason, message=refusal.message)


class FreshNode:
    """Reads the Node anew for pods that wait for it."""

    name = "fresh-node"

    def __init__(self, ctx: Context, *, read: Callable[[], Awaitable[None]]) -> None:
        """`read` renews what is known of the Node, or gives up; it never raises."""
        self._signals = ctx.signals
        self._read = read
        self._waiting: set[PodUID] = set()
        self._filled = Signal()

    def add(self, uid: PodUID) -> None:
        self._waiting.add(uid)
        self._filled.set()

    def __contains__(self, uid: PodUID) -> bool:
        return uid in self._waiting

    async def run(self) -> None:
        while True:
            await self._filled.wait()
            # A pod that comes while the Node is being read waits for the next reading: this one may be too old for it.
            waiting = set(self._waiting)
            await self._read()
            for uid in sorted(waiting):
                self._waiting.discard(uid)
                self._signals.publish(NodeRead(uid))
