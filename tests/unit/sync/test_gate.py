"""Admission asks with the facts of the moment and the gates of the settings."""

from __future__ import annotations

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ContainerRestartRule
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.settings.gates import Gates
from pykubelet.sync.gate import AdmissionGate
from tests.builders import a_container, a_pod

ALL_AGAIN = a_pod(containers=[a_container(restart_policy_rules=[ContainerRestartRule(action="RestartAllContainers")])])


def a_gate(**gates: bool) -> AdmissionGate:
    return AdmissionGate(
        node=lambda: NodeInfo(name="node1", labels={}, allocatable={"pods": Quantity.parse("10")}),
        sysctls=SysctlAllowList.for_kernel("6.1.0", ()),
        gates=Gates(gates),
    )


@pytest.mark.parametrize(
    ("gates", "reason"),
    [
        ({}, None),
        ({"RestartAllContainersOnContainerExits": False}, "PodFeatureUnsupported"),
        ({"RestartAllContainersOnContainerExits": False, "NodeDeclaredFeatures": False}, None),
    ],
)
def test_features_that_this_node_does_not_declare_are_refused(gates: dict[str, bool], reason: str | None) -> None:
    rejection = a_gate(**gates).decide(ALL_AGAIN, ()).rejection
    assert (None if rejection is None else rejection.reason) == reason
