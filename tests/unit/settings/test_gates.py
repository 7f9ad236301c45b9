"""Feature gates: defaults, group switches, refusals."""

from __future__ import annotations

import pytest

from pykubelet.settings.gates import Gates, gate_problems, known_gates


@pytest.mark.parametrize(
    ("chosen", "name", "enabled"),
    [
        ({}, "NodeSwap", True),
        ({}, "EventedPLEG", False),
        ({"EventedPLEG": True}, "EventedPLEG", True),
        ({"AllAlpha": True}, "EventedPLEG", True),
        ({"AllAlpha": True, "EventedPLEG": False}, "EventedPLEG", False),
        ({"AllAlpha": True}, "SELinuxMount", False),
        ({"AllBeta": True}, "SELinuxMount", True),
        ({"AllBeta": False}, "ContainerCheckpoint", False),
        ({"AllBeta": False}, "NodeSwap", True),
    ],
)
def test_enabled(chosen: dict[str, bool], name: str, enabled: bool) -> None:
    assert Gates(chosen).enabled(name) is enabled


def test_asking_for_an_unknown_gate_is_a_bug() -> None:
    with pytest.raises(KeyError, match="NoSuchGate"):
        Gates({}).enabled("NoSuchGate")


def test_every_problem_is_named() -> None:
    assert gate_problems({"EventedPLG": True, "NodeSwap": False, "JobManagedBy": True}) == [
        "unrecognized feature gate: EventedPLG (did you mean EventedPLEG?)",
        "cannot set feature gate NodeSwap to false, feature is locked to true",
    ]


def test_a_gate_needs_others() -> None:
    assert gate_problems({"ClusterTrustBundleProjection": True}) == [
        "feature gate ClusterTrustBundleProjection is on but needs ClusterTrustBundle, which is off"
    ]
    assert gate_problems({"ClusterTrustBundleProjection": True, "ClusterTrustBundle": True}) == []


def test_defaults_have_no_problems() -> None:
    assert gate_problems({}) == []
    assert {gate.default for gate in known_gates().values() if gate.stage == "Alpha"} == {False}


def test_gates_on_their_way_out_warn() -> None:
    assert Gates({"CustomCPUCFSQuotaPeriod": True, "EventedPLEG": True}).warnings() == [
        "featureGates: CustomCPUCFSQuotaPeriod is GA and the gate will be removed in a future release"
    ]


def test_a_gate_that_switches_nothing_says_so() -> None:
    assert Gates({"KubeletSeparateDiskGC": True}).in_vain() == []
    assert Gates({"KubeletSeparateDiskGC": False, "AllAlpha": True}).in_vain() == ["KubeletSeparateDiskGC"]
