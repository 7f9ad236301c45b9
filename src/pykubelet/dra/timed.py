"""What dynamic resources cost: how long claims and drivers' calls take, and how many claims are in use.

Names, labels and buckets are upstream's. The stream of health has no end and is not timed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pykubelet.clients.plugins.port import ClaimedHealth, ClaimRef, DraDriver, Prepared
from pykubelet.dra.books import ClaimEntry
from pykubelet.kit.clock import Clock
from pykubelet.kit.go_text import grpc_code
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import PluginError

BUCKETS = tuple(0.1 * 400 ** (number / 14) for number in range(15))
"""From a tenth of a second to 40 s, just below the time a driver has for a call."""
PACKAGES = {"v1": "k8s.io.kubelet.pkg.apis.dra.v1", "v1beta1": "k8s.io.kubelet.pkg.apis.dra.v1beta1"}
ANY_DRIVER = "<any>"


class DraTimes:
    def __init__(self, *, clock: Clock, metrics: Registry, claims: Iterable[ClaimEntry]) -> None:
        self._clock, self._claims = clock, claims
        self._operations = metrics.histogram(
            "dra_operations_duration_seconds",
            "How long preparing and giving back the claims of pods took.",
            ("operation_name", "is_error"),
            BUCKETS,
        )
        self._calls = metrics.histogram(
            "dra_grpc_operations_duration_seconds",
            "How long drivers of dynamic resources took to answer.",
            ("driver_name", "method_name", "grpc_status_code"),
            BUCKETS,
        )
        self._in_use = metrics.gauge(
            "dra_resource_claims_in_use",
            "Claims that pods of this node hold, of each driver and of any.",
            ("driver_name",),
        )
        metrics.on_scrape(self._count)

    def of(self, driver: DraDriver, name: str, version: str) -> DraDriver:
        return _TimedDriver(driver, name, f"/{PACKAGES[version]}.DRAPlugin", self)

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        began, failed = self._clock.monotonic(), "true"
        try:
            yield
            failed = "false"
        finally:
            self._operations.observe(self._clock.monotonic() - began, name, failed)

    @contextmanager
    def call(self, driver: str, method: str) -> Iterator[None]:
        began, code = self._clock.monotonic(), "CANCELLED"
        try:
            yield
            code = "OK"
        except PluginError as error:
            code = error.code
            raise
        finally:
            self._calls.observe(self._clock.monotonic() - began, driver, method, grpc_code(code))

    def _count(self) -> None:
        entries = list(self._claims)
        by_driver = Counter(driver for entry in entries for driver in entry.drivers)
        self._in_use.replace(
            {(ANY_DRIVER,): float(len(entries)), **{(name,): float(n) for name, n in by_driver.items()}}
        )


class _TimedDriver:
    def __init__(self, driver: DraDriver, name: str, service: str, times: DraTimes) -> None:
        self._driver, self._name, self._service, self._times = driver, name, service, times

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, Prepared]:
        with self._times.call(self._name, f"{self._service}/NodePrepareResources"):
            return await self._driver.prepare(claims)

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
        with self._times.call(self._name, f"{self._service}/NodeUnprepareResources"):
            return await self._driver.unprepare(claims)

    def watch_health(self) -> AsyncGenerator[Sequence[ClaimedHealth], None]:
        return self._driver.watch_health()
