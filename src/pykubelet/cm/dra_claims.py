"""Claims of pods: which a pod has, which are prepared on this node, and the checkpoint of it in upstream's format.

A claim is recorded before its driver is called, so that a killed agent unprepares what may have been prepared.
Whether it is prepared is known only to the life that did it: another one calls the driver again, which is harmless.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from pykubelet.api.types import OwnerReference, Pod, ResourceClaimConsumerReference, ResourceResourceClaim
from pykubelet.clients.plugins.port import ClaimRef, PreparedDevice
from pykubelet.kit.files import Checkpoint, Envelope
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import AnyContainer, name_of, uid_of

# --- what pods ask for ----------------------------------------------------------------------------------------


class ClaimProblem(PykubeletError):
    """Why a pod cannot have its claims yet."""


class PodClaim(NamedTuple):
    name: str
    """Of the claim object."""
    owned: bool
    """Made for this pod from a template: no other claim will do."""


def claims_of(pod: Pod) -> Iterator[PodClaim]:
    """All claims of the pod. One for which none was needed is left out; one that is not made yet is a problem."""
    made = {each.name: each for each in pod.status.resource_claim_statuses}
    for claim in pod.spec.resource_claims:
        if claim.resource_claim_name:
            yield PodClaim(claim.resource_claim_name, False)
        elif claim.resource_claim_template_name:
            status = made.get(claim.name)
            if status is None:
                raise ClaimProblem(f'the claim "{claim.name}" of the pod was not made from its template yet')
            if status.resource_claim_name:
                yield PodClaim(status.resource_claim_name, True)
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        yield PodClaim(extended.resource_claim_name, False)


def requests_of(pod: Pod, container: AnyContainer) -> Iterator[tuple[str, str, str]]:
    """What the container requests: (name in the pod, name of the claim object, request or '')."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    named = {each.name: each.resource_claim_name or made.get(each.name) for each in pod.spec.resource_claims}
    for requested in container.resources.claims if container.resources is not None else ():
        if claim := named.get(requested.name):
            yield requested.name or "", claim, requested.request or ""
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        for mapping in extended.request_mappings:
            if mapping.container_name == container.name:
                yield "", extended.resource_claim_name, mapping.request_name or ""


SCHEDULING = "scheduling.k8s.io"


def check_claim(pod: Pod, claim: PodClaim, found: ResourceResourceClaim, *, for_groups: bool) -> None:
    """Whether the pod may use it. `for_groups`: that of the pod's PodGroup, too, which the pod knows by name only."""
    of_pod = pod.spec.scheduling_group
    group = of_pod.pod_group_name if for_groups and of_pod is not None else None
    if claim.owned and not any(_is_owner(owner, uid_of(pod), group) for owner in found.metadata.owner_references):
        raise ClaimProblem(f"ResourceClaim {claim.name} was not created for pod {name_of(pod)}")
    if not any(_is_reservation(each, uid_of(pod), group) for each in found.status.reserved_for):
        raise ClaimProblem(
            f"pod {name_of(pod)} ({uid_of(pod)}) is not allowed to use ResourceClaim {claim.name} "
            f"({found.metadata.uid})"
        )


def _is_owner(owner: OwnerReference, uid: str, group: str | None) -> bool:
    if not owner.controller:
        return False
    of_group = owner.kind == "PodGroup" and (owner.api_version or "").startswith(f"{SCHEDULING}/")
    return owner.uid == uid or (group is not None and of_group and owner.name == group)


def _is_reservation(reserved: ResourceClaimConsumerReference, uid: str, group: str | None) -> bool:
    if reserved.resource == "podgroups" and reserved.api_group == SCHEDULING:
        return group is not None and reserved.name == group
    return reserved.resource == "pods" and reserved.uid == uid


def drivers_of(claim: ResourceResourceClaim) -> list[str]:
    allocation = claim.status.allocation
    if allocation is None:
        raise ClaimProblem(f"ResourceClaim {claim.metadata.name}: not allocated")
    results = allocation.devices.results if allocation.devices is not None else []
    return list(dict.fromkeys(each.driver or "" for each in results))


FILE = "dra_manager_state"
KIND, VERSION = "DRACheckpoint", "checkpoint.dra.kubelet.k8s.io/v1"


class ClaimEntry(Struct, eq=False):
    ref: ClaimRef
    pods: set[str] = field(default_factory=set)
    drivers: dict[str, list[PreparedDevice]] = field(default_factory=dict)
    prepared: bool = False

    def devices(self, request: str = "") -> Iterator[tuple[str, PreparedDevice]]:
        """(driver, device) for one request of the claim, or for all."""
        base = request.partition("/")[0]
        for driver, devices in self.drivers.items():
            for device in devices:
                if not base or not device.requests or base in device.requests:
                    yield driver, device


class ClaimState:
    def __init__(self, path: Path) -> None:
        self._checkpoint = Checkpoint(path, encode=encode, decode=decode)
        self._claims: dict[tuple[str, str], ClaimEntry] = {}

    def get(self, namespace: str, name: str) -> ClaimEntry | None:
        return self._claims.get((namespace, name))

    def add(self, entry: ClaimEntry) -> None:
        self._claims[entry.ref.namespace, entry.ref.name] = entry

    def drop(self, entry: ClaimEntry) -> None:
        """Another claim may have its name by now."""
        if self.get(entry.ref.namespace, entry.ref.name) is entry:
            del self._claims[entry.ref.namespace, entry.ref.name]

    def of_pod(self, uid: str) -> list[ClaimEntry]:
        return [entry for entry in self._claims.values() if uid in entry.pods]

    def __iter__(self) -> Iterator[ClaimEntry]:
        return iter(list(self._claims.values()))

    # --- on disk --------------------------------------------------------------------------------

    def load(self) -> None:
        """After damage the agent begins with nothing, as upstream: drivers drop what is not prepared again."""
        for entry in self._checkpoint.load() or ():
            self.add(entry)

    async def save(self) -> None:
        """Returns when it is on disk."""
        self._checkpoint.put(list(self))
        await self._checkpoint.flush()


ENVELOPE = Envelope(lambda text: zlib.crc32(text.encode()), data="Data", sum="Checksum")


def encode(entries: list[ClaimEntry]) -> bytes:
    data = {"kind": KIND, "apiVersion": VERSION, "ClaimInfoStateList": [_state(each) for each in entries]}
    return ENVELOPE.seal(json.dumps(data, separators=(",", ":")))


def decode(raw: bytes) -> list[ClaimEntry]:
    """Raises CheckpointDamaged, or any error for entries of another shape."""
    return [_entry(each) for each in json.loads(ENVELOPE.open(raw))["ClaimInfoStateList"] or ()]


def _state(entry: ClaimEntry) -> dict[str, Any]:
    return {
        "ClaimUID": entry.ref.uid,
        "ClaimName": entry.ref.name,
        "Namespace": entry.ref.namespace,
        "PodUIDs": {uid: {} for uid in sorted(entry.pods)},
        "DriverState": {
            driver: {
                "Devices": [
                    {
                        "PoolName": each.pool,
                        "DeviceName": each.device,
                        "ShareID": each.share_id or None,
                        "RequestNames": list(each.requests),
                        "CDIDeviceIDs": list(each.cdi_ids),
                    }
                    for each in devices
                ]
            }
            for driver, devices in entry.drivers.items()
        },
    }


def _entry(state: dict[str, Any]) -> ClaimEntry:
    return ClaimEntry(
        ref=ClaimRef(namespace=state["Namespace"], name=state["ClaimName"], uid=state["ClaimUID"]),
        pods=set(state["PodUIDs"] or ()),
        drivers={
            driver: [
                PreparedDevice(
                    pool=each["PoolName"],
                    device=each["DeviceName"],
                    requests=tuple(each["RequestNames"] or ()),
                    cdi_ids=tuple(each["CDIDeviceIDs"] or ()),
                    share_id=each.get("ShareID") or "",
                )
                for each in found["Devices"] or ()
            ]
            for driver, found in (state["DriverState"] or {}).items()
        },
    )
