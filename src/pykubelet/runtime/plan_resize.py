"""Decide whether a running container's cpu or memory must change, and whether that needs a restart.

Compares the resources of the (allocated) spec with those last put into force. Does not cover the order
between containers and cgroups, nor whether a resize was admitted at all.
"""

from __future__ import annotations

from pykubelet.api.types import Container
from pykubelet.model.pod_resources import differing, effective_resources
from pykubelet.model.runtime_status import ContainerState, ContainerStatus
from pykubelet.runtime.plan_values import ContainerResize, Draft, KillReason


def restarts_to_resize(draft: Draft, container: Container, status: ContainerStatus) -> bool:
    """Note a wanted resize in the draft. True, with a kill noted, when it takes a restart."""
    resize = judge_resize(container, status, draft)
    if resize is None:
        return False
    draft.resize.append(resize)
    if resize.needs_restart:
        draft.add_kill(status, f"Container {container.name} resize requires restart", KillReason.RESIZE)
    return resize.needs_restart


def judge_resize(container: Container, status: ContainerStatus, draft: Draft) -> ContainerResize | None:
    """The change a running container needs, if any."""
    if draft.inputs.actuated is None or status.state is not ContainerState.RUNNING:
        return None
    actuated = draft.inputs.actuated.get(container.name or "")
    if actuated is None:
        # No record of what was put into force: a guess could restart a healthy container.
        return None
    wanted = effective_resources(draft.inputs.pod.spec.resources, container)
    changed = differing(wanted, actuated)
    if not changed:
        return None
    policies = {policy.resource_name: policy.restart_policy for policy in container.resize_policy}
    return ContainerResize(
        id=status.id,
        name=status.name,
        wanted=wanted,
        actuated=actuated,
        resources=changed,
        needs_restart=any(policies.get(name) == "RestartContainer" for name in changed),
    )
