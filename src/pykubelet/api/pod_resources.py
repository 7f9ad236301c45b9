"""What the containers of a pod ask for together, and which resource names mean what.

Covers: summing requests or limits over init containers, sidecars and regular containers; the name
rules (native, huge pages, allowed at pod level); rounding. Does not cover: overhead, pod-level
resources as such, or whether amounts are sensible (validation/resources.py).
"""

from collections.abc import Iterable

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import Container, PodSpec, QuantityValue

HUGE_PAGES = "hugepages-"
POD_LEVEL = ("cpu", "memory")

Amounts = dict[str, Quantity]


def is_native(name: str) -> bool:
    """Kubernetes' own resource, not an extended one of a vendor."""
    return "/" not in name or "kubernetes.io/" in name


def is_huge_pages(name: str) -> bool:
    return name.startswith(HUGE_PAGES)


def can_overcommit(name: str) -> bool:
    """May the request be lower than the limit."""
    return is_native(name) and not is_huge_pages(name)


def is_pod_level(name: str) -> bool:
    """May the resource be set for the pod as a whole."""
    return name in POD_LEVEL or is_huge_pages(name)


def parse_amount(value: QuantityValue) -> Quantity | None:
    """The quantity, or None when it is not one; validation says so with the field's name."""
    try:
        return Quantity.parse(value)
    except ValueError:
        return None


def rounded_up_to_milli(value: QuantityValue) -> QuantityValue:
    """Nothing finer than a thousandth is kept; anything unreadable is returned as it is."""
    amount = parse_amount(value)
    if amount is None or amount.nano_value() % 10**6 == 0:
        return value
    return str(Quantity.of_milli(amount.milli_value(), amount.format))


def aggregate_requests(spec: PodSpec) -> Amounts:
    """The larger of: all long-running containers together, or the hungriest moment of the start-up."""
    return _aggregate(spec, "requests")


def aggregate_limits(spec: PodSpec) -> Amounts:
    return _aggregate(spec, "limits")


def _aggregate(spec: PodSpec, which: str) -> Amounts:
    total: Amounts = {}
    for container in spec.containers:
        _add(total, _amounts(container, which))
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        amounts = _amounts(container, which)
        if container.restart_policy == "Always":
            _add(total, amounts)
            _add(sidecars, amounts)
            _raise_to(peak, sidecars)
        else:
            moment = dict(sidecars)
            _add(moment, amounts)
            _raise_to(peak, moment)
    _raise_to(total, peak)
    return total


def _amounts(container: Container, which: str) -> list[tuple[str, Quantity]]:
    if container.resources is None:
        return []
    values: Iterable[tuple[str, QuantityValue]] = getattr(container.resources, which).items()
    parsed = ((name, parse_amount(value)) for name, value in values)
    return [(name, amount) for name, amount in parsed if amount is not None]


def _add(total: Amounts, more: Iterable[tuple[str, Quantity]]) -> None:
    for name, amount in more:
        total[name] = total[name] + amount if name in total else amount


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, amount in floor.items():
        if name not in total or total[name] < amount:
            total[name] = amount
