"""The runtime operation metrics every kubelet has, as an observer for the client's one wrapper."""

from __future__ import annotations

from pykubelet.clients.cri.transport import CallObserver
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import CriError

_BUCKETS = tuple(0.005 * 2.5**step for step in range(14))


def operation_metrics(registry: Registry) -> CallObserver:
    """Counts, failures and durations by operation_type."""
    labels = ("operation_type",)
    total = registry.counter("kubelet_runtime_operations_total", "Runtime operations by type.", labels)
    failed = registry.counter("kubelet_runtime_operations_errors_total", "Failed runtime operations.", labels)
    seconds = registry.histogram(
        "kubelet_runtime_operations_duration_seconds", "Duration of runtime operations.", labels, _BUCKETS
    )

    def observe(verb: str, duration: float, error: CriError | None) -> None:
        total.inc(verb)
        seconds.observe(duration, verb)
        if error is not None:
            failed.inc(verb)

    return observe
