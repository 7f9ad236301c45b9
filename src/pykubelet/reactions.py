"""Which signal causes what: every connection between subsystems that is not a plain call, in one place."""

from __future__ import annotations

from pykubelet.signals import ContainerDied, ContainerStarted, InspectionRecovered, Signals
from pykubelet.sync.loop import SyncLoop
from pykubelet.sync.pod_metrics import PodMetrics
from pykubelet.wiring.pinning import PinningParts


def connect(signals: Signals, *, loop: SyncLoop, pod_metrics: PodMetrics, cpus: PinningParts) -> None:
    """Subscribe all handlers, in the order in which they are called."""
    signals.subscribe(ContainerDied, loop.container_died)
    signals.subscribe(ContainerDied, pod_metrics.container_died)
    signals.subscribe(ContainerStarted, loop.container_started)
    signals.subscribe(ContainerStarted, cpus.container_started)
    signals.subscribe(InspectionRecovered, loop.inspection_recovered)
