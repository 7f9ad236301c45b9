"""Pods with user namespaces (`hostUsers: false`) on a runtime that has them, seen from inside.

Where the kernel refuses such namespaces or their mounts the tests are skipped with its words.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.bed.inside import Inside, Manifest, container_manifest, looking_inside, pod_manifest
from tests.bed.runtime import BedContainerd

pytestmark = pytest.mark.node

SEE = """
echo UID=$(id -u)
echo MAP=$(cat /proc/self/uid_map)
echo GROUPS_MAP=$(cat /proc/self/gid_map)
touch /data/file && echo OWNER=$(stat -c %u /data/file)
echo NS=$(readlink /proc/self/ns/user)
"""
MOUNTS = [{"name": "data", "mountPath": "/data"}]
VOLUMES = [{"name": "data", "emptyDir": {}}]
REFUSALS = ("idmap", "user namespace", "operation not permitted", "invalid argument")
"""Words by which runtime and kernel say that they cannot."""


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory, containerd2: BedContainerd) -> Iterator[Inside]:
    def seeing(name: str, **spec: Any) -> Manifest:
        return pod_manifest(name, container_manifest(script=SEE, volumeMounts=MOUNTS), volumes=VOLUMES, **spec)

    user = {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 2000}
    pods = [
        seeing("apart", hostUsers=False),
        seeing("apart-too", hostUsers=False),
        seeing("apart-user", hostUsers=False, securityContext=user),
        seeing("plain"),
    ]
    with looking_inside(tmp_path_factory.mktemp("users"), containerd2, *pods) as found:

        def refusals() -> list[str]:
            return [each.text for each in found.events("apart") if each.reason in ("FailedCreatePodSandBox", "Failed")]

        found.wait(lambda: found.log("apart") or refusals(), "the pod runs or cannot")
        refused = refusals()
        if refused and not found.log("apart") and any(word in refused[0].lower() for word in REFUSALS):
            pytest.skip(f"this kernel has no user namespaces for pods: {refused[0]}")
        yield found


def ids(line: str) -> tuple[int, int, int]:
    first, host, length = (int(word) for word in line.split())
    return first, host, length


def test_root_inside_is_nobody_outside(inside: Inside) -> None:
    told = inside.told("apart")
    first, host, length = ids(told["MAP"])
    assert (first, length) == (0, 65536) and host >= 65536
    assert ids(told["GROUPS_MAP"]) == (first, host, length)
    assert (told["UID"], told["OWNER"]) == ("0", "0")
    assert os.stat(f"/proc/{inside.first_process('apart')}").st_uid == host


def test_files_of_volumes_belong_to_the_ids_of_the_spec(inside: Inside) -> None:
    for pod in ("apart", "apart-too", "plain"):
        inside.told(pod)  # their files are there
    told = inside.told("apart-user")
    assert (told["UID"], told["OWNER"]) == ("1000", "1000")
    owners = {file.stat().st_uid for file in (inside.agent.root / "pods").glob("*/volumes/*/data/file")}
    assert owners == {0, 1000}, "the mapping is in the mount: the disk knows the ids as the spec has them"


def test_no_two_pods_share_ids_and_others_are_as_ever(inside: Inside) -> None:
    one, two = (ids(inside.told(pod)["MAP"]) for pod in ("apart", "apart-too"))
    assert abs(one[1] - two[1]) >= 65536
    plain = inside.told("plain")
    assert ids(plain["MAP"]) == (0, 0, 4294967295)
    assert plain["NS"] == os.readlink("/proc/self/ns/user") != inside.told("apart")["NS"]
