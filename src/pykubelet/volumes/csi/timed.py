"""A storage driver whose calls are timed, under upstream's name, labels and buckets.

Every call to a driver goes through here: the drivers' list hands out nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pykubelet.clients.plugins.port import CsiNode
from pykubelet.kit.clock import Clock
from pykubelet.kit.go_text import grpc_code
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import PluginError
from pykubelet.volumes.csi.asked import AskedDriver

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)
SERVICE = "/csi.v1.Node"


class CsiTimes:
    def __init__(self, *, clock: Clock, metrics: Registry) -> None:
        self._clock = clock
        self._taken = metrics.histogram(
            "csi_operations_seconds",
            "How long storage drivers took to answer, by the status they answered with.",
            ("driver_name", "method_name", "grpc_status_code", "migrated"),
            BUCKETS,
        )

    def of(self, driver: CsiNode, name: str, *, migrated: bool = False) -> CsiNode:
        return AskedDriver(driver, lambda call: self.timing(name, call, migrated=migrated))

    @contextmanager
    def timing(self, driver: str, call: str, *, migrated: bool = False) -> Iterator[None]:
        began, code = self._clock.monotonic(), "CANCELLED"
        try:
            yield
            code = "OK"
        except PluginError as error:
            code = error.code
            raise
        finally:
            took, stands_in = self._clock.monotonic() - began, "true" if migrated else "false"
            self._taken.observe(took, driver, f"{SERVICE}/{call}", grpc_code(code), stands_in)
