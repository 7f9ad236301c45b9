"""Which devices there are, who holds which, and what could be given: all bookkeeping, nothing that waits.

A device belongs to at most one container at a time. A container of a pod may take over what a finished init container
of the same pod held. The books outlive the agent in a checkpoint (checkpoint.py) and a plugin's absence: who holds a
device keeps it, though nothing is known of the device meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from pykubelet.clients.plugins.port import Device, Handed
from pykubelet.model.errors import PykubeletError


class DevicesRefused(PykubeletError):
    """Why a pod cannot have its devices. Texts are upstream's: they end up in the status of the pod."""


class Grant(Struct, kw_only=True):
    """Devices of one resource that one container holds."""

    ids: frozenset[str]
    handed: Handed | None = None
    """The plugin's answer; None until it was asked."""


Held = dict[str, dict[str, dict[str, Grant]]]
"""Pod uid -> container -> resource."""


class Resource(Struct):
    """All devices of one name, as the plugin last told."""

    devices: dict[str, Device] = field(default_factory=dict)
    running: bool = False
    """Whether a plugin stands behind it now."""

    @property
    def healthy(self) -> frozenset[str]:
        return frozenset(each.id for each in self.devices.values() if each.healthy)

    def stop(self) -> None:
        """The plugin went: nobody vouches for its devices."""
        self.running = False
        self.devices = {each.id: Device(id=each.id, healthy=False, numa=each.numa) for each in self.devices.values()}


class DeviceBooks:
    def __init__(self) -> None:
        self.resources: dict[str, Resource] = {}
        self.held: Held = {}

    # --- who holds what -------------------------------------------------------------------------

    def grant(self, uid: str, container: str, resource: str) -> Grant | None:
        return self.held.get(uid, {}).get(container, {}).get(resource)

    def grants(self, uid: str, container: str) -> Mapping[str, Grant]:
        return self.held.get(uid, {}).get(container, {})

    def taken(self, resource: str) -> set[str]:
        found: set[str] = set()
        for containers in self.held.values():
            for grants in containers.values():
                if resource in grants:
                    found |= grants[resource].ids
        return found

    def users_of(self, resource: str, ids: Iterable[str]) -> set[str]:
        """Pods that hold any of these."""
        wanted = set(ids)
        return {
            uid
            for uid, containers in self.held.items()
            if any(resource in grants and grants[resource].ids & wanted for grants in containers.values())
        }

    def give(self, uid: str, container: str, resource: str, ids: Iterable[str]) -> None:
        self.held.setdefault(uid, {}).setdefault(container, {})[resource] = Grant(ids=frozenset(ids))

    def release(self, uid: str) -> bool:
        """Give back all the pod holds; whether that was anything."""
        return self.held.pop(uid, None) is not None

    # --- what could be given --------------------------------------------------------------------

    def free(self, resource: str) -> frozenset[str]:
        known = self.resources.get(resource)
        return known.healthy - self.taken(resource) if known is not None else frozenset()

    def choose(
        self, resource: str, count: int, *, reusable: frozenset[str] = frozenset(), nodes: int | None = None
    ) -> list[str]:
        """`count` devices: what may be reused first, then those in the wanted place, then others, then those whose
        place is unknown. `nodes` is a bit mask of NUMA nodes; None = anywhere. Raises DevicesRefused."""
        self._check(resource)
        again = sorted(reusable & self.resources[resource].healthy)[:count]
        missing = count - len(again)
        if missing <= 0:
            return again
        free = self.free(resource) - set(again)
        if len(free) < missing:
            raise DevicesRefused(
                f"requested number of devices unavailable for {resource}. Requested: {missing}, Available: {len(free)}"
            )
        ordered = [device for group in self.by_place(resource, free, nodes) for device in group]
        return again + ordered[:missing]

    def by_place(self, resource: str, ids: Iterable[str], nodes: int | None) -> tuple[list[str], list[str], list[str]]:
        """Aligned with the wanted place, elsewhere, and unknown."""
        devices = self.resources[resource].devices
        aligned: list[str] = []
        elsewhere: list[str] = []
        unknown: list[str] = []
        for each in sorted(ids):
            numa = devices[each].numa
            if not numa or nodes is None:
                unknown.append(each)
            elif any(nodes >> node & 1 for node in numa):
                aligned.append(each)
            else:
                elsewhere.append(each)
        return aligned, elsewhere, unknown

    def _check(self, resource: str) -> None:
        known = self.resources.get(resource)
        if known is None:
            raise DevicesRefused(f"cannot allocate unregistered device {resource}")
        if not known.healthy:
            raise DevicesRefused(f"no healthy devices present; cannot allocate unhealthy devices {resource}")

    # --- places ---------------------------------------------------------------------------------

    def hints(
        self, resource: str, count: int, *, reusable: frozenset[str], masks: Sequence[int]
    ) -> list[tuple[int, bool]] | None:
        """Where `count` devices could be had: (mask, preferred), small places first; None = it does not matter.

        Preferred are the places with the fewest nodes that could ever hold as many, given or not."""
        known = self.resources.get(resource)
        if known is None or not any(device.numa for device in known.devices.values()):
            return None
        free = self.free(resource) | (reusable & known.healthy)
        placed = {each: _mask(known.devices[each].numa) for each in known.devices}
        fits = [mask for mask in masks if sum(1 for each in known.devices if placed[each] & mask) >= count]
        smallest = min((mask.bit_count() for mask in fits), default=0)
        found = []
        for mask in masks:
            if any(not placed[each] & mask for each in reusable if placed.get(each)):
                continue  # what is held already must be inside
            if sum(1 for each in free if placed[each] & mask) >= count:
                found.append((mask, mask.bit_count() == smallest))
        return found

    def all_grants(self) -> Iterator[tuple[str, str, str, Grant]]:
        for uid, containers in self.held.items():
            for container, grants in containers.items():
                for resource, grant in grants.items():
                    yield uid, container, resource, grant


def _mask(nodes: Iterable[int]) -> int:
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask
