"""How long a new node took from the machine's boot to its first Ready, in upstream's parts.

Told by whoever registers the Node. A Node that was there before has no such times: they stay 0, as upstream's do.
"""

from __future__ import annotations

from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry


class StartupTimes:
    """Made when the agent starts. `booted` is the machine's boot as a time, 0 when nobody knows it."""

    def __init__(self, *, clock: Clock, metrics: Registry, booted: float = 0.0) -> None:
        self._clock = clock
        self._booted = booted
        self._started = clock.now()
        self._attempted: float | None = None
        self._registered: float | None = None
        self._ready = False

        prefix = "kubelet_node_startup"
        self._whole = metrics.gauge(f"{prefix}_duration_seconds", "From boot to the new node's first Ready.")
        self._before = metrics.gauge(f"{prefix}_pre_kubelet_duration_seconds", "From boot to the agent's start.")
        self._preparing = metrics.gauge(
            f"{prefix}_pre_registration_duration_seconds", "From the agent's start to its first try to register."
        )
        self._registering = metrics.gauge(
            f"{prefix}_registration_duration_seconds", "From the first try to register to the new Node."
        )
        self._after = metrics.gauge(
            f"{prefix}_post_registration_duration_seconds", "From the new Node to its first Ready."
        )

    def attempted(self) -> None:
        if self._attempted is None:
            self._attempted = self._clock.now()

    def registered(self) -> None:
        """This agent made the Node."""
        if self._attempted is None or self._registered is not None:
            return
        self._registered = self._clock.now()
        if self._booted:
            self._before.set(self._started - self._booted)
        self._preparing.set(self._attempted - self._started)
        self._registering.set(self._registered - self._attempted)

    def ready(self) -> None:
        if self._registered is None or self._ready:
            return
        self._ready = True
        now = self._clock.now()
        self._after.set(now - self._registered)
        if self._booted:
            self._whole.set(now - self._booted)
