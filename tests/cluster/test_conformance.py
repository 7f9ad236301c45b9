"""Kubernetes' own node tests, the quick part: each feature area at least once, with specs that do not take minutes.

The whole selection is run by `make conformance`; its table is in docs/conformance.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conformance import suite, watch
from conformance.bed import joined_bed

from tests.bed.cluster import Cluster
from tests.bed.runtime import BedContainerd

pytestmark = [pytest.mark.cluster, pytest.mark.node, pytest.mark.slow]

AREAS = {
    "config maps": (
        r"ConfigMap should be consumable via the environment",
        r"ConfigMap optional updates should be reflected",
        r"\] ConfigMap should be consumable from pods in volume with mappings and",
    ),
    "secrets": (
        r"Secrets should be consumable from pods in env vars",
        r"Secrets optional updates",
        r"Secrets should be able to mount in a volume regardless",
    ),
    "projected": (
        r"Projected combined",
        r"Projected configMap updates",
        r"Projected secret .* as non-root with defaultMode and fsGroup",
    ),
    "downward API": (
        r"Downward API should provide (pod UID|default limits)",
        r"Downward API volume should update labels",
        r"Projected downwardAPI should provide node allocatable \(cpu\)",
    ),
    "emptyDir": (
        r"EmptyDir volumes should support \(non-root,0666,(tmpfs|default)\)",
        r"memory backed volumes of specified size",
        r"nonexistent volume subPath",
    ),
    "hostPath": (r"HostPath should (give|support subPath)",),
    "network": (
        r"intra-pod communication: http",
        r"node-pod communication: udp",
    ),
    "life cycle hooks": (
        r"\] Container Lifecycle Hook .* prestop http hook",
        r"Restartable Init .* poststart exec hook",
        r"sleep action ignore terminated",
        r"sleep action with zero duration",
    ),
    "termination": (
        r"termination message (from log output|if TerminationMessagePath is set as non-root)",
        r"with the expected status",
    ),
    "containers": (
        r"Containers should be able to override the image's default command and",
        r"Variable Expansion should allow",
    ),
    "ephemeral containers": (r"will start an ephemeral container",),
    "init containers": (r"InitContainer .* RestartNever pod",),
    "etc hosts": (
        r"Kubelet when .* hostAliases should",
        r"KubeletManagedEtcHosts",
        r"Override hostname of Pod .* subdomain and",
    ),
    "leases": (
        r"NodeLease should have OwnerReferences",
        r"should create and update a lease",
    ),
    "admission": (
        r"PodOSRejection",
        r"RuntimeClass should reject a Pod requesting a (deleted|non-existent)",
        r"should reject invalid sysctls",
    ),
    "pods": (
        r"Pods should (be submitted and removed|allow activeDeadline|contain environment|support r|get a host IP)",
    ),
    "probes": (  # the others wait for minutes
        r"\] Probing container should be restarted with a (/healthz|local redirect)",
        r"\] Probing container with readiness probe should not be ready before initial delay",
        r"Probing restartable init container should be restarted with a /healthz",
    ),
    "security": (
        r"readonly rootfs when",
        r"with uid 65534",
        r"not allow privilege escalation when false",
        r"not run with an explicit root",
        r"should not write to root filesystem",
    ),
    "sysctls": (r"should support sysctls \[",),
}
"""Feature area -> patterns of names."""


@dataclass(frozen=True, slots=True)
class Quick:
    report: suite.Report
    left: list[str]


@pytest.fixture(scope="module")
def quick(cluster: Cluster, containerd: BedContainerd, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quick]:
    folder: Path = tmp_path_factory.mktemp("conformance")
    with joined_bed(cluster, containerd, folder) as bed:
        report = suite.run(
            bed, folder, focus="|".join(pattern for patterns in AREAS.values() for pattern in patterns), parallel=8
        )
        yield Quick(report, watch.settle(bed).sentences())


@pytest.mark.parametrize("area", AREAS)
def test_specs_of(area: str, quick: Quick) -> None:
    found = [spec for spec in quick.report.specs if re.search("|".join(AREAS[area]), spec.name)]
    assert found, f"no spec of this area was run, {len(quick.report.specs)} of others"
    failed = [f"{spec.name}: {spec.why}" for spec in found if spec.outcome != suite.PASSED]
    assert not failed, "\n".join(failed)


def test_every_spec_was_run(quick: Quick) -> None:
    assert quick.report.faults() == []


def test_nothing_is_left_behind(quick: Quick) -> None:
    assert quick.left == []
