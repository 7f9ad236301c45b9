"""Admission asks with the facts of the moment and the gates of the settings."""

from __future__ import annotations

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ContainerRestartRule, Pod, ResourceRequirements
from pykubelet.cm.admission import NodeNow, PodAdmission
from pykubelet.model.runtime_status import RuntimeConditions
from pykubelet.pods.predicates import NodeInfo
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.settings.gates import Gates
from tests.builders import a_container, a_pod

ALL_AGAIN = a_pod(containers=[a_container(restart_policy_rules=[ContainerRestartRule(action="RestartAllContainers")])])


NODE = NodeInfo(name="node1", labels={}, allocatable={"pods": Quantity.parse("10")})


class Managers:
    """Stand for the resource managers: every pod is new to them and admitted."""

    def __init__(self) -> None:
        self.released: list[str] = []

    def admit(self, pod: Pod) -> bool:
        return True

    def release(self, uid: str) -> None:
        self.released.append(uid)


def an_admission(**gates: bool) -> PodAdmission:
    return PodAdmission(
        node=NodeNow(info=lambda: NODE),
        sysctls=SysctlAllowList.for_kernel("6.1.0", ()),
        gates=Gates(gates),
        managers=Managers(),
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
    rejection = an_admission(**gates).decide(ALL_AGAIN, ()).rejection
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
    assert an_admission(**gates).lacking_for_change(a_pod(init=[a_container("i")]), new) == lacking


def test_what_the_runtime_can_do_is_looked_at_for_each_pod() -> None:
    pod, able = a_pod(), [False]
    pod.spec.host_network, pod.spec.host_users = True, False
    admission = PodAdmission(
        node=NodeNow(info=lambda: NODE),
        sysctls=SysctlAllowList.for_kernel("6.1.0", ()),
        gates=Gates({"UserNamespacesHostNetworkSupport": True}),
        managers=Managers(),
        runtime=lambda: RuntimeConditions(user_namespaces_host_network=able[0]),
    )
    assert not admission.decide(pod, ()).admitted
    able[0] = True
    assert admission.decide(pod, ()).admitted


def test_a_running_pod_whose_resize_is_refused_under_pressure_keeps_what_it_has() -> None:
    """Nothing was allocated in that question, so nothing is to be undone."""
    pressure: list[str] = []
    managers = Managers()
    admission = PodAdmission(
        node=NodeNow(info=lambda: NODE, pressure=lambda: pressure),
        sysctls=SysctlAllowList.for_kernel("6.1.0", ()),
        gates=Gates({}),
        managers=managers,
    )
    assert admission.decide(a_pod(), ()).admitted
    pressure.append("DiskPressure")
    assert not admission.decide(a_pod(), ()).admitted
    assert managers.released == []
    pressure.clear()
    assert not admission.decide(a_pod(), [a_pod(str(number)) for number in range(10)]).admitted
    assert len(managers.released) == 1
