"""Resources of a container as its status shows them: what is really in force.

Starts from the allocated spec and, for a running container, puts in what the runtime reports. Values at
or below what the kernel can express keep the spec's figure, so that 1m is not shown as 2m.
"""

from __future__ import annotations

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ContainerStatus, QuantityValue, ResourceRequirements
from pykubelet.model.pod import AnyContainer
from pykubelet.model.runtime_status import ContainerResources, ContainerState
from pykubelet.model.runtime_status import ContainerStatus as RuntimeContainerStatus

_SMALLEST_CPU_REQUEST = 2
_SMALLEST_CPU_LIMIT = 10
_SHARES_PER_CPU = 1024


def container_resources(
    container: AnyContainer,
    run: RuntimeContainerStatus,
    old: ContainerStatus | None,
    actuated: ResourceRequirements | None,
) -> ResourceRequirements:
    spec = container.resources or ResourceRequirements()
    requests, limits = dict(spec.requests), dict(spec.limits)
    if run.state is ContainerState.RUNNING:
        before = _told_before(run, old)
        in_force = run.resources or ContainerResources()
        if limits:
            _put_cpu(limits, before.limits, _cpu_limit(in_force), _SMALLEST_CPU_LIMIT)
            _put(limits, before.limits, "memory", _bytes(in_force.memory_limit_bytes))
        if requests:
            _put_cpu(requests, before.requests, _cpu_request(in_force), _SMALLEST_CPU_REQUEST)
            memory = actuated.requests.get("memory") if actuated is not None else None
            _put(requests, before.requests, "memory", Quantity.parse(memory) if memory is not None else None)
    return ResourceRequirements(requests=requests, limits=limits, claims=list(spec.claims))


def _told_before(run: RuntimeContainerStatus, old: ContainerStatus | None) -> ResourceRequirements:
    """What the status said about this very run; stands in for what the runtime does not report."""
    if old is None or old.resources is None or old.state is None or old.state.running is None:
        return ResourceRequirements()
    same = (old.container_id or "").rpartition("://")[2] == run.id
    return old.resources if same else ResourceRequirements()


def _put_cpu(
    values: dict[str, QuantityValue], before: dict[str, QuantityValue], cpu: Quantity | None, smallest: int
) -> None:
    spec = Quantity.parse(values.get("cpu", 0)).milli_value()
    if cpu is not None and cpu.milli_value() <= smallest and spec <= smallest:
        return
    _put(values, before, "cpu", cpu)


def _put(
    values: dict[str, QuantityValue], before: dict[str, QuantityValue], name: str, amount: Quantity | None
) -> None:
    if amount is None:
        if name in before:
            values[name] = before[name]
    elif name not in values or Quantity.parse(values[name]) != amount:
        # Equal amounts keep the author's spelling.
        values[name] = str(amount)


def _cpu_limit(in_force: ContainerResources) -> Quantity | None:
    if not in_force.cpu_period or not in_force.cpu_quota or in_force.cpu_quota < 0:
        return None
    milli = in_force.cpu_quota * 1000 // in_force.cpu_period
    return Quantity.of_milli(milli) if milli else None


def _cpu_request(in_force: ContainerResources) -> Quantity | None:
    if not in_force.cpu_shares:
        return None
    return Quantity.of_milli(-(-in_force.cpu_shares * 1000 // _SHARES_PER_CPU))


def _bytes(amount: int | None) -> Quantity | None:
    return Quantity.of_bytes(amount) if amount else None
