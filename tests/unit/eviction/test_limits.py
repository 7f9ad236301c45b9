"""Limits of single pods on the node's disk."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pykubelet.api.types import EmptyDirVolumeSource, Pod, ResourceRequirements, Volume
from pykubelet.eviction.local_storage import breach
from pykubelet.model.pod_resources import limits_storage, limits_volumes
from tests.builders import a_container, a_pod
from tests.unit.eviction.making import GIB, MIB, a_use


@dataclass(frozen=True)
class Used:
    name: str
    used_bytes: int
    on_node_disk: bool = True


def with_dir(limit: str | None) -> Pod:
    return a_pod(volumes=[Volume(name="tmp", empty_dir=EmptyDirVolumeSource(size_limit=limit))])


def with_limit(amount: str) -> Pod:
    return a_pod(containers=[a_container(resources=ResourceRequirements(limits={"ephemeral-storage": amount}))])


@pytest.mark.parametrize(
    ("limit", "used", "over"),
    [("1Gi", GIB, False), ("1Gi", GIB + 1, True), ("0", GIB, False), (None, GIB, False)],
)
def test_empty_dirs(limit: str | None, used: int, over: bool) -> None:
    found = breach(with_dir(limit), [Used("tmp", used)], None, layers_apart=False)
    assert (found is not None) is over
    if found is not None:
        assert found.message == 'Usage of EmptyDir volume "tmp" exceeds the limit "1Gi". '
        assert found.signal == "emptydirfs.limit" and "1073741825" in found.why


def test_the_pods_total_counts_everything_on_the_nodes_disk() -> None:
    pod = with_limit("1Gi")
    use = a_use(layer=400 * MIB, logs=400 * MIB, other=MIB)
    assert breach(pod, [Used("d", 200 * MIB)], use, layers_apart=False) is None
    assert breach(pod, [Used("d", 300 * MIB, on_node_disk=False)], use, layers_apart=False) is None
    found = breach(pod, [Used("d", 300 * MIB)], use, layers_apart=False)
    assert found is not None and found.signal == "ephemeralpodfs.limit"
    assert found.message == "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
    assert found.why == (
        "the pod's files take 1101Mi (writable layers 400Mi, logs 400Mi, volumes 300Mi, other files 1Mi), its "
        "ephemeral-storage limit is 1Gi"
    )


def test_a_container_among_others() -> None:
    small = a_container(resources=ResourceRequirements(limits={"ephemeral-storage": "100Mi"}))
    big = a_container("side", resources=ResourceRequirements(limits={"ephemeral-storage": "9Gi"}))
    pod = a_pod(containers=[small, big])
    use = a_use(layer=80 * MIB, logs=40 * MIB)
    found = breach(pod, (), use, layers_apart=False)
    assert found is not None
    assert found.message == 'Container app exceeded its local ephemeral storage limit "100Mi". '
    assert found.signal == "ephemeralcontainerfs.limit" and "writable layer 80Mi, logs 40Mi" in found.why
    assert breach(pod, (), use, layers_apart=True) is None


def test_who_needs_a_look() -> None:
    assert limits_volumes(with_dir("1Gi")) and not limits_volumes(with_dir("0")) and not limits_volumes(with_dir(None))
    assert limits_storage(with_limit("1Gi")) and not limits_storage(a_pod())
