"""Fields and resources as texts."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.api.types import ResourceFieldSelector, ResourceRequirements
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.downward import Addresses, field_value, quote, resource_value
from tests.builders import a_container, a_pod

ADDRESSES = Addresses(pod=("10.1.0.5", "fd00::5"), host=("192.168.0.1", "fd00::1"))
ALLOCATABLE = {
    "cpu": Quantity.parse("3500m"),
    "memory": Quantity.parse("8Gi"),
    "ephemeral-storage": Quantity.parse("100Gi"),
    "hugepages-2Mi": Quantity.parse("64Mi"),
}


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("metadata.name", "web"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "uid-web"),
        ("metadata.labels['app']", "shop"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['example.com/It's']", "odd"),
        ("metadata.labels", 'app="shop"\ntier="a\\"b"'),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "192.168.0.1"),
        ("status.hostIPs", "192.168.0.1,fd00::1"),
        ("status.podIP", "10.1.0.5"),
        ("status.podIPs", "10.1.0.5,fd00::5"),
    ],
)
def test_fields(path: str, wanted: str) -> None:
    pod = a_pod(
        namespace="team",
        labels={"tier": 'a"b', "app": "shop"},
        annotations={"example.com/It's": "odd"},
        node_name="n1",
        service_account_name="sa",
    )
    assert field_value(pod, path, ADDRESSES) == wanted


@pytest.mark.parametrize("path", ["spec.hostname", "", "metadata.labels[app]", "metadata.finalizers['x']"])
def test_unknown_fields_are_refused(path: str) -> None:
    with pytest.raises(ConfigProblem, match="unsupported fieldPath"):
        field_value(a_pod(), path, ADDRESSES)


def test_addresses_are_empty_until_known() -> None:
    assert field_value(a_pod(), "status.podIP", Addresses()) == ""
    assert field_value(a_pod(), "status.hostIP", Addresses()) == ""


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("a\tb\n", '"a\\tb\\n"'), ("é", '"é"'), ("\x01", '"\\x01"'), ("\u200b", '"\\u200b"'), ("\\", '"\\\\"')],
)
def test_quote(value: str, wanted: str) -> None:
    assert quote(value) == wanted


def value_of(selector: dict[str, Any], resources: ResourceRequirements | None = None, **spec: Any) -> str:
    pod = a_pod(containers=[a_container(resources=resources), a_container("other")], **spec)
    return resource_value(pod, pod.spec.containers[0], ResourceFieldSelector(**selector), ALLOCATABLE)


HELD = ResourceRequirements(
    requests={"cpu": "250m", "memory": "32Mi", "hugepages-2Mi": "4Mi"},
    limits={"cpu": "1500m", "memory": "64Mi", "hugepages-2Mi": "4Mi", "ephemeral-storage": "1500"},
)


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ({"resource": "limits.cpu"}, "2"),
        ({"resource": "limits.cpu", "divisor": "1m"}, "1500"),
        ({"resource": "limits.cpu", "divisor": "0"}, "2"),
        ({"resource": "requests.cpu"}, "1"),
        ({"resource": "limits.memory"}, str(64 << 20)),
        ({"resource": "limits.memory", "divisor": "1Mi"}, "64"),
        ({"resource": "limits.memory", "divisor": "1Gi"}, "1"),
        ({"resource": "requests.memory", "divisor": "1k"}, "33555"),
        ({"resource": "limits.ephemeral-storage", "divisor": "1k"}, "2"),
        ({"resource": "limits.hugepages-2Mi", "divisor": "1Mi"}, "4"),
        ({"resource": "requests.hugepages-2Mi"}, str(4 << 20)),
        ({"resource": "requests.ephemeral-storage"}, "0"),
    ],
)
def test_resources(selector: dict[str, Any], wanted: str) -> None:
    assert value_of(selector, HELD) == wanted


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        ({"resource": "limits.cpu"}, "4"),
        ({"resource": "limits.memory"}, str(8 << 30)),
        ({"resource": "limits.ephemeral-storage"}, str(100 << 30)),
        ({"resource": "limits.hugepages-2Mi"}, "0"),
        ({"resource": "requests.cpu"}, "0"),
        ({"resource": "limits.memory", "container_name": "other"}, str(8 << 30)),
    ],
)
def test_an_unset_limit_shows_what_the_node_has(selector: dict[str, Any], wanted: str) -> None:
    assert value_of(selector) == wanted
    assert value_of(selector, ResourceRequirements(limits={"cpu": 0, "memory": "0"})) == wanted


def test_a_pod_level_limit_counts_before_the_nodes() -> None:
    whole = ResourceRequirements(limits={"memory": "1Gi"})
    assert resource_value(
        a_pod(resources=whole), a_container(), ResourceFieldSelector(resource="limits.memory"), ALLOCATABLE
    ) == str(1 << 30)


@pytest.mark.parametrize("resource", ["limits.pods", "cpu", "", "limits.", "usage.cpu"])
def test_unknown_resources_are_refused(resource: str) -> None:
    with pytest.raises(ConfigProblem, match=f"unsupported container resource : {resource}"):
        value_of({"resource": resource})


def test_an_unknown_container_is_refused() -> None:
    with pytest.raises(ConfigProblem, match="container gone not found"):
        value_of({"resource": "limits.cpu", "container_name": "gone"})
