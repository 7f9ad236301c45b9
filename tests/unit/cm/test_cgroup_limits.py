"""Limits of pod cgroups and of the class groups above them, one row per rule."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.api.types import Pod, ResourceRequirements
from pykubelet.cm.cgroups import CgroupRules, class_limits, pod_limits, share_of
from pykubelet.model.cgroups import CgroupLimits, driver_path, pod_parts, uid_from_name
from pykubelet.model.pod import QosClass
from tests.builders import a_container, a_pod, a_sidecar

MIB = 1 << 20


def held(requests: dict[str, Any] | None = None, limits: dict[str, Any] | None = None) -> ResourceRequirements:
    return ResourceRequirements(requests=requests or {}, limits=limits or {})


def both(cpu: str, memory: str) -> ResourceRequirements:
    return held({"cpu": cpu, "memory": memory}, {"cpu": cpu, "memory": memory})


def figures(limits: CgroupLimits) -> tuple[int | None, int | None, int | None]:
    return limits.cpu_shares, limits.cpu_quota_us, limits.memory_bytes


GUARANTEED = a_pod(containers=[a_container("a", resources=both("500m", "64Mi"))])
BURSTABLE = a_pod(containers=[a_container("a", resources=held({"cpu": "250m"}, {"memory": "64Mi"}))])


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param(GUARANTEED, (512, 50_000, 64 * MIB), id="guaranteed"),
        pytest.param(BURSTABLE, (256, -1, 64 * MIB), id="burstable, memory limit only"),
        pytest.param(a_pod(), (2, -1, -1), id="best effort"),
        pytest.param(
            a_pod(
                containers=[
                    a_container("a", resources=both("500m", "64Mi")),
                    a_container("b", resources=held({"cpu": "100m"})),
                ]
            ),
            (614, -1, -1),
            id="one container without limits leaves the pod without",
        ),
        pytest.param(
            a_pod(containers=[a_container("a", resources=held({"cpu": "1"}, {"cpu": "0", "memory": "64Mi"}))]),
            (1024, -1, 64 * MIB),
            id="a limit of 0 is none",
        ),
        pytest.param(
            a_pod(
                init=[a_sidecar("s", resources=both("100m", "32Mi")), a_container("i", resources=both("2", "16Mi"))],
                containers=[a_container("a", resources=both("500m", "64Mi"))],
            ),
            (2150, 210_000, 96 * MIB),
            id="the hungriest moment of the start counts",
        ),
        pytest.param(
            a_pod(
                containers=[a_container("a", resources=both("500m", "64Mi"))],
                overhead={"cpu": "100m", "memory": "16Mi"},
            ),
            (614, 60_000, 80 * MIB),
            id="overhead comes on top",
        ),
        pytest.param(
            a_pod(containers=[a_container("a"), a_container("b")], resources=both("1", "128Mi")),
            (1024, 100_000, 128 * MIB),
            id="amounts for the whole pod count for it",
        ),
        pytest.param(
            a_pod(containers=[a_container("a", resources=both("5m", "64Mi"))]),
            (5, 1000, 64 * MIB),
            id="no quota below a millisecond",
        ),
    ],
)
def test_a_pods_own_group(pod: Pod, expected: tuple[int, int, int]) -> None:
    assert figures(pod_limits(pod, CgroupRules())) == expected


def test_settings_change_quota_and_pids() -> None:
    assert pod_limits(GUARANTEED, CgroupRules(cfs_quota=False)).cpu_quota_us == -1
    assert pod_limits(GUARANTEED, CgroupRules(unthrottled=lambda pod: True)).cpu_quota_us == -1
    assert pod_limits(GUARANTEED, CgroupRules(period_us=10_000)).cpu_quota_us == 5000
    assert pod_limits(GUARANTEED, CgroupRules()).pids is None
    assert pod_limits(GUARANTEED, CgroupRules(pids_per_pod=1000)).pids == 1000


def test_huge_pages_not_asked_for_may_not_be_used() -> None:
    asked = held({"cpu": "1", "hugepages-2Mi": "4Mi"}, {"cpu": "1", "hugepages-2Mi": "4Mi"})
    pod = a_pod(containers=[a_container("a", resources=asked), a_container("b", resources=asked)])
    rules = CgroupRules(hugepage_sizes=(2 * MIB, 1 << 30))
    assert pod_limits(pod, rules).hugepages == {2 * MIB: 8 * MIB, 1 << 30: 0}
    assert pod_limits(a_pod(), rules).hugepages == {2 * MIB: 0, 1 << 30: 0}


def test_memory_protection_follows_the_class() -> None:
    rules = CgroupRules(memory_qos=True, tiered_reservation=True)
    assert pod_limits(GUARANTEED, rules).unified == {"memory.min": str(64 * MIB)}
    asks = a_pod(containers=[a_container("a", resources=held({"memory": "32Mi"}))])
    assert pod_limits(asks, rules).unified == {"memory.low": str(32 * MIB)}
    assert pod_limits(a_pod(), rules).unified == {}
    assert pod_limits(GUARANTEED, CgroupRules(memory_qos=True)).unified == {}
    classes = class_limits(map(share_of, (GUARANTEED, asks)), rules)
    assert classes[QosClass.GUARANTEED].unified == {"memory.min": str(96 * MIB)}
    assert classes[QosClass.BURSTABLE].unified == {"memory.low": str(32 * MIB)}
    classes = class_limits([share_of(asks)], CgroupRules(memory_qos=True))
    assert classes[QosClass.BURSTABLE].unified == {"memory.low": "0"}


def test_class_groups_add_up_their_pods() -> None:
    sizes = CgroupRules(hugepage_sizes=(2 * MIB,))
    classes = class_limits(map(share_of, (GUARANTEED, BURSTABLE, BURSTABLE, a_pod())), sizes)
    assert classes[QosClass.BURSTABLE].cpu_shares == 512
    assert classes[QosClass.BEST_EFFORT].cpu_shares == 2
    assert classes[QosClass.BEST_EFFORT].hugepages == {2 * MIB: 1 << 62}
    assert classes[QosClass.GUARANTEED] == CgroupLimits()
    assert class_limits([], sizes)[QosClass.BURSTABLE].cpu_shares == 2


@pytest.mark.parametrize(("percent", "burstable", "best_effort"), [(0, None, None), (100, 936, 904), (50, 968, 952)])
def test_part_of_what_a_class_requested_is_kept_from_those_below(
    percent: int, burstable: int | None, best_effort: int | None
) -> None:
    asks = a_pod(containers=[a_container(resources=held({"memory": "32Mi"}))])
    rules = CgroupRules(memory_reserve_percent=percent, memory_for_pods_bytes=1000 * MIB)
    classes = class_limits(map(share_of, (GUARANTEED, asks, a_pod())), rules)
    wanted = [None if each is None else each * MIB for each in (burstable, best_effort)]
    assert [classes[qos].memory_bytes for qos in (QosClass.BURSTABLE, QosClass.BEST_EFFORT)] == wanted


@pytest.mark.parametrize(
    ("driver", "path", "name"),
    [
        ("cgroupfs", "/kubepods/burstable/poda-b", "poda-b"),
        (
            "systemd",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice",
            "kubepods-burstable-poda_b.slice",
        ),
    ],
)
def test_names_are_in_the_drivers_spelling_and_can_be_read_back(driver: str, path: str, name: str) -> None:
    pod = a_pod(uid="a-b", containers=BURSTABLE.spec.containers)
    assert driver_path(pod_parts(pod), driver=driver) == path
    assert uid_from_name(name, driver=driver) == "a-b"


@pytest.mark.parametrize("name", ["burstable", "pod", "kubepods-burstable.slice", "cri-containerd-x.scope"])
@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
def test_other_groups_are_no_pods(name: str, driver: str) -> None:
    assert uid_from_name(name, driver=driver) is None
