"""Admission by topology: asks every provider for hints, merges them by the policy, lets every provider allocate.

With scope container each container gets its own place, with scope pod all containers the same one. Providers are
asked in the order they were added; upstream's order is devices, CPUs, memory. An allocation that fails is undone by
the caller, who knows what the pod held before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from pykubelet.api.types import Pod
from pykubelet.model.pod_resources import has_pod_level_resources
from pykubelet.pinning.demand import containers_of
from pykubelet.pinning.hints import NO_HINT, Hint, HintProvider, Hints
from pykubelet.pinning.merge import NONE, Merger
from pykubelet.pinning.metrics import NUMA_NODE, SCOPES, PinningMetrics
from pykubelet.pinning.options import SINGLE_NUMA_NODE
from pykubelet.pinning.problems import NotAligned, Refused

CONTAINER: Final = "container"
POD: Final = "pod"


class TopologyManager:
    def __init__(
        self,
        *,
        merger: Merger,
        scope: str,
        providers: Sequence[HintProvider],
        metrics: PinningMetrics,
        pod_level: bool = False,
    ) -> None:
        self._merger = merger
        self._scope = scope
        self._providers = list(providers)
        self._metrics = metrics
        self._pod_level = pod_level
        if merger.policy != NONE:
            metrics.show_alignment(*((each, NUMA_NODE) for each in SCOPES))

    @property
    def providers(self) -> Sequence[HintProvider]:
        return self._providers

    def add_provider(self, provider: HintProvider) -> None:
        """Ask this one as well, before all others."""
        self._providers.insert(0, provider)

    def admit(self, pod: Pod) -> None:
        """Allocate everything for the pod; Refused when that cannot be."""
        self._metrics.admissions.inc()
        begun = time.perf_counter()
        try:
            if self._merger.policy == NONE:
                self._allocate_containers(pod, NO_HINT)
            elif self._scope == POD:
                self._admit_pod(pod)
            else:
                self._admit_containers(pod)
        except Refused:
            if self._merger.policy != NONE:
                self._metrics.admission_errors.inc()
            raise
        finally:
            self._metrics.admission_time.observe((time.perf_counter() - begun) * 1000)

    def _admit_containers(self, pod: Pod) -> None:
        for container in containers_of(pod):
            place = self._place(CONTAINER, pod, [each.hints(pod, container) for each in self._providers])
            for provider in self._providers:
                provider.allocate(pod, container, place)
            self._aligned(CONTAINER)

    def _admit_pod(self, pod: Pod) -> None:
        place = self._place(POD, pod, [each.pod_hints(pod) for each in self._providers])
        if self._pod_level and has_pod_level_resources(pod):
            for provider in self._providers:
                provider.allocate_pod(pod, place)
        else:
            self._allocate_containers(pod, place)
        self._aligned(POD)

    def _allocate_containers(self, pod: Pod, place: Hint) -> None:
        for container in containers_of(pod):
            for provider in self._providers:
                provider.allocate(pod, container, place)

    def _place(self, scope: str, pod: Pod, offers: Sequence[Hints]) -> Hint:
        place, admitted = self._merger.merge(offers)
        if admitted:
            return place
        if self._merger.policy == SINGLE_NUMA_NODE:
            self._metrics.unaligned.inc(scope, NUMA_NODE)
        if self._pod_level and has_pod_level_resources(pod):
            under = "with a container-level" if scope == CONTAINER else "under pod-scope"
            raise NotAligned(f"Pod Scope pod with pod-level resources failed admission {under} topology manager")
        raise NotAligned

    def _aligned(self, scope: str) -> None:
        if self._merger.policy == SINGLE_NUMA_NODE:
            self._metrics.aligned.inc(scope, NUMA_NODE)
