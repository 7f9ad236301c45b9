"""DRA drivers on this node: which registered, which one is called, how long calls take, what follows when one goes.

A driver may run twice for the length of an update; the newest that is connected is called. When none of a name has been
connected for 30 s, its ResourceSlices of this node are deleted, so that nothing more is scheduled to it. Names, labels
and buckets of metrics are upstream's; the stream of health has no end and is not timed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from pykubelet.api.types import ResourceResourceClaim
from pykubelet.clients.plugins.port import ClaimedHealth, DraConnect, DraDriver, Observe, timed
from pykubelet.cm.dra_claims import ClaimEntry
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet, finish
from pykubelet.model.errors import PluginError, PykubeletError

logger = logging.getLogger(__name__)


# --- metrics --------------------------------------------------------------------------------------------------


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

    def observe(self, driver: str, version: str) -> Observe:
        """Times each call to the driver."""
        service = f"/{PACKAGES[version]}.DRAPlugin"

        def around(method: str) -> AbstractContextManager[None]:
            path = f"{service}/{method}"
            return timed(self._clock, lambda took, code: self._calls.observe(took, driver, path, code))

        return around

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        began, failed = self._clock.monotonic(), "true"
        try:
            yield
            failed = "false"
        finally:
            self._operations.observe(self._clock.monotonic() - began, name, failed)

    def _count(self) -> None:
        entries = list(self._claims)
        by_driver = Counter(driver for entry in entries for driver in entry.drivers)
        self._in_use.replace(
            {(ANY_DRIVER,): float(len(entries)), **{(name,): float(n) for name, n in by_driver.items()}}
        )


WIPE_AFTER = 30.0
WIPE_PATIENCE = 300.0
CLOSE_WITHIN = 2.0
SERVICES = {"v1.DRAPlugin": "v1", "v1beta1.DRAPlugin": "v1beta1"}
"""Names a driver lists -> our word for it."""
HEALTH_AGAIN = 5.0


class DriverProblem(PykubeletError):
    """Why a driver is not taken, or cannot be called."""


class ClaimObjects(Protocol):
    """Objects of dynamic resources in the API server."""

    async def resource_claim(self, namespace: str, name: str) -> ResourceResourceClaim | None:
        """Read anew each time."""
        ...

    async def delete_slices(self, driver: str) -> None:
        """All ResourceSlices of this node, of one driver or, with '', of all."""
        ...


class Instance(Struct, eq=False):
    name: str
    endpoint: Path
    driver: DraDriver
    connected: bool = False
    following: Sequence[asyncio.Task[None]] = ()
    """What follows its health and its connection; ends with its registration."""


class DraDrivers:
    """The plugin manager's handler. `on_health(driver, devices)` gets what drivers report; None = it is gone."""

    def __init__(
        self,
        *,
        connect: DraConnect,
        objects: ClaimObjects,
        clock: Clock,
        times: DraTimes,
        on_health: Callable[[str, Sequence[ClaimedHealth] | None], None],
        on_registered: Callable[[], None],
    ) -> None:
        """`on_registered`: pods that failed because a driver was missing may be retried."""
        self._connect = connect
        self._objects = objects
        self._clock = clock
        self._times = times
        self._on_health = on_health
        self._on_registered = on_registered
        self._instances: dict[str, list[Instance]] = {}
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """Drivers without a connected instance, and what deletes their slices when none comes back."""
        self.tasks = TaskSet("drivers of dynamic resources")

    def find(self, name: str) -> DraDriver:
        known = self._instances.get(name)
        if not known:
            raise DriverProblem(f"DRA driver {name} is not registered")
        return next((each.driver for each in reversed(known) if each.connected), known[-1].driver)

    async def wipe_at_start(self) -> None:
        """Drivers publish anew after a restart of the agent; what is older may be wrong."""
        await self._wipe("")

    # --- the plugin manager's handler -----------------------------------------------------------

    async def register(self, name: str, endpoint: Path, versions: tuple[str, ...]) -> None:
        if not name:
            raise DriverProblem("a driver of dynamic resources must have a name")
        version = next((SERVICES[each] for each in versions if each in SERVICES), "")
        if not version:
            raise DriverProblem(f"none of the driver's services {list(versions)} is one of {sorted(SERVICES)}")
        instance = Instance(name, endpoint, self._connect(endpoint, version, self._times.observe(name, version)))
        self._instances.setdefault(name, []).append(instance)
        instance.following = (
            self.tasks.spawn(self._follow_connection(instance), name=f"connection of {name}"),
            self.tasks.spawn(self._follow_health(instance), name=f"health of {name}"),
        )
        self._judge(name)
        self._on_registered()

    async def deregister(self, name: str, endpoint: Path) -> None:
        known = self._instances.pop(name, [])
        left = [each for each in known if each.endpoint != endpoint]
        for each in known:
            if each not in left:
                for task in each.following:
                    task.cancel()
        if left:
            self._instances[name] = left
        elif known:
            self._on_health(name, None)
        if known:
            self._judge(name)

    async def _follow_connection(self, instance: Instance) -> None:
        """The connection lives as long as this."""
        try:
            async with aclosing(instance.driver.connected()) as news:
                async for connected in news:
                    instance.connected = connected
                    self._judge(instance.name)
                    if connected:
                        self._on_registered()
        except Exception:  # a defect that one driver brings out is no reason to lose the others
            logger.error("connection not followed", extra={"driver": instance.name}, exc_info=True)
        finally:
            instance.connected = False
            await finish(instance.driver.close(), within=CLOSE_WITHIN)

    def _judge(self, name: str) -> None:
        """Have the driver's slices deleted unless one of its instances is connected, or will be soon."""
        if any(each.connected for each in self._instances.get(name, ())):
            if leaving := self._leaving.pop(name, None):
                leaving.cancel()
        elif name not in self._leaving:
            self._leaving[name] = self.tasks.spawn(self._wipe_later(name), name=f"slices of {name}")

    def _is_registered(self, instance: Instance) -> bool:
        return instance in self._instances.get(instance.name, ())

    async def _wipe_later(self, name: str) -> None:
        await self._clock.sleep(WIPE_AFTER)
        await self._wipe(name)
        del self._leaving[name]

    async def _wipe(self, name: str) -> None:
        pauses, spent = Backoff(initial=1.0), 0.0
        while spent < WIPE_PATIENCE:
            try:
                await self._objects.delete_slices(name)
                return
            except PykubeletError as error:
                logger.warning("ResourceSlices not deleted, will retry", extra={"driver": name, "problem": str(error)})
            pause = pauses.next()
            await self._clock.sleep(pause)
            spent += pause

    # --- health ---------------------------------------------------------------------------------

    async def _follow_health(self, instance: Instance) -> None:
        while self._is_registered(instance):
            try:
                async with aclosing(instance.driver.watch_health()) as news:
                    async for devices in news:
                        if not self._is_registered(instance):
                            return
                        self._on_health(instance.name, devices)
            except PluginError as error:
                if error.code == "UNIMPLEMENTED":
                    return
                logger.debug("health of devices not reported", extra={"driver": instance.name, "problem": str(error)})
            except Exception:  # a defect that one driver brings out is no reason to lose the others
                logger.error("health of devices not followed", extra={"driver": instance.name}, exc_info=True)
            if self._is_registered(instance):
                self._on_health(instance.name, None)
            await self._clock.sleep(HEALTH_AGAIN)
