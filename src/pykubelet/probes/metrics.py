"""What probes found and how long they took, for the page /metrics/probes.

That page is separate from /metrics, so these instruments are in no registry: `expose` renders them. Series of a
probe disappear with its worker, else every pod that ever ran would stay on the page.
"""

from __future__ import annotations

from typing import Final

from pykubelet.api.types import Pod
from pykubelet.kit.metrics import Counter, Histogram
from pykubelet.model.pod import AnyContainer, name_of, namespace_of, uid_of
from pykubelet.model.results import ProbeKind, ProbeOutcome

WORDS: Final = {
    ProbeOutcome.SUCCESS: "successful",
    ProbeOutcome.FAILURE: "failed",
    ProbeOutcome.UNKNOWN: "unknown",
}


class _Counter(Counter):
    def forget(self, *labels: str) -> None:
        self._values.pop(labels, None)


class _Histogram(Histogram):
    def forget(self, *labels: str) -> None:
        self._values.pop(labels, None)


class ProbeMetrics:
    def __init__(self) -> None:
        self.total = _Counter(
            "prober_probe_total",
            "Liveness, readiness and startup probes of containers, by what they found.",
            ("probe_type", "result", "container", "pod", "namespace", "pod_uid"),
        )
        self.duration = _Histogram(
            "prober_probe_duration_seconds",
            "Seconds until a probe had its answer.",
            ("probe_type", "container", "pod", "namespace"),
        )

    def count(self, kind: ProbeKind, pod: Pod, container: AnyContainer, outcome: ProbeOutcome, seconds: float) -> None:
        name, pod_name, namespace = container.name or "", name_of(pod), namespace_of(pod)
        self.total.inc(kind.title, WORDS[outcome], name, pod_name, namespace, uid_of(pod))
        if outcome is not ProbeOutcome.FAILURE:  # as upstream: failures often only measure the timeout
            self.duration.observe(seconds, kind.title, name, pod_name, namespace)

    def forget(self, kind: ProbeKind, pod: Pod, container: AnyContainer) -> None:
        name, pod_name, namespace = container.name or "", name_of(pod), namespace_of(pod)
        for word in WORDS.values():
            self.total.forget(kind.title, word, name, pod_name, namespace, uid_of(pod))
        self.duration.forget(kind.title, name, pod_name, namespace)

    def expose(self) -> str:
        return "\n".join([*self.duration.render(), *self.total.render()]) + "\n"
