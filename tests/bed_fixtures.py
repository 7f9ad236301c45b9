"""Pytest plugin: the real parts as fixtures, started once per run and always stopped.

`containerd` is the runtime, `registry` a local image registry, `cluster` a real control plane. A part that cannot
be had fails the test that asked for it, with a sentence saying so.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bed.cluster import Cluster, go_programs, running_cluster
from tests.bed.registry import Registry, running_registry
from tests.bed.runtime import BedContainerd, running_containerd


@pytest.fixture(scope="session")
def containerd() -> Iterator[BedContainerd]:
    """A private containerd with a pod network and the images pause, busybox and testserver."""
    with running_containerd() as running:
        yield running


@pytest.fixture(scope="session")
def containerd2() -> Iterator[BedContainerd]:
    """The same with containerd 2.x, built on first use."""
    with running_containerd(go_programs("containerd2")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, with kubectl."""
    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """An image registry on loopback that asks for no password."""
    with running_registry(with_password=False) as running:
        yield running


@pytest.fixture(scope="session")
def private_registry() -> Iterator[Registry]:
    """An image registry on loopback that asks for a password."""
    with running_registry(with_password=True) as running:
        yield running
