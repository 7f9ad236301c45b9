"""Admission asks with the facts of the moment and the gates of the settings."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ContainerRestartRule, Pod, ResourceRequirements
from pykubelet.node.conditions import NodeConditions
from pykubelet.pods.admission import Rejection
from pykubelet.pods.predicates import NodeInfo
from pykubelet.settings.gates import Gates
from pykubelet.settings.settings import Settings
from pykubelet.signals import Signals
from pykubelet.sync.admission import AdmissionGate
from tests.builders import a_container, a_context, a_pod
from tests.harness import MACHINE

ALL_AGAIN = a_pod(containers=[a_container(restart_policy_rules=[ContainerRestartRule(action="RestartAllContainers")])])


def a_gate(**gates: bool) -> AdmissionGate:
    return made(NodeConditions(Signals()), **gates)


def made(conditions: NodeConditions, resource_managers: Any = None, **gates: bool) -> AdmissionGate:
    return AdmissionGate(
        a_context(settings=Settings(gates=Gates(gates))),
        MACHINE,
        node=lambda: NodeInfo(name="node1", labels={}, allocatable={"pods": Quantity.parse("10")}),
        conditions=conditions,
        resource_managers=resource_managers,
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


CPU = ResourceRequirements(requests={"cpu": "1"})


@pytest.mark.parametrize(
    ("new", "gates", "lacking"),
    [
        (a_pod(init=[a_container("i")]), {"InPlacePodVerticalScalingInitContainers": False}, []),
        (
            a_pod(init=[a_container("i", resources=CPU)]),
            {"InPlacePodVerticalScalingInitContainers": False},
            ["InPlacePodVerticalScalingInitContainers"],
        ),
        (
            a_pod(init=[a_container("i", resources=CPU)]),
            {"InPlacePodVerticalScalingInitContainers": False, "NodeDeclaredFeatures": False},
            [],
        ),
        (
            a_pod(init=[a_container("i")], resources=CPU),
            {"InPlacePodLevelResourcesVerticalScaling": False},
            ["InPlacePodLevelResourcesVerticalScaling"],
        ),
        (a_pod(init=[a_container("i")], resources=CPU), {"InPlacePodLevelResourcesVerticalScaling": True}, []),
    ],
)
def test_features_that_a_change_needs(new: Pod, gates: dict[str, bool], lacking: list[str]) -> None:
    assert a_gate(**gates).lacking_for_change(a_pod(init=[a_container("i")]), new) == lacking


def test_a_running_pod_whose_resize_is_refused_under_pressure_keeps_what_it_has() -> None:
    """Nothing was allocated in that question, so nothing is to be undone."""
    conditions = NodeConditions(Signals())
    undone: list[Pod] = []

    class Allocator:
        def admit(self, pod: Pod) -> Rejection | None:
            return None

        def undo(self, pod: Pod) -> None:
            undone.append(pod)

    gate = made(conditions, Allocator())
    assert gate.decide(a_pod(), ()).admitted
    conditions.set_pressures(("DiskPressure",))
    assert not gate.decide(a_pod(), ()).admitted
    assert undone == []
    conditions.set_pressures(())
    assert not gate.decide(a_pod(), [a_pod(str(number)) for number in range(10)]).admitted
    assert len(undone) == 1
