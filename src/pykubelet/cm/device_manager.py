"""The device manager: registers plugins, allocates their devices to containers, and adds what Allocate returned.

Admission only reserves, from the state, and never waits for a plugin: one that hangs delays the pods that request its
devices and no others. GetPreferredAllocation and Allocate are called right before the container is created.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, Pod, ResourceHealth, ResourceStatus
from pykubelet.clients.plugins.port import (
    AllocateResponse,
    DeviceConnect,
    DeviceRegistration,
    ReadAllocateResponse,
)
from pykubelet.cm import device_state
from pykubelet.cm.capacity import DeviceAmounts
from pykubelet.cm.device_plugins import Endpoint, Endpoints
from pykubelet.cm.device_state import DeviceAllocation, DevicesRefused, DeviceState
from pykubelet.cm.topology_manager import Hint, Hints, masks
from pykubelet.context import Context
from pykubelet.kit.files import Checkpoint
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import PluginError, PykubeletError
from pykubelet.model.pod import AnyContainer, is_sidecar, uid_of
from pykubelet.model.pod_resources import served_by_claims
from pykubelet.model.topology import DeviceShare
from pykubelet.recorder import LifeEntry, Step
from pykubelet.signals import DeviceHealthChanged, NodeStatusChanged

logger = logging.getLogger(__name__)

VERSION = "v1beta1"
WRITE_AGAIN = 30.0
_DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_RESOURCE = re.compile(rf"(?=.{{1,317}}$)(?P<domain>{_DOMAIN})/[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?")


class RegistrationRefused(PykubeletError):
    """Why a registration is refused; the plugin gets this text."""


class PluginAbsent(PykubeletError):
    """The container waits for a plugin."""


class CheckpointNotWritten(PykubeletError):
    """The container waits until what it gets is on disk."""


def is_extended(resource: str) -> bool:
    """Whether plugins may use this name: a domain of their own, a slash, a name."""
    found = _RESOURCE.fullmatch(resource)
    if found is None or resource.startswith("requests."):
        return False
    domain = found["domain"]
    return domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


class DeviceManager:
    name = "devices"

    def __init__(
        self,
        ctx: Context,
        *,
        folder: Path,
        connect: DeviceConnect,
        read_allocate_response: ReadAllocateResponse,
        is_running: Callable[[str], bool],
        numa_nodes: Sequence[int] = (0,),
    ) -> None:
        """`is_running(uid)`: a pod with a running container is never refused what it has."""
        self._folder = folder
        self._read_allocate_response = read_allocate_response
        self._is_running = is_running
        self._numa_nodes = numa_nodes
        self._recorder = ctx.recorder
        self._clock = ctx.clock
        self._signals = ctx.signals
        self._state = DeviceState()
        self._endpoints = Endpoints(state=self._state, connect=connect, clock=ctx.clock, on_change=self._changed)
        self._expected: dict[str, list[str]] = {}
        self._saved: dict[str, Any] | None = None
        self._checkpoint = Checkpoint(
            folder / device_state.FILE,
            encode=device_state.encode,
            decode=partial(device_state.decode, read_allocate_response=read_allocate_response),
        )
        self._unsaved = Wakeup()
        self.had_checkpoint = False
        self._registrations = ctx.metrics.counter(
            "kubelet_device_plugin_registration_total", "Registrations of device plugins", ("resource_name",)
        )
        self._allocated = ctx.metrics.histogram(
            "kubelet_device_plugin_alloc_duration_seconds", "Time plugins took to allocate", ("resource_name",)
        )

    def open(self) -> None:
        """Read the checkpoint and make the folder of plugins. Before anything starts."""
        self._folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        found = self._checkpoint.load()
        if found is not None:
            self.had_checkpoint = True
            self._state.allocations = device_state.allocations_of(found, self._read_allocate_response)
            self._expected = device_state.registered_of(found)

    async def run(self) -> None:
        async with self._endpoints.tasks:
            for resource in self._expected:
                self._endpoints.expect(resource)
            problem = ""
            while True:
                await self._unsaved.wait(at_most=WRITE_AGAIN if problem else None)
                problem = await self._write(problem)

    # --- plugins come and go --------------------------------------------------------------------

    async def take(self, registration: DeviceRegistration) -> None:
        """Register a plugin that called our socket."""
        if registration.version != VERSION:
            raise RegistrationRefused(
                f'requested API version "{registration.version}" is not supported by kubelet. '
                f'Supported version is ["{VERSION}"]'
            )
        self._check_name(registration.resource)
        if not registration.endpoint or "/" in registration.endpoint:
            raise RegistrationRefused(f'the endpoint "{registration.endpoint}" is not the name of a socket')
        await self._use(registration.resource, self._folder / registration.endpoint)

    async def register(self, name: str, endpoint: Path, versions: tuple[str, ...]) -> None:
        """Register a plugin that was found by its socket."""
        if VERSION not in versions:
            raise RegistrationRefused(f"versions {list(versions)} of the plugin do not contain {VERSION}")
        self._check_name(name)
        await self._use(name, endpoint)

    async def deregister(self, name: str, endpoint: Path) -> None:
        self._endpoints.stop(name, endpoint)

    def _check_name(self, resource: str) -> None:
        if not is_extended(resource):
            raise RegistrationRefused(f'the ResourceName "{resource}" is invalid')

    async def _use(self, resource: str, socket: Path) -> None:
        try:
            await self._endpoints.start(resource, socket)
        except PluginError as error:
            raise RegistrationRefused(f"failed to get device plugin options: {error}") from error
        self._registrations.inc(resource)

    def _changed(self, resource: str, ids: frozenset[str]) -> None:
        self._save()
        self._signals.publish(NodeStatusChanged())
        for uid in self._state.users_of(resource, ids):
            self._signals.publish(DeviceHealthChanged(uid))

    # --- a hint provider of the topology manager ------------------------------------------------

    @cached_property
    def _masks(self) -> Sequence[int]:
        """Made only for a topology policy, which bounds the number of nodes: there are 2^nodes."""
        return list(masks(self._numa_nodes))

    def hints(self, pod: Pod, container: Container) -> Hints:
        """For each resource of ours that the container requests, where it could be allocated."""
        found: dict[str, Sequence[Hint] | None] = {}
        for resource, count in self._requested(pod, container).items():
            allocation = self._state.get(uid_of(pod), container.name, resource)
            if allocation is not None and len(allocation.ids) == count:
                found[resource] = self._state.hints(resource, count, reusable=allocation.ids, masks=self._masks)
                continue
            reusable = self._reusable(pod, container, resource)
            found[resource] = self._state.hints(resource, count, reusable=reusable, masks=self._masks)
        return found

    def pod_hints(self, pod: Pod) -> Hints:
        """The same for all containers of the pod in one place."""
        lasting: dict[str, int] = {}
        passing: dict[str, int] = {}
        for each in (*pod.spec.init_containers, *pod.spec.containers):
            is_passing = each in pod.spec.init_containers and not is_sidecar(each)
            for resource, count in self._requested(pod, each).items():
                if is_passing:
                    passing[resource] = max(passing.get(resource, 0), count + lasting.get(resource, 0))
                else:
                    lasting[resource] = lasting.get(resource, 0) + count
        uid = uid_of(pod)
        found: dict[str, Sequence[Hint] | None] = {}
        for resource in lasting | passing:
            containers = self._state.allocations.get(uid, {}).values()
            allocated = frozenset().union(
                *(allocations[resource].ids for allocations in containers if resource in allocations)
            )
            count = max(lasting.get(resource, 0), passing.get(resource, 0))
            found[resource] = self._state.hints(resource, count, reusable=allocated, masks=self._masks)
        return found

    def allocate(self, pod: Pod, container: Container, place: Hint) -> None:
        """Reserve devices for the container; DevicesRefused when there are not enough. Repeating changes nothing."""
        uid, name = uid_of(pod), container.name
        for resource, count in self._requested(pod, container).items():
            allocation = self._state.get(uid, name, resource)
            if allocation is not None and len(allocation.ids) == count:
                self._check_still_good(uid, resource, allocation)
                continue
            reusable = self._reusable(pod, container, resource)
            ids = self._state.choose(resource, count, reusable=reusable, nodes=place.nodes)
            self._state.allocate(uid, name, resource, ids)

    def allocate_pod(self, pod: Pod, place: Hint) -> None:
        for container in (*pod.spec.init_containers, *pod.spec.containers):
            self.allocate(pod, container, place)

    def _check_still_good(self, uid: str, resource: str, allocation: DeviceAllocation) -> None:
        """After a reboot a pod may come before its plugin: its devices are not known to be there."""
        if self._is_running(uid):
            return
        if not allocation.ids <= self._state.healthy(resource):
            raise DevicesRefused(
                f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {resource}"
            )

    def release(self, uid: str) -> None:
        if self._state.release(uid):
            self._save()

    def holders(self) -> frozenset[str]:
        return frozenset(self._state.allocations)

    def _requested(self, pod: Pod, container: AnyContainer) -> Mapping[str, int]:
        """Devices that are to come from a plugin: what a resource claim serves is not ours."""
        limits = container.resources.limits if container.resources is not None else {}
        claimed = served_by_claims(pod)
        return {
            resource: Quantity.parse(amount).value()
            for resource, amount in limits.items()
            if self._is_ours(resource)
            and (container.name, resource) not in claimed
            and Quantity.parse(amount).value() > 0
        }

    def _is_ours(self, resource: str) -> bool:
        return resource in self._state.resources or any(
            resource in allocations
            for containers in self._state.allocations.values()
            for allocations in containers.values()
        )

    def _reusable(self, pod: Pod, container: AnyContainer, resource: str) -> frozenset[str]:
        """Devices of containers that end before this one starts, unless a lasting one took them over."""
        uid = uid_of(pod)
        ended: set[str] = set()
        lasting: set[str] = set()
        for each in (*pod.spec.init_containers, *pod.spec.containers):
            allocation = self._state.get(uid, each.name, resource)
            if each is container or each.name == container.name or allocation is None:
                continue
            is_init = each in pod.spec.init_containers
            (ended if is_init and not is_sidecar(each) else lasting).update(allocation.ids)
        return frozenset(ended - lasting)

    # --- what containers get --------------------------------------------------------------------

    async def response(self, pod: Pod, container: AnyContainer) -> list[AllocateResponse]:
        """What plugins add to the container, calling Allocate if that was not done before. PykubeletError to wait."""
        uid, name = uid_of(pod), container.name
        found = []
        for resource, count in self._requested(pod, container).items():
            if self._state.get(uid, name, resource) is None:
                # A second life that was not admitted anew: the first one's devices were released.
                reusable = self._reusable(pod, container, resource)
                self._state.allocate(uid, name, resource, self._state.choose(resource, count, reusable=reusable))
        for resource, allocation in list(self._state.of_container(uid, name).items()):
            endpoint = self._endpoints.running(resource)
            if endpoint is None and (allocation.response is None or self._endpoints.needs_pre_start(resource)):
                raise PluginAbsent(f"the device plugin of {resource} is not running")
            if allocation.response is None and endpoint is not None:
                allocation = await self._call_allocate(
                    endpoint, uid, name, self._healthy(pod, container, resource, allocation)
                )
            if endpoint is not None and endpoint.options.pre_start:
                with self._calling(uid, resource, "PreStartContainer"):
                    await endpoint.plugin.pre_start(sorted(allocation.ids))
            assert allocation.response is not None
            found.append(allocation.response)
        if not found:
            return found
        try:
            await self._checkpoint.flush()  # before a container has them
        except OSError as error:
            raise CheckpointNotWritten(f"the device checkpoint cannot be written: {error}") from error
        return found

    def _healthy(
        self, pod: Pod, container: AnyContainer, resource: str, allocation: DeviceAllocation
    ) -> DeviceAllocation:
        """Reallocate devices that became unhealthy before Allocate."""
        if allocation.ids <= self._state.resources[resource].healthy:
            return allocation
        uid, name = uid_of(pod), container.name
        reusable = allocation.ids | self._reusable(pod, container, resource)
        self._state.allocate(uid, name, resource, self._state.choose(resource, len(allocation.ids), reusable=reusable))
        return self._state.of_container(uid, name)[resource]

    async def _call_allocate(
        self, endpoint: Endpoint, uid: str, container: str, allocation: DeviceAllocation
    ) -> DeviceAllocation:
        resource = endpoint.resource
        if endpoint.options.prefers:
            await self._prefer(endpoint, uid, container, allocation)
            allocation = self._state.of_container(uid, container)[resource]
        began = self._clock.monotonic()
        with self._calling(uid, resource, "Allocate"):
            response = await endpoint.plugin.allocate(sorted(allocation.ids))
        self._allocated.observe(self._clock.monotonic() - began, resource)
        allocation.response = response
        self._save()
        return allocation

    def _calling(self, uid: str, resource: str, call: str) -> AbstractContextManager[LifeEntry]:
        """Record the call, so that a person sees which plugin the container waits for."""
        return self._recorder.step(uid, Step.CLAIMS, f"device plugin of {resource}, {call}", routine=True)

    async def _prefer(self, endpoint: Endpoint, uid: str, container: str, allocation: DeviceAllocation) -> None:
        """Let the plugin choose among devices of the same place; its choice counts if these are still free."""
        resource, count = endpoint.resource, len(allocation.ids)
        places = {self._state.resources[resource].devices[each].numa for each in allocation.ids}
        free = self._state.free(resource)
        same = {each for each in free if self._state.resources[resource].devices[each].numa in places}
        with self._calling(uid, resource, "GetPreferredAllocation"):
            preferred = frozenset(await endpoint.plugin.preferred(sorted(same | allocation.ids), [], count))
        still = self._state.free(resource) | allocation.ids
        if len(preferred) == count and preferred <= still:
            self._state.allocate(uid, container, resource, preferred)
        else:
            logger.warning("device plugin prefers what cannot be had", extra={"resource": resource})

    # --- questions ------------------------------------------------------------------------------

    def amounts(self) -> DeviceAmounts:
        """For the Node's status."""
        return DeviceAmounts(
            capacity={name: Quantity.of(count) for name, count in self.capacity().items()},
            allocatable={name: Quantity.of(count) for name, count in self.allocatable().items()},
            removed=self.removed,
        )

    def capacity(self) -> Mapping[str, int]:
        return {name: len(each.devices) for name, each in self._state.resources.items()}

    def allocatable(self) -> Mapping[str, int]:
        return {name: len(each.healthy) for name, each in self._state.resources.items()}

    def admissible(self) -> Mapping[str, int]:
        """How many pods may have in all: what is allocated counts even while its plugin is away, or a restart of the
        agent would reject pods that run."""
        allocated = {resource for _, _, resource, _ in self._state.all_allocations()}
        healthy = self.allocatable()
        return {
            name: max(healthy.get(name, 0), len(self._state.taken(name)))
            for name in (*healthy, *(allocated - set(healthy)))
        }

    @property
    def removed(self) -> frozenset[str]:
        return frozenset(self._endpoints.removed)

    def devices_of(self, uid: str, container: str) -> Sequence[DeviceShare]:
        found = []
        for resource, allocation in self._state.of_container(uid, container).items():
            found += self._shares(resource, allocation.ids)
        return found

    def allocatable_devices(self) -> Sequence[DeviceShare]:
        return [share for name, each in self._state.resources.items() for share in self._shares(name, each.healthy)]

    def _shares(self, resource: str, ids: Iterable[str]) -> list[DeviceShare]:
        known = self._state.resources.get(resource)
        places: dict[tuple[int, ...], list[str]] = {}
        for each in sorted(ids):
            device = known.devices.get(each) if known is not None else None
            places.setdefault(device.numa if device is not None else (), []).append(each)
        return [DeviceShare(resource=resource, ids=tuple(group), numa=numa) for numa, group in places.items()]

    def health_of(self, uid: str, container: str) -> Mapping[str, Mapping[str, str]]:
        """Resource -> device -> Healthy, Unhealthy or Unknown."""
        return {
            resource: {each: self._health(resource, each) for each in sorted(allocation.ids)}
            for resource, allocation in self._state.of_container(uid, container).items()
        }

    def health_statuses(self, uid: str, container: str) -> list[ResourceStatus]:
        """For the container's status."""
        return [
            ResourceStatus(
                name=resource, resources=[ResourceHealth(resource_id=each, health=state) for each, state in ids.items()]
            )
            for resource, ids in self.health_of(uid, container).items()
        ]

    def _health(self, resource: str, device: str) -> str:
        known = self._state.resources.get(resource)
        found = known.devices.get(device) if known is not None else None
        if found is None:
            return "Unknown"
        return "Healthy" if found.healthy else "Unhealthy"

    def _save(self) -> None:
        """Plugins may repeat their list often: only what changed is written, and soon."""
        data = device_state.data_of(self._state)
        if data != self._saved:
            self._saved = data
            self._checkpoint.put(data)
            self._unsaved.set()

    async def _write(self, logged: str) -> str:
        """Write the checkpoint; what went wrong, logged when it differs from `logged`."""
        try:
            await self._checkpoint.flush()
        except OSError as error:
            if str(error) != logged:
                logger.error("device checkpoint not written", extra={"problem": str(error)})
            return str(error)
        return ""
