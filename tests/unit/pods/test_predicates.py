from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api.types import Pod, Taint
from pykubelet.pods.predicates import (
    find_failures,
    has_port_conflict,
    insufficient_resources,
    matches_node,
    parse_int64,
    untolerated_taint,
)
from tests.unit.pods.making import a_node, a_pending_pod, a_requesting_pod, container_manifest


def _found(pod: Pod, others: list[Pod], **allocatable: str) -> list[str]:
    return [each.message for each in insufficient_resources(pod, a_node(allocatable=allocatable), others)]


def test_cpu_is_told_in_millicores() -> None:
    others = [a_requesting_pod("a", cpu="3"), a_requesting_pod("b", cpu="800m")]
    assert _found(a_requesting_pod(cpu="500m"), others) == [
        "Node didn't have enough resource: cpu, requested: 500, used: 3800, capacity: 4000"
    ]


def test_all_that_is_short_is_told_pods_first() -> None:
    found = insufficient_resources(
        a_requesting_pod(cpu="5", memory="9Gi", **{"hugepages-2Mi": "2Mi", "ephemeral-storage": "1"}),
        a_node(allocatable={"pods": "1"}),
        [a_pending_pod("other")],
    )
    assert [each.reason for each in found] == [
        "OutOfpods",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfephemeral-storage",
        "OutOfhugepages-2Mi",
    ]
    assert found[0].message == "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1"
    assert found[1].missing == 1000


@pytest.mark.parametrize(
    ("pod", "allocatable"),
    [
        pytest.param(a_requesting_pod(cpu="4", memory="8Gi"), {}, id="exactly fits"),
        pytest.param(a_requesting_pod(), {"cpu": "0"}, id="nothing wanted, nothing needed"),
        pytest.param(
            a_requesting_pod(**{"vendor.io/gpu": "1"}), {}, id="unknown extended resource is for others to judge"
        ),
        pytest.param(a_requesting_pod(**{"storage": "1Ti"}), {}, id="not a resource of nodes"),
    ],
)
def test_fits(pod: Pod, allocatable: dict[str, str]) -> None:
    assert _found(pod, [], **allocatable) == []


def test_known_extended_resources_count() -> None:
    pod, other = a_requesting_pod(**{"vendor.io/gpu": "1"}), a_requesting_pod("o", **{"vendor.io/gpu": "1"})
    assert len(_found(pod, [other], **{"vendor.io/gpu": "1"})) == 1
    assert _found(pod, [other], **{"vendor.io/gpu": "2"}) == []


def test_a_request_served_by_a_claim_does_not_count() -> None:
    mapping = [{"containerName": "c", "requestName": "r", "resourceName": "vendor.io/gpu"}]
    pod = a_pending_pod(
        containers=[container_manifest(requests={"vendor.io/gpu": "1"})],
        status={"extendedResourceClaimStatus": {"requestMappings": mapping, "resourceClaimName": "x"}},
    )
    assert _found(pod, [], **{"vendor.io/gpu": "0"}) == []


@given(
    wanted=st.integers(min_value=0, max_value=5000),
    used=st.lists(st.integers(min_value=0, max_value=3000), max_size=4),
)
def test_a_pod_fits_exactly_when_the_sum_does(wanted: int, used: list[int]) -> None:
    others = [a_requesting_pod(f"o{i}", cpu=f"{milli}m") for i, milli in enumerate(used)]
    fits = not _found(a_requesting_pod(cpu=f"{wanted}m"), others)
    assert fits == (wanted == 0 or wanted + sum(used) <= 4000)


LABELS = {"zone": "a", "gen": "5", "word": "five"}


@pytest.mark.parametrize(
    ("operator", "key", "values", "expected"),
    [
        ("In", "zone", ["a", "b"], True),
        ("In", "zone", ["b"], False),
        ("In", "none", ["a"], False),
        ("In", "zone", [], False),
        ("NotIn", "zone", ["b"], True),
        ("NotIn", "zone", ["a"], False),
        ("NotIn", "none", ["a"], True),
        ("NotIn", "zone", [], False),
        ("Exists", "zone", [], True),
        ("Exists", "none", [], False),
        ("DoesNotExist", "none", [], True),
        ("DoesNotExist", "zone", [], False),
        ("Gt", "gen", ["4"], True),
        ("Gt", "gen", ["5"], False),
        ("Lt", "gen", ["6"], True),
        ("Lt", "gen", ["5"], False),
        ("Gt", "word", ["4"], False),
        ("Gt", "none", ["4"], False),
        ("Gt", "gen", ["x"], False),
        ("Gt", "gen", ["1", "2"], False),
        ("Near", "zone", ["a"], False),
    ],
)
def test_affinity_operators(operator: str, key: str, values: list[str], expected: bool) -> None:
    assert matches_node(_with_terms(_expression(key, operator, values)), a_node(labels=LABELS)) is expected


def _expression(key: str, operator: str, values: list[str]) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}


def _with_terms(*terms: dict[str, Any]) -> Pod:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return a_pending_pod(affinity={"nodeAffinity": required})


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        pytest.param([], False, id="no term matches nothing"),
        pytest.param([{}], False, id="an empty term matches nothing"),
        pytest.param([_expression("zone", "In", ["b"]), _expression("zone", "In", ["a"])], True, id="or"),
        pytest.param(
            [{"matchExpressions": [*_expression("zone", "Exists", [])["matchExpressions"], {"key": "no"}]}],
            False,
            id="and",
        ),
        pytest.param(
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}], True, id="name"
        ),
        pytest.param(
            [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}], False, id="not name"
        ),
        pytest.param(
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]}],
            False,
            id="a field has one value",
        ),
        pytest.param(
            [{"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["x"]}]}], False, id="other field"
        ),
    ],
)
def test_affinity_terms(terms: list[dict[str, Any]], expected: bool) -> None:
    assert matches_node(_with_terms(*terms), a_node(labels=LABELS)) is expected


def test_node_selector_and_affinity_must_both_match() -> None:
    node = a_node(labels=LABELS)
    assert matches_node(a_pending_pod(nodeSelector={"zone": "a", "gen": "5"}), node)
    assert not matches_node(a_pending_pod(nodeSelector={"zone": "a", "gen": "6"}), node)
    both = _with_terms(_expression("zone", "In", ["a"]))
    both.spec.node_selector = {"zone": "b"}
    assert not matches_node(both, node)


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("-5", -5), ("+5", 5), ("1_0", None), (" 1", None), ("", None), ("٣", None), ("9" * 19, None)],
)
def test_numbers_are_read_as_go_reads_them(text: str, value: int | None) -> None:
    assert parse_int64(text) == value


def _with_port(name: str, port: int, *, address: str = "", protocol: str = "", where: str = "containers") -> Pod:
    described: dict[str, Any] = {"containerPort": 80, "hostPort": port}
    described.update({"hostIP": address} if address else {}, **({"protocol": protocol} if protocol else {}))
    container = {"name": "p", "image": "i", "ports": [described]}
    if where == "sidecar":
        return a_pending_pod(name, initContainers=[{**container, "restartPolicy": "Always"}])
    return a_pending_pod(name, **{where: [container]})


@pytest.mark.parametrize(
    ("pod", "other", "conflict"),
    [
        (_with_port("a", 80), _with_port("b", 80), True),
        (_with_port("a", 80), _with_port("b", 81), False),
        (_with_port("a", 80), _with_port("b", 80, protocol="UDP"), False),
        (_with_port("a", 80, protocol="TCP"), _with_port("b", 80), True),
        (_with_port("a", 80, address="10.0.0.1"), _with_port("b", 80, address="10.0.0.2"), False),
        (_with_port("a", 80, address="10.0.0.1"), _with_port("b", 80, address="10.0.0.1"), True),
        (_with_port("a", 80), _with_port("b", 80, address="10.0.0.1"), True),
        (_with_port("a", 80, address="10.0.0.1"), _with_port("b", 80, address="0.0.0.0"), True),
        (_with_port("a", 0), _with_port("b", 0), False),
        (_with_port("a", 80), _with_port("b", 80, where="initContainers"), False),
        (_with_port("a", 80), _with_port("b", 80, where="sidecar"), True),
    ],
)
def test_host_ports(pod: Pod, other: Pod, conflict: bool) -> None:
    assert has_port_conflict(pod, [other]) is conflict


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, True),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "x", "operator": "Exists"}, False),
        ({"key": "k", "value": "5"}, True),
        ({"key": "k", "operator": "Equal", "value": "6"}, False),
        ({"key": "k", "operator": "Gt", "value": "4"}, True),
        ({"key": "k", "operator": "Lt", "value": "4"}, False),
        ({"key": "k", "operator": "Gt", "value": "x"}, False),
        ({"key": "k", "operator": "Near", "value": "5"}, False),
    ],
)
def test_tolerations(toleration: dict[str, str] | None, tolerated: bool) -> None:
    pod = a_pending_pod(tolerations=[toleration] if toleration else [])
    node = a_node(taints=[Taint(key="k", value="5", effect="NoExecute")])
    assert (untolerated_taint(pod, node, compare=True) is None) is tolerated


def test_comparing_tolerations_need_their_gate() -> None:
    pod = a_pending_pod(tolerations=[{"key": "k", "operator": "Gt", "value": "4"}])
    node = a_node(taints=[Taint(key="k", value="5", effect="NoExecute")])
    assert untolerated_taint(pod, node) is not None


def test_only_no_execute_concerns_the_agent() -> None:
    node = a_node(taints=[Taint(key="k", effect="NoSchedule"), Taint(key="l", effect="PreferNoSchedule")])
    assert untolerated_taint(a_pending_pod(), node) is None


def test_failures_come_in_upstreams_order_with_upstreams_words() -> None:
    node = a_node(taints=[Taint(key="k", effect="NoExecute")])
    pod = _with_port("a", 80)
    pod.spec.node_name = "elsewhere"
    pod.spec.node_selector = {"zone": "z"}
    pod.spec.containers[0].resources = a_requesting_pod(cpu="9").spec.containers[0].resources
    found = find_failures(pod, node, [_with_port("b", 80)])
    assert [(each.reason, each.message) for each in found] == [
        ("OutOfcpu", "Node didn't have enough resource: cpu, requested: 9000, used: 0, capacity: 4000"),
        ("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"),
        ("NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name"),
        ("NodePorts", "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"),
        ("TaintToleration", "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"),
    ]


def test_taints_do_not_hold_static_pods_off() -> None:
    node = a_node(taints=[Taint(key="k", effect="NoExecute")])
    assert find_failures(a_pending_pod(static=True), node, []) == []
