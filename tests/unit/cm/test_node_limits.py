"""What the groups above pods and of the reservations are limited to, by table."""

from __future__ import annotations

import pytest

from pykubelet.api.quantity import Quantity
from pykubelet.cm.node_allocatable import (
    Enforcement,
    NodeAmounts,
    group_limits,
    pods_limits,
    reserved_groups,
)
from pykubelet.model.cgroups import CgroupLimits

GIB = 1 << 30


def amounts(**texts: str) -> dict[str, Quantity]:
    return {name.replace("_", "-"): Quantity.parse(text) for name, text in texts.items()}


def an_enforcement(*what: str) -> Enforcement:
    return Enforcement(what=frozenset(what), system_group="/sys", kube_group="/kube")


CAPACITY = amounts(cpu="4", memory="8Gi", pid="32768", hugepages_2Mi="64Mi", pods="110")
SYSTEM, KUBE = amounts(cpu="500m", memory="1Gi", pid="100"), amounts(cpu="1", memory="512Mi")
NODE = NodeAmounts(
    capacity=CAPACITY, system=SYSTEM, kube=KUBE, reserved=amounts(cpu="1500m", memory="1536Mi", pid="100")
)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (
            ("pods",),
            CgroupLimits(
                cpu_shares=2560, memory_bytes=8 * GIB - 1536 * (1 << 20), pids=32668, hugepages={2 << 20: 64 << 20}
            ),
        ),
        (
            ("none",),
            CgroupLimits(cpu_shares=4096, memory_bytes=8 * GIB, pids=32768, hugepages={2 << 20: 64 << 20}),
        ),
    ],
)
def test_all_pods_get_what_is_not_reserved(what: tuple[str, ...], expected: CgroupLimits) -> None:
    assert pods_limits(NODE, an_enforcement(*what)) == expected


def test_more_reserved_than_there_is_leaves_nothing_and_no_limit_of_zero() -> None:
    node = NodeAmounts(capacity=amounts(cpu="1", memory="1Gi"), reserved=amounts(cpu="2", memory="2Gi"))
    assert pods_limits(node, an_enforcement("pods")) == CgroupLimits(cpu_shares=2)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (("pods",), []),
        (
            ("pods", "system-reserved"),
            [("systemReservedCgroup", "/sys", CgroupLimits(cpu_shares=512, memory_bytes=GIB, pids=100))],
        ),
        (("system-reserved-compressible",), [("systemReservedCgroup", "/sys", CgroupLimits(cpu_shares=512))]),
        (
            ("kube-reserved", "system-reserved-compressible"),
            [
                ("systemReservedCgroup", "/sys", CgroupLimits(cpu_shares=512)),
                ("kubeReservedCgroup", "/kube", CgroupLimits(cpu_shares=1024, memory_bytes=GIB // 2)),
            ],
        ),
    ],
)
def test_reserved_groups(what: tuple[str, ...], expected: list[tuple[str, str, CgroupLimits]]) -> None:
    found = reserved_groups(NODE, an_enforcement(*what))
    assert [(each.setting, each.name, each.limits) for each in found] == expected


def test_what_is_not_named_is_left_alone() -> None:
    assert group_limits({}) == CgroupLimits()
