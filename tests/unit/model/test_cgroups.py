"""Names of groups for both drivers, by table."""

from __future__ import annotations

import pytest

from pykubelet.model.cgroups import driver_path, named_path, uid_from_name

POD = ("kubepods", "burstable", "pod12-ab")


@pytest.mark.parametrize(
    ("driver", "root", "expected"),
    [
        ("cgroupfs", "/", "/kubepods/burstable/pod12-ab"),
        ("cgroupfs", "/fleet", "/fleet/kubepods/burstable/pod12-ab"),
        ("systemd", "/", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice"),
        (
            "systemd",
            "/my-fleet",
            "/my_fleet.slice/my_fleet-kubepods.slice/my_fleet-kubepods-burstable.slice"
            "/my_fleet-kubepods-burstable-pod12_ab.slice",
        ),
        (
            "systemd",
            "/a.slice/a-b.slice",
            "/a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-burstable.slice/a-b-kubepods-burstable-pod12_ab.slice",
        ),
    ],
)
def test_where_a_pods_group_is(driver: str, root: str, expected: str) -> None:
    path = driver_path(POD, driver=driver, root=root)
    assert path == expected
    assert uid_from_name(path.rpartition("/")[2], driver=driver) == "12-ab"


@pytest.mark.parametrize(
    ("name", "driver", "expected"),
    [
        ("/system.slice", "cgroupfs", "/system.slice"),
        ("podruntime", "cgroupfs", "/podruntime"),
        ("/system.slice", "systemd", "/system.slice"),
        ("system.slice", "systemd", "/system.slice"),
        ("/a.slice/a-b.slice", "systemd", "/a.slice/a-b.slice"),
        ("a-b.slice", "systemd", "/a.slice/a-b.slice"),
        ("/podruntime", "systemd", "/podruntime.slice"),
    ],
)
def test_where_a_group_is_that_an_administrator_named(name: str, driver: str, expected: str) -> None:
    assert named_path(name, driver=driver) == expected
