from __future__ import annotations

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.cm.capacity import (
    allocatable,
    kept_from_pods,
    machine_capacity,
    missing_essentials,
    pod_capacity,
    reservation_problem,
    reserved,
    with_devices,
)
from pykubelet.settings.schema import KubeletConfig
from pykubelet.settings.schema_resources import CgroupSettings, EvictionSettings, ReservationSettings
from pykubelet.settings.settings import Settings
from tests.unit.node.making import GIB, a_machine


def texts(amounts: dict[str, Quantity]) -> dict[str, str]:
    return {name: str(amount) for name, amount in amounts.items()}


def test_capacity_is_what_the_machine_has() -> None:
    machine = a_machine(hugepages=((2 << 20, 10), (1 << 30, 0)))
    assert texts(machine_capacity(machine, CgroupSettings(), 100 * GIB)) == {
        "cpu": "4",
        "memory": "8Gi",
        "pods": "110",
        "hugepages-2Mi": "20Mi",
        "hugepages-1Gi": "0",
        "ephemeral-storage": "100Gi",
    }


@pytest.mark.parametrize(("per_core", "most", "expected"), [(0, 110, 110), (10, 110, 40), (100, 110, 110)])
def test_pods_are_limited_by_cores_only_when_asked(per_core: int, most: int, expected: int) -> None:
    assert pod_capacity(4, CgroupSettings(max_pods=most, pods_per_core=per_core)) == expected


def test_reservations_add_up_and_reserved_cpus_replace_the_cpu_of_both() -> None:
    both = {"system_reserved": {"cpu": "500m", "memory": "1Gi"}, "kube_reserved": {"cpu": "250m", "pid": "100"}}
    assert texts(reserved(ReservationSettings(**both))) == {"cpu": "750m", "memory": "1Gi", "pid": "100"}
    assert texts(reserved(ReservationSettings(**both, reserved_system_cpus="0,2-3")))["cpu"] == "3"


def test_allocatable_leaves_out_reservations_hard_eviction_and_huge_pages() -> None:
    capacity = machine_capacity(a_machine(hugepages=((1 << 30, 2),)), CgroupSettings(), 100 * GIB)
    config = KubeletConfig(
        eviction=EvictionSettings(eviction_hard={"memory.available": "100Mi", "nodefs.available": "10%"}),
        reservations=ReservationSettings(system_reserved={"cpu": "1", "memory": "1Gi"}),
    )
    found = texts(allocatable(capacity, kept_from_pods(Settings(config=config), capacity)))
    assert found["cpu"] == "3"
    assert found["memory"] == str(Quantity.of_bytes(8 * GIB - GIB - (100 << 20) - 2 * GIB))
    assert found["ephemeral-storage"] == "90Gi"
    assert found["pods"] == "110"
    assert found["hugepages-1Gi"] == "2Gi"


def test_allocatable_is_never_negative() -> None:
    found = allocatable({"memory": Quantity.of_bytes(GIB)}, {"memory": Quantity.of_bytes(3 * GIB)})
    assert str(found["memory"]) == "0"


def test_a_reservation_above_the_capacity_is_told_in_upstreams_words() -> None:
    problem = reservation_problem({"memory": Quantity.of_bytes(GIB)}, {"memory": Quantity.of_bytes(2 * GIB)})
    assert problem == (
        'invalid Node Allocatable configuration. Resource "memory" has a reservation of 2Gi but capacity of 1Gi. '
        "Expected capacity >= reservation."
    )
    assert reservation_problem({"cpu": Quantity.of(1)}, {"cpu": Quantity.of(1), "pid": Quantity.of(9)}) == ""


def test_vendor_resources_of_others_stay_and_removed_plugins_count_zero() -> None:
    old = {"a.com/x": Quantity.of(1), "b.com/y": Quantity.of(2), "cpu": Quantity.of(9), "hugepages-4Mi": Quantity.of(1)}
    found = with_devices(old, {"cpu": Quantity.of(4)}, {"c.com/z": Quantity.of(3)}, removed={"b.com/y"})
    assert texts(found) == {"a.com/x": "1", "b.com/y": "0", "cpu": "4", "c.com/z": "3"}


def test_missing_essentials_are_named_in_upstreams_order() -> None:
    assert missing_essentials(["pods", "cpu"]) == ["memory", "ephemeral-storage"]
