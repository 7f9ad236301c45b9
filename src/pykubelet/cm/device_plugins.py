"""Running device plugins: one each for a resource, followed until its stream ends.

A plugin that went leaves its devices unhealthy at once and its resource known for five minutes more, the time a
plugin may take to be updated. The newest plugin of a resource is the one in use.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.plugins.port import Device, DeviceConnect, DeviceOptions, DevicePlugin
from pykubelet.cm.device_state import DeviceState, Resource
from pykubelet.kit.clock import Clock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import PluginError

logger = logging.getLogger(__name__)

FORGET_AFTER = 300.0


class Endpoint(Struct, eq=False):
    resource: str
    socket: Path
    plugin: DevicePlugin
    options: DeviceOptions


class Endpoints:
    """`on_change(resource, ids whose health changed)` is called for every list a plugin sends, and for its end."""

    def __init__(
        self,
        *,
        state: DeviceState,
        connect: DeviceConnect,
        clock: Clock,
        on_change: Callable[[str, frozenset[str]], None],
    ) -> None:
        self._state = state
        self._connect = connect
        self._clock = clock
        self._on_change = on_change
        self._running: dict[str, Endpoint] = {}
        self._needs_pre_start: set[str] = set()
        self._left: dict[str, float] = {}
        """When the last plugin of a resource ended; its time to come back counts from there."""
        self.removed: set[str] = set()
        """Resources whose plugin did not come back; the Node shows them with 0."""
        self.tasks = TaskSet("device plugins")

    def running(self, resource: str) -> Endpoint | None:
        return self._running.get(resource)

    def needs_pre_start(self, resource: str) -> bool:
        """Whether the plugin, the last one if none runs, requires PreStartContainer."""
        return resource in self._needs_pre_start

    async def start(self, resource: str, socket: Path) -> None:
        """Use this plugin in place of an older one. PluginError when it does not say what it can do."""
        plugin = self._connect(socket)
        try:
            found = await plugin.options()
        except BaseException:
            await plugin.close()
            raise
        endpoint = Endpoint(resource, socket, plugin, found)
        before = self._running.get(resource)
        self._running[resource] = endpoint
        self._left.pop(resource, None)
        self.removed.discard(resource)
        (self._needs_pre_start.add if found.pre_start else self._needs_pre_start.discard)(resource)
        self._state.resources.setdefault(resource, Resource()).running = True
        self.tasks.spawn(self._follow(endpoint), name=f"device plugin {resource}")
        logger.info("device plugin in use", extra={"resource": resource, "socket": str(socket)})
        if before is not None:
            await before.plugin.close()  # ends its list; calls in flight fail and are repeated to the new one

    def stop(self, resource: str, socket: Path) -> None:
        """Handle that the plugin is gone, by its own word or by its socket."""
        endpoint = self._running.get(resource)
        if endpoint is not None and endpoint.socket == socket:
            self._ended(endpoint, "its socket is gone")

    def expect(self, resource: str) -> None:
        """Give the plugin of a resource from the checkpoint five minutes to come back."""
        self._state.resources.setdefault(resource, Resource())
        self._forget_later(resource)

    async def _follow(self, endpoint: Endpoint) -> None:
        why = "it ended its list of devices"
        try:
            async with aclosing(endpoint.plugin.watch()) as lists:
                async for devices in lists:
                    if self._running.get(endpoint.resource) is not endpoint:
                        return  # a newer one took over
                    self._listed(endpoint, devices)
        except PluginError as error:
            why = str(error)
        except Exception as error:  # a defect in one plugin's handling must not end the others
            why = f"{type(error).__name__}: {error}"
            logger.error("device plugin not followed", extra={"resource": endpoint.resource}, exc_info=True)
        finally:
            await endpoint.plugin.close()
        self._ended(endpoint, why)

    def _listed(self, endpoint: Endpoint, devices: Sequence[Device]) -> None:
        resource = self._state.resources.setdefault(endpoint.resource, Resource(running=True))
        before = resource.devices
        resource.devices = {each.id: each for each in devices}
        self._on_change(endpoint.resource, _health_changed(before, resource.devices))

    def _ended(self, endpoint: Endpoint, why: str) -> None:
        if self._running.get(endpoint.resource) is not endpoint:
            return
        del self._running[endpoint.resource]
        resource = self._state.resources[endpoint.resource]
        before = resource.devices
        resource.stop()
        logger.warning("device plugin gone", extra={"resource": endpoint.resource, "why": why})
        self._on_change(endpoint.resource, _health_changed(before, resource.devices))
        self._forget_later(endpoint.resource)

    def _forget_later(self, resource: str) -> None:
        since = self._left[resource] = self._clock.monotonic()
        self.tasks.spawn(self._forget(resource, since), name=f"device resource {resource}")

    async def _forget(self, resource: str, since: float) -> None:
        await self._clock.sleep(FORGET_AFTER)
        if self._left.get(resource) == since:
            del self._left[resource]
            del self._state.resources[resource]
            self.removed.add(resource)
            self._on_change(resource, frozenset())


def _health_changed(before: dict[str, Device], after: dict[str, Device]) -> frozenset[str]:
    everything = before.keys() | after.keys()
    return frozenset(
        each
        for each in everything
        if (before[each].healthy if each in before else None) != (after[each].healthy if each in after else None)
    )
