"""Fields of pods whose feature gate is off: taken out where pods enter, as an API server with that gate off does.

Everything behind that works with a pod without them, so no decision depends on these gates. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from pykubelet.api.types import Container, Pod
from pykubelet.settings.gates import Gates

RESTART_RULES, RESTART_ALL = "ContainerRestartRules", "RestartAllContainersOnContainerExits"
EXTENDED = "DRAExtendedResource"


def field_filter(gates: Gates) -> Callable[[Pod], Pod] | None:
    """What takes the fields out; None when every gate is on."""
    rules, restart_all, extended = gates.enabled(RESTART_RULES), gates.enabled(RESTART_ALL), gates.enabled(EXTENDED)
    if rules and restart_all and extended:
        return None

    def regular(container: Container) -> Container:
        if not rules and (container.restart_policy is not None or container.restart_policy_rules):
            return replace(container, restart_policy=None, restart_policy_rules=[])
        return container if restart_all else without_restart_all(container)

    def init(container: Container) -> Container:
        # Always makes it a sidecar, which is no matter of these gates.
        if not rules:
            sidecar = container.restart_policy if container.restart_policy == "Always" else None
            if sidecar != container.restart_policy or container.restart_policy_rules:
                return replace(container, restart_policy=sidecar, restart_policy_rules=[])
        return container if restart_all else without_restart_all(container)

    def filtered(pod: Pod) -> Pod:
        if not extended and pod.status.extended_resource_claim_status is not None:
            # A device plugin serves the resource then, if there is one.
            pod = replace(pod, status=replace(pod.status, extended_resource_claim_status=None))
        containers = [regular(each) for each in pod.spec.containers]
        inits = [init(each) for each in pod.spec.init_containers]
        if all(new is old for new, old in zip(containers, pod.spec.containers, strict=True)) and all(
            new is old for new, old in zip(inits, pod.spec.init_containers, strict=True)
        ):
            return pod
        return replace(pod, spec=replace(pod.spec, containers=containers, init_containers=inits))

    return filtered


def without_restart_all(container: Container) -> Container:
    kept = [rule for rule in container.restart_policy_rules if rule.action != "RestartAllContainers"]
    if len(kept) == len(container.restart_policy_rules):
        return container
    return replace(container, restart_policy_rules=kept)
