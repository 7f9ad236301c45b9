"""Generates a pod's status from its spec, what the runtime reports, probe outcomes and what was reported before.

`generate_pod_status` is pure and touches none of its inputs. Covers phase, conditions, container
statuses, addresses, start time. Does not cover keeping or sending statuses (manager.py), nor comparing
two of them or ending one (changes.py).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import msgspec

from pykubelet.api.types import HostIP, PodCondition, PodIP, PodStatus
from pykubelet.model.lifecycle import any_regular_in_active_sandbox
from pykubelet.model.pod import is_terminal_phase, qos_class, uses_host_network
from pykubelet.model.reasons import DISRUPTION_TARGET, PREEMPTING
from pykubelet.status.conditions import FAILED, OWNED, find_condition, own_conditions, pod_phase, stamp_transitions
from pykubelet.status.containers import container_statuses, set_readiness
from pykubelet.status.inputs import StatusInputs, StatusOverride

__all__ = ["DEADLINE_EXCEEDED", "StatusInputs", "StatusOverride", "generate_pod_status"]

DEADLINE_EXCEEDED = StatusOverride(
    phase=FAILED,
    reason="DeadlineExceeded",
    message="Pod was active on the node longer than the specified deadline",
)


def generate_pod_status(inputs: StatusInputs) -> PodStatus:
    pod, old = inputs.pod, inputs.old
    spec = pod.spec
    status = PodStatus(
        container_statuses=container_statuses(inputs, spec.containers, old.container_statuses),
        init_container_statuses=container_statuses(
            inputs, spec.init_containers, old.init_container_statuses, init=True
        ),
        ephemeral_container_statuses=container_statuses(
            inputs, spec.ephemeral_containers, old.ephemeral_container_statuses
        ),
        qos_class=qos_class(pod).value,
        start_time=old.start_time or pod.status.start_time or inputs.moment,
        observed_generation=_newer(pod.metadata.generation, old.observed_generation),
        # Written by others and kept.
        nominated_node_name=pod.status.nominated_node_name,
        resource_claim_statuses=pod.status.resource_claim_statuses,
        extended_resource_claim_status=pod.status.extended_resource_claim_status,
    )
    # Readiness first: the phase depends on whether sidecars have started.
    set_readiness(inputs, status)
    _set_phase(inputs, status)
    status.conditions = _conditions_of_others(inputs)
    status.conditions += own_conditions(inputs, status)
    stamp_transitions(status, inputs)
    _set_addresses(inputs, status)
    return status


def _set_phase(inputs: StatusInputs, status: PodStatus) -> None:
    pod, old = inputs.pod, inputs.old
    phase = pod_phase(
        pod,
        (*status.container_statuses, *status.init_container_statuses),
        terminal=inputs.terminal,
        initialised=any_regular_in_active_sandbox(pod, inputs.runtime),
    )
    # A pod that has ended stays as it ended, even if its containers change later: one that was evicted has failed,
    # although its program may have ended well on its signal. One that made room ends as its containers do.
    if not (old.reason == PREEMPTING and is_terminal_phase(phase)):
        phase = next((was for was in (old.phase, pod.status.phase) if was and is_terminal_phase(was)), phase)
    status.phase = phase
    if phase == old.phase:
        status.reason = old.reason or pod.status.reason
        status.message = old.message or pod.status.message
    if inputs.override is not None:
        status.phase = inputs.override.phase
        status.reason = inputs.override.reason
        status.message = inputs.override.message
    if is_terminal_phase(pod.status.phase):
        status.phase = pod.status.phase


def _conditions_of_others(inputs: StatusInputs) -> list[PodCondition]:
    """Conditions to keep: foreign ones, resizes as given, and a disruption noted earlier by us."""
    kept = [c for c in inputs.pod.status.conditions if c.type not in OWNED]
    kept += inputs.resize_conditions
    disruption = find_condition(inputs.old.conditions, DISRUPTION_TARGET)
    if disruption is not None:
        kept = [c for c in kept if c.type != DISRUPTION_TARGET]
        kept.append(disruption)
    # Copies: they are dated below, and the originals belong to others.
    return [msgspec.structs.replace(condition) for condition in kept]


def _set_addresses(inputs: StatusInputs, status: PodStatus) -> None:
    pod_ips = sort_addresses(inputs.runtime.ips, prefers_ipv6=inputs.prefers_ipv6)
    if inputs.host_ips:
        status.host_ip = inputs.host_ips[0]
        status.host_ips = [HostIP(ip=ip) for ip in inputs.host_ips[:2]]
        if uses_host_network(inputs.pod):
            pod_ips = pod_ips or [inputs.host_ips[0]]
            second = inputs.host_ips[1:2]
            if second and len(pod_ips) == 1 and _version(second[0]) != _version(pod_ips[0]):
                pod_ips.append(second[0])
    if pod_ips:
        status.pod_ip = pod_ips[0]
        status.pod_ips = [PodIP(ip=ip) for ip in pod_ips]


def sort_addresses(addresses: Iterable[str], *, prefers_ipv6: bool) -> list[str]:
    """The first address of the node's own family, then the first of the other; in their usual spelling."""
    first: dict[int, str] = {}
    for address in addresses:
        try:
            parsed = ipaddress.ip_address(address)
        except ValueError:
            continue  # a runtime's odd text is no usable address
        first.setdefault(parsed.version, str(parsed))
    order = (6, 4) if prefers_ipv6 else (4, 6)
    return [first[version] for version in order if version in first]


def _version(address: str) -> int:
    return ipaddress.ip_address(address).version


def _newer(generation: int | None, reported: int | None) -> int | None:
    known = [value for value in (generation, reported) if value]
    return max(known) if known else None
