"""Which claims a pod has, by what names, and which parts of them each container asked for. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pykubelet.api.types import Pod, ResourceResourceClaim
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import AnyContainer, name_of, uid_of


class ClaimProblem(PykubeletError):
    """Why a pod cannot have its claims yet."""


class PodClaim(NamedTuple):
    name: str
    """Of the claim object."""
    owned: bool
    """Made for this pod from a template: nobody else's will do."""


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
    """What the container asked for: (name in the pod, name of the claim object, request or '')."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    named = {each.name: each.resource_claim_name or made.get(each.name) for each in pod.spec.resource_claims}
    for asked in container.resources.claims if container.resources is not None else ():
        if claim := named.get(asked.name):
            yield asked.name or "", claim, asked.request or ""
    extended = pod.status.extended_resource_claim_status
    if extended is not None and extended.resource_claim_name:
        for mapping in extended.request_mappings:
            if mapping.container_name == container.name:
                yield "", extended.resource_claim_name, mapping.request_name or ""


def check_claim(pod: Pod, claim: PodClaim, found: ResourceResourceClaim) -> None:
    """Whether the pod may use it."""
    if claim.owned:
        owners = found.metadata.owner_references
        if not any(owner.controller and owner.uid == uid_of(pod) for owner in owners):
            raise ClaimProblem(f"ResourceClaim {claim.name} was not created for pod {name_of(pod)}")
    reserved = found.status.reserved_for
    if not any(each.resource == "pods" and each.uid == uid_of(pod) for each in reserved):
        raise ClaimProblem(
            f"pod {name_of(pod)} ({uid_of(pod)}) is not allowed to use ResourceClaim {claim.name} "
            f"({found.metadata.uid})"
        )


def drivers_of(claim: ResourceResourceClaim) -> list[str]:
    allocation = claim.status.allocation
    if allocation is None:
        raise ClaimProblem(f"ResourceClaim {claim.metadata.name}: not allocated")
    results = allocation.devices.results if allocation.devices is not None else []
    return list(dict.fromkeys(each.driver or "" for each in results))
