"""Admission with the node's live facts filled in, as the sync loop asks for it.

Facts that change are read through functions at the moment of the question; those that do not are given once.
The rules themselves are in admission.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pykubelet.api.types import Pod
from pykubelet.pods.admission import CHAIN, AdmissionContext, Check, Verdict, decide_admission
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList


def _no_pressure() -> Sequence[str]:
    return ()


def _not_shutting_down() -> bool:
    return False


class Admitter:
    def __init__(
        self,
        *,
        node: Callable[[], NodeInfo | None],
        sysctls: SysctlAllowList,
        pressure: Callable[[], Sequence[str]] = _no_pressure,
        shutting_down: Callable[[], bool] = _not_shutting_down,
        apparmor_problem: str | None = None,
        pod_level_resources: bool = True,
        taint_comparison: bool = False,
        declared_features: frozenset[str] | None = None,
        chain: Sequence[Check] = CHAIN,
    ) -> None:
        self._node = node
        self._sysctls = sysctls
        self._pressure = pressure
        self._shutting_down = shutting_down
        self._apparmor_problem = apparmor_problem
        self._pod_level_resources = pod_level_resources
        self._taint_comparison = taint_comparison
        self._declared_features = declared_features
        self._chain = chain

    def decide(self, pod: Pod, others: Sequence[Pod]) -> Verdict:
        """Whether the pod may run beside the others, who hold resources already."""
        return decide_admission(pod, self.context(others), self._chain)

    def context(self, others: Sequence[Pod]) -> AdmissionContext:
        return AdmissionContext(
            node=self._node(),
            others=others,
            sysctls=self._sysctls,
            pressure=self._pressure(),
            shutting_down=self._shutting_down(),
            apparmor_problem=self._apparmor_problem,
            pod_level_resources=self._pod_level_resources,
            taint_comparison=self._taint_comparison,
            declared_features=self._declared_features,
        )
