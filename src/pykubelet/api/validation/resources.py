"""Requests and limits of containers and of the whole pod, overhead and resource claims."""

from collections.abc import Callable, Collection, Mapping, Sequence

from pykubelet.api.pod_resources import (
    HUGE_PAGES,
    POD_LEVEL,
    Amounts,
    aggregate_limits,
    aggregate_requests,
    can_overcommit,
    is_huge_pages,
    is_native,
    is_pod_level,
    parse_amount,
)
from pykubelet.api.quantity import NANO, ZERO, Quantity
from pykubelet.api.types import (
    ContainerResizePolicy,
    PodResourceClaim,
    PodSpec,
    QuantityValue,
    ResourceClaim,
    ResourceRequirements,
)
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import Findings, key_path, show, spoken

CONTAINER_RESOURCES = ("cpu", "memory", "ephemeral-storage")

NameRule = Callable[[str], str | None]


def container_resource(name: str) -> str | None:
    complaint = names.qualified_name(name)
    if complaint is not None:
        return complaint
    if "/" not in name:
        if name in CONTAINER_RESOURCES or is_huge_pages(name):
            return None
        known = (*CONTAINER_RESOURCES, "hugepages-SIZE", "domain/name")
        return f"must be {spoken(known)}, not {show(name)}"
    if not is_native(name) and (name.startswith("requests.") or names.qualified_name(f"requests.{name}") is not None):
        return f"is not an extended resource name: {show(name)}"
    return None


def pod_resource(name: str) -> str | None:
    complaint = names.qualified_name(name)
    if complaint is None and not is_pod_level(name):
        return f"must be {spoken((*POD_LEVEL, 'hugepages-SIZE'))} for a whole pod, not {show(name)}"
    return complaint


def validate_requirements(
    resources: ResourceRequirements | None, at: str, claims: Collection[str], rule: NameRule, found: Findings
) -> None:
    if resources is None:
        return
    limits = _amounts(resources.limits, f"{at}.limits", rule, found)
    # A request that only repeats the limit was put there by defaulting: one complaint about both is enough.
    repeated = {name for name, value in resources.requests.items() if resources.limits.get(name) == value}
    requests = _amounts(resources.requests, f"{at}.requests", rule, found, silent=repeated)
    for name, request in requests.items():
        path = key_path(f"{at}.requests", name)
        limit = limits.get(name)
        if limit is None:
            if not can_overcommit(name) and name not in resources.limits:
                found.add(key_path(f"{at}.limits", name), "required, because the request and limit must be equal")
        elif not can_overcommit(name) and request != limit:
            found.add(path, f"must equal the limit {limit}, not {show(request)}")
        elif limit < request:
            found.add(path, f"must be at most the limit {limit}, not {show(request)}")
    given = {**limits, **requests}
    if any(is_huge_pages(name) for name in given) and not {"cpu", "memory"} & given.keys():
        found.add(at, "huge pages need a cpu or memory amount too")
    _validate_claim_names(resources.claims, f"{at}.claims", claims, found)


def validate_overhead(overhead: Mapping[str, QuantityValue], found: Findings) -> None:
    _amounts(overhead, "spec.overhead", container_resource, found)


def _amounts(
    values: Mapping[str, QuantityValue],
    at: str,
    rule: NameRule,
    found: Findings,
    *,
    silent: Collection[str] = (),
) -> Amounts:
    """The readable amounts; complaints about names and values, except for the silent ones."""
    amounts: Amounts = {}
    for name, value in values.items():
        amount = parse_amount(value)
        if amount is not None:
            amounts[name] = amount
        if name in silent:
            continue
        path = key_path(at, name)
        found.check(path, rule(name))
        if amount is None:
            found.add(path, f"must be a quantity such as 100m or 64Mi, not {show(value)}")
        elif amount < ZERO:
            found.add(path, f"must not be negative, not {show(amount)}")
        elif is_huge_pages(name):
            _validate_huge_pages(name, amount, path, found)
        elif not is_native(name) and amount.nano_value() % NANO:
            found.add(path, f"must be a whole number, not {show(amount)}")
    return amounts


def _validate_huge_pages(name: str, amount: Quantity, path: str, found: Findings) -> None:
    size = parse_amount(name.removeprefix(HUGE_PAGES))
    if size is None or size <= ZERO:
        found.add(path, f"must name a page size such as hugepages-2Mi, not {show(name)}")
    elif amount.value() % size.value():
        found.add(path, f"must be a multiple of the page size {size}, not {show(amount)}")


def _validate_claim_names(claims: Sequence[ResourceClaim], at: str, known: Collection[str], found: Findings) -> None:
    seen: dict[str, set[str]] = {}
    for i, claim in enumerate(claims):
        path = f"{at}[{i}]"
        name, request = claim.name or "", claim.request or ""
        if not found.required(f"{path}.name", name):
            continue
        if request:
            found.check(f"{path}.request", names.dns_label(request))
        earlier = seen.setdefault(name, set())
        # Naming a claim without a request takes all of its requests, so it overlaps with every other use.
        if earlier and (not request or "" in earlier or request in earlier):
            found.add(path, f"claim {show(name)} is used twice")
        earlier.add(request)
        if name not in known:
            found.add(f"{path}.name", f"there is no claim named {show(name)} in spec.resourceClaims")


def validate_pod_claims(claims: Sequence[PodResourceClaim], found: Findings) -> set[str]:
    """Check spec.resourceClaims and answer the names containers may use."""
    seen: set[str] = set()
    for i, claim in enumerate(claims):
        path = f"spec.resourceClaims[{i}]"
        if found.required(f"{path}.name", claim.name):
            found.check(f"{path}.name", names.dns_label(claim.name or ""))
            if claim.name in seen:
                found.add(f"{path}.name", f"is used twice: {show(claim.name)}")
            seen.add(claim.name or "")
        if (claim.resource_claim_name is None) == (claim.resource_claim_template_name is None):
            found.add(path, "must have exactly one of resourceClaimName, resourceClaimTemplateName")
        for field, name in (
            ("resourceClaimName", claim.resource_claim_name),
            ("resourceClaimTemplateName", claim.resource_claim_template_name),
        ):
            if name is not None:
                found.check(f"{path}.{field}", names.dns_subdomain(name))
    return seen


def validate_resize(
    policies: Sequence[ContainerResizePolicy], at: str, pod_restart: str | None, found: Findings
) -> None:
    seen: set[str] = set()
    for i, policy in enumerate(policies):
        path = f"{at}[{i}]"
        resource = policy.resource_name or ""
        if resource in seen:
            found.add(f"{path}.resourceName", f"is used twice: {show(resource)}")
        seen.add(resource)
        if found.required(f"{path}.resourceName", resource):
            found.choice(f"{path}.resourceName", resource, ("cpu", "memory"))
        if found.required(f"{path}.restartPolicy", policy.restart_policy):
            found.choice(f"{path}.restartPolicy", policy.restart_policy, ("NotRequired", "RestartContainer"))
            if pod_restart == "Never" and policy.restart_policy == "RestartContainer":
                found.add(f"{path}.restartPolicy", "must be NotRequired when the pod's restartPolicy is Never")


def validate_pod_resources(spec: PodSpec, found: Findings) -> None:
    """Pod-level amounts must hold what the containers ask for."""
    resources = spec.resources
    if resources is None:
        return
    at = "spec.resources"
    if resources.claims:
        found.add(f"{at}.claims", "must not be set for a whole pod")
    validate_requirements(
        ResourceRequirements(limits=resources.limits, requests=resources.requests), at, (), pod_resource, found
    )
    _holds(resources.requests, aggregate_requests(spec), f"{at}.requests", found)
    huge = {name: amount for name, amount in aggregate_limits(spec).items() if is_huge_pages(name)}
    _holds(resources.limits, huge, f"{at}.limits", found)
    for i, container in enumerate(spec.containers):
        if container.resources is None:
            continue
        for name, value in container.resources.limits.items():
            limit, own = parse_amount(resources.limits.get(name, "")), parse_amount(value)
            if limit is not None and own is not None and limit < own:
                found.add(
                    key_path(f"spec.containers[{i}].resources.limits", name),
                    f"must be at most the pod's limit {limit}, not {own}",
                )


def _holds(pod: Mapping[str, QuantityValue], containers: Amounts, at: str, found: Findings) -> None:
    for name, needed in containers.items():
        given = parse_amount(pod.get(name, ""))
        if given is not None and given < needed:
            found.add(key_path(at, name), f"must be at least what the containers ask for, {needed}, not {given}")
