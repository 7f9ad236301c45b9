from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import Pod
from pykubelet.model.runtime_status import RuntimeConditions
from pykubelet.pods.admission import (
    CHAIN,
    AdmissionContext,
    Rejection,
    admission_chain,
    check_node_known,
    check_size,
    decide_admission,
    declared_features,
)
from pykubelet.pods.sysctls import SysctlAllowList
from pykubelet.settings.gates import Gates
from tests.unit.pods.making import a_node, a_pending_pod, a_requesting_pod, an_admission_context, container_manifest


def _outcome(pod: Pod, **facts: Any) -> tuple[str, str] | None:
    rejection = decide_admission(pod, an_admission_context(**facts)).rejection
    return (rejection.reason, rejection.message) if rejection is not None else None


BURSTABLE = a_pending_pod(containers=[container_manifest(requests={"cpu": "1m"})])
TOLERATING = a_pending_pod(tolerations=[{"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}])
CRITICAL = a_pending_pod(priority=2_000_000_000)


@pytest.mark.parametrize(
    ("pod", "pressure", "conditions"),
    [
        (a_pending_pod(), [], None),
        (a_pending_pod(), ["MemoryPressure"], "[MemoryPressure]"),
        (BURSTABLE, ["MemoryPressure"], None),
        (TOLERATING, ["MemoryPressure"], None),
        (TOLERATING, ["DiskPressure"], "[DiskPressure]"),
        (BURSTABLE, ["MemoryPressure", "DiskPressure"], "[MemoryPressure DiskPressure]"),
        (BURSTABLE, ["PIDPressure"], "[PIDPressure]"),
        (CRITICAL, ["DiskPressure"], None),
        (a_pending_pod(static=True), ["DiskPressure"], None),
    ],
)
def test_pressure(pod: Pod, pressure: list[str], conditions: str | None) -> None:
    expected = ("Evicted", f"The node had condition: {conditions}. ") if conditions else None
    assert _outcome(pod, pressure=pressure) == expected


def test_sysctls() -> None:
    pod = a_pending_pod(securityContext={"sysctls": [{"name": "kernel.panic", "value": "1"}]})
    assert _outcome(pod) == ("SysctlForbidden", 'forbidden sysctl: "kernel.panic" not allowlisted')
    shared = a_pending_pod(
        hostIPC=True, securityContext={"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}
    )
    assert _outcome(shared) == (
        "SysctlForbidden",
        'forbidden sysctl: "kernel.shm_rmid_forced" not allowed with host IPC enabled',
    )
    safe = a_pending_pod(securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]})
    assert _outcome(safe) is None


def test_unknown_node() -> None:
    context = AdmissionContext(node=None, others=(), sysctls=SysctlAllowList.of([]))
    rejection = decide_admission(a_pending_pod(), context).rejection
    assert rejection == Rejection(reason="InvalidNodeInfo", message="Kubelet cannot get node info.")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pending_pod(labels={"kubernetes.io/os": "linux"}, os={"name": "linux"}), None),
        (
            a_pending_pod(labels={"kubernetes.io/os": "windows"}),
            (
                "PodOSSelectorNodeLabelDoesNotMatch",
                "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
            ),
        ),
        (
            a_pending_pod(os={"name": "windows"}),
            ("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"),
        ),
    ],
)
def test_operating_system(pod: Pod, expected: tuple[str, str] | None) -> None:
    assert _outcome(pod) == expected


def test_supplemental_groups_policy() -> None:
    strict = a_pending_pod(securityContext={"supplementalGroupsPolicy": "Strict"})
    assert _outcome(strict) == (
        "SupplementalGroupsPolicyNotSupported",
        "SupplementalGroupsPolicy=Strict is not supported in this node",
    )
    assert _outcome(strict, node=a_node(supplemental_groups_policy=True)) is None
    assert _outcome(a_pending_pod(securityContext={"supplementalGroupsPolicy": "Merge"})) is None


def test_the_first_failure_of_the_fit_check_is_reported_and_all_are_kept() -> None:
    pod = a_requesting_pod(cpu="9")
    pod.spec.node_selector = {"zone": "z"}
    rejection = decide_admission(pod, an_admission_context()).rejection
    assert rejection is not None
    assert rejection.reason == "OutOfcpu"
    assert rejection.status_message.startswith("Pod was rejected: Node didn't have enough resource: cpu, ")
    assert [each.reason for each in rejection.failures] == ["OutOfcpu", "NodeAffinity"]
    assert not rejection.may_pass_on_fresh_node


def test_labels_alone_are_worth_a_look_at_the_live_node() -> None:
    rejection = decide_admission(a_pending_pod(nodeSelector={"zone": "z"}), an_admission_context()).rejection
    assert rejection is not None
    assert rejection.may_pass_on_fresh_node


def test_too_many_pods() -> None:
    node = a_node(allocatable={"pods": "1"})
    outcome = _outcome(a_pending_pod(), node=node, others=[a_pending_pod("other")])
    assert outcome is not None
    assert outcome[0] == "OutOfpods"


class TestCriticalPods:
    def test_victims_are_named_and_the_pod_is_admitted(self) -> None:
        victim, spared = a_requesting_pod("victim", memory="7Gi"), a_requesting_pod("spared", cpu="1m")
        verdict = decide_admission(
            a_requesting_pod(static=True, memory="4Gi"), an_admission_context(others=[spared, victim])
        )
        assert verdict.admitted
        assert verdict.victims == (victim,)

    def test_nobody_goes_when_it_fits(self) -> None:
        verdict = decide_admission(
            a_requesting_pod(static=True, cpu="1"), an_admission_context(others=[a_requesting_pod("o", cpu="1")])
        )
        assert (verdict.admitted, verdict.victims) == (True, ())

    def test_nobody_goes_when_the_pod_is_rejected_anyway(self) -> None:
        context = an_admission_context(others=[a_requesting_pod("o", cpu="4")], shutting_down=True)
        verdict = decide_admission(a_requesting_pod(static=True, cpu="1"), context)
        assert (verdict.admitted, verdict.victims) == (False, ())

    def test_resources_are_never_the_reason_when_there_is_another(self) -> None:
        pod = a_requesting_pod(static=True, cpu="9")
        pod.spec.node_selector = {"zone": "z"}
        outcome = _outcome(pod)
        assert outcome is not None
        assert outcome[0] == "NodeAffinity"

    def test_no_victims(self) -> None:
        outcome = _outcome(
            a_requesting_pod(static=True, memory="9Gi"), others=[a_requesting_pod("o", static=True, memory="1Gi")]
        )
        assert outcome == (
            "UnexpectedAdmissionError",
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of "
            "pods to preempt: no set of running pods found to reclaim resources: [(res: memory, q: 2147483648), ]",
        )

    def test_others_do_not_preempt(self) -> None:
        outcome = _outcome(
            a_requesting_pod(priority=1000, cpu="4"), others=[a_requesting_pod("o", priority=1, cpu="1")]
        )
        assert outcome is not None
        assert outcome[0] == "OutOfcpu"


OFF = ("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (a_pending_pod(), None),
        (a_pending_pod(securityContext={"appArmorProfile": {"type": "RuntimeDefault"}}), OFF),
        (a_pending_pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}), None),
        (
            a_pending_pod(
                containers=[container_manifest(securityContext={"appArmorProfile": {"type": "RuntimeDefault"}})]
            ),
            OFF,
        ),
        (a_pending_pod(annotations={"container.apparmor.security.beta.kubernetes.io/c": "runtime/default"}), OFF),
        (a_pending_pod(annotations={"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}), None),
        (
            a_pending_pod(securityContext={"appArmorProfile": {"type": "RuntimeDefault"}}, status={"phase": "Running"}),
            None,
        ),
    ],
)
def test_apparmor_on_a_host_without_it(pod: Pod, expected: tuple[str, str] | None) -> None:
    assert _outcome(pod, apparmor_problem="AppArmor is not enabled on the host") == expected


@pytest.mark.parametrize(
    ("pod", "admitted"),
    [
        (a_pending_pod(securityContext={"appArmorProfile": {"type": "Localhost", "localhostProfile": "web"}}), True),
        (a_pending_pod(securityContext={"appArmorProfile": {"type": "Localhost", "localhostProfile": " "}}), False),
        (a_pending_pod(annotations={"container.apparmor.security.beta.kubernetes.io/c": "localhost/"}), False),
        (a_pending_pod(annotations={"container.apparmor.security.beta.kubernetes.io/c": "localhost/web"}), True),
    ],
)
def test_apparmor_profiles_need_names(pod: Pod, admitted: bool) -> None:
    assert (_outcome(pod) is None) is admitted


def test_pod_level_resources_need_their_gate() -> None:
    pod = a_pending_pod(resources={"requests": {"cpu": "1"}})
    assert _outcome(pod) is None
    assert _outcome(pod, pod_level_resources=False) == (
        "PodLevelResourcesNotSupported",
        "PodLevelResources feature gate is disabled",
    )


def test_declared_features() -> None:
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]
    pod = a_pending_pod(
        hostNetwork=True, hostUsers=False, initContainers=[container_manifest("i", restartPolicyRules=rules)]
    )
    assert _outcome(pod) is None
    assert _outcome(pod, declared_features=frozenset()) == (
        "PodFeatureUnsupported",
        "Pod requires node features that are not available: "
        "RestartAllContainersOnContainerExits, UserNamespacesHostNetworkSupport",
    )
    have = frozenset({"RestartAllContainersOnContainerExits", "UserNamespacesHostNetworkSupport"})
    assert _outcome(pod, declared_features=have) is None


@pytest.mark.parametrize("on", [False, True])
@pytest.mark.parametrize("able", [False, True])
def test_a_feature_that_needs_a_gate_and_a_runtime(on: bool, able: bool) -> None:
    runtime = RuntimeConditions(user_namespaces_host_network=able)
    found = declared_features(Gates({"UserNamespacesHostNetworkSupport": on}), runtime)
    assert ("UserNamespacesHostNetworkSupport" in found) is (on and able)
    assert declared_features(Gates({"AllAlpha": True, "NodeDeclaredFeatures": False}), runtime) == []


def test_shutdown_rejects_even_critical_pods() -> None:
    assert _outcome(CRITICAL, shutting_down=True) == (
        "NodeShutdown",
        "Pod was rejected as the node is shutting down.",
    )


def test_the_first_objection_decides() -> None:
    pod = a_pending_pod(os={"name": "windows"}, securityContext={"sysctls": [{"name": "x.y", "value": "1"}]})
    facts: dict[str, Any] = {"pressure": ["DiskPressure"], "shutting_down": True}
    assert (_outcome(pod, **facts) or ("",))[0] == "Evicted"
    facts.pop("pressure")
    assert (_outcome(pod, **facts) or ("",))[0] == "SysctlForbidden"


def test_resource_managers_come_after_sysctls_and_before_the_node() -> None:
    def allocate(_pod: Pod, _context: AdmissionContext) -> Rejection | None:
        return Rejection(reason="TopologyAffinityError", message="no")

    chain = admission_chain(allocate)
    assert chain.index(allocate) == chain.index(check_node_known) - 1
    assert [each for each in chain if each is not allocate] == list(CHAIN)
    rejection = decide_admission(a_pending_pod(os={"name": "windows"}), an_admission_context(), chain).rejection
    assert rejection is not None
    assert rejection.reason == "TopologyAffinityError"


@pytest.mark.parametrize(("count", "reason"), [(500, None), (501, "TooManyContainers")])
def test_a_pod_with_more_containers_than_can_be_looked_at_is_refused(count: int, reason: str | None) -> None:
    pod = a_pending_pod(containers=[container_manifest(f"c{number}") for number in range(count)])
    rejection = check_size(pod, an_admission_context())
    assert (rejection.reason if rejection is not None else None) == reason
