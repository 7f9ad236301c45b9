from __future__ import annotations

import pytest

from pykubelet.api.types import (
    Container,
    ContainerRestartRule,
    Pod,
    PodExtendedResourceClaimStatus,
    PodSpec,
    PodStatus,
)
from pykubelet.pods.gated_fields import field_filter
from pykubelet.settings.gates import Gates

RULES, ALL = "ContainerRestartRules", "RestartAllContainersOnContainerExits"


def a_pod_with_rules() -> Pod:
    rules = [ContainerRestartRule(action="Restart"), ContainerRestartRule(action="RestartAllContainers")]
    return Pod(
        spec=PodSpec(
            init_containers=[
                Container(name="sidecar", restart_policy="Always"),
                Container(name="init", restart_policy="Never", restart_policy_rules=list(rules)),
            ],
            containers=[Container(name="app", restart_policy="Never", restart_policy_rules=list(rules))],
        )
    )


def shown(pod: Pod) -> list[tuple[str, str | None, list[str]]]:
    return [
        (c.name or "", c.restart_policy, [rule.action or "" for rule in c.restart_policy_rules])
        for c in (*pod.spec.init_containers, *pod.spec.containers)
    ]


@pytest.mark.parametrize(
    ("gates", "init", "app"),
    [
        ({RULES: False, ALL: False}, (None, []), (None, [])),
        ({ALL: False}, ("Never", ["Restart"]), ("Never", ["Restart"])),
    ],
)
def test_fields_of_a_gate_that_is_off_are_taken_out(
    gates: dict[str, bool], init: tuple[str | None, list[str]], app: tuple[str | None, list[str]]
) -> None:
    pod, filtered = a_pod_with_rules(), field_filter(Gates(gates))
    assert filtered is not None
    assert shown(filtered(pod)) == [("sidecar", "Always", []), ("init", *init), ("app", *app)]
    assert shown(pod) == shown(a_pod_with_rules())  # what the source delivered is its own


def test_claims_for_extended_resources_are_taken_out() -> None:
    claims = PodExtendedResourceClaimStatus(resource_claim_name="c")
    pod = Pod(spec=PodSpec(), status=PodStatus(phase="Running", extended_resource_claim_status=claims))
    filtered = field_filter(Gates({"DRAExtendedResource": False}))
    assert filtered is not None
    assert filtered(pod).status == PodStatus(phase="Running")
    assert pod.status.extended_resource_claim_status is claims


def test_pods_without_such_fields_are_handed_on_as_they_are() -> None:
    plain = Pod(spec=PodSpec(containers=[Container(name="app")]))
    filtered = field_filter(Gates({RULES: False, ALL: False}))
    assert filtered is not None and filtered(plain) is plain
    assert field_filter(Gates({})) is None
