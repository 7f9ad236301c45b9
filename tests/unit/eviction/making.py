"""Short ways to say thresholds, observations and what pods use."""

from __future__ import annotations

from typing import Any

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.eviction.stats import ContainerUse, PodUse
from pykubelet.eviction.thresholds import Observation
from pykubelet.settings.thresholds import Threshold, parse_amount
from tests.builders import a_container, a_pod

MIB = 1 << 20
GIB = 1 << 30


def a_threshold(
    signal: str, amount: str, *, reclaim: str = "", grace: float = 0.0, soft: bool | None = None
) -> Threshold:
    return Threshold(
        signal=signal,
        amount=parse_amount(amount),
        minimum_reclaim=parse_amount(reclaim) if reclaim else None,
        grace_period=grace,
        soft=grace > 0 if soft is None else soft,
    )


def seen(at: float = 1.0, capacity: int = 100 * GIB, **available: int) -> dict[str, Observation]:
    """`memory_available=5` is the signal memory.available."""
    names = {name: name.replace("_", ".", 1) for name in available}
    return {
        names[name]: Observation(available=value, capacity=capacity, time_ns=int(at * 1e9))
        for name, value in available.items()
    }


def a_use(memory: int | None = None, **fields: Any) -> PodUse:
    app = ContainerUse(memory=memory, **{k: fields.pop(k) for k in list(fields) if k.startswith(("layer", "logs"))})
    return PodUse(memory=memory, containers={"app": app}, **fields)


def pod_asking(name: str, *, priority: int | None = None, critical: bool = False, **requests: str) -> Pod:
    """`memory="1Gi"`, `ephemeral_storage="1Gi"`"""
    wanted = {key.replace("_", "-"): value for key, value in requests.items()}
    resources = ResourceRequirements(requests=dict(wanted)) if wanted else None
    number = 2_000_000_000 if critical else priority
    return a_pod(name, containers=[a_container(resources=resources)], priority=number)
