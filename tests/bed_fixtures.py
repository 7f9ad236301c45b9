"""Pytest plugin: the real parts as fixtures, started once per run and always stopped.

`containerd` is the runtime, `registry` a local image registry, `cluster` a real control plane. A part that cannot
be had fails the test that asked for it, with a sentence saying so. Parts are imported on first use: runs without
them, such as `make check`, do not pay for them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pykubelet.clients.host.kernel import PROC_SYS, WANTED

if TYPE_CHECKING:
    from tests.bed.cluster import Cluster
    from tests.bed.crio import BedCrio, BedRuntime
    from tests.bed.registry import Registry
    from tests.bed.runtime import BedContainerd


@pytest.fixture(scope="session", autouse=True)
def _kernel_settings() -> Iterator[None]:
    """An agent sets the kernel up for a node; the machine gets its own settings back."""
    before = {name: (PROC_SYS / name).read_text() for name in WANTED if (PROC_SYS / name).exists()}
    yield
    for name, value in before.items():
        if (PROC_SYS / name).read_text() != value:
            (PROC_SYS / name).write_text(value)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--runtime",
        choices=("containerd", "crio"),
        default="containerd",
        help="what tests run on that ask for `containerd`; with crio, those that look into containerd itself fail",
    )


@pytest.fixture(scope="session")
def containerd(request: pytest.FixtureRequest) -> Iterator[BedRuntime]:
    """A private containerd (or --runtime) with a pod network and the images pause, busybox and testserver."""
    if request.config.getoption("--runtime") == "crio":
        yield request.getfixturevalue("crio")
        return
    from tests.bed.runtime import running_containerd

    with running_containerd() as running:
        yield running


@pytest.fixture(scope="session")
def containerd2() -> Iterator[BedContainerd]:
    """The same with containerd 2.x and the runc of its time, built on first use."""
    from tests.bed.cluster import go_programs
    from tests.bed.runtime import running_containerd

    with running_containerd(go_programs("containerd2"), runc=go_programs("runc") / "runc") as running:
        yield running


@pytest.fixture(scope="session")
def crio() -> Iterator[BedCrio]:
    """A private CRI-O with a pod network and the same images, built on first use."""
    from tests.bed.crio import running_crio

    with running_crio() as running:
        yield running


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler on loopback, with kubectl."""
    from tests.bed.cluster import running_cluster

    with running_cluster() as running:
        yield running


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """An image registry on loopback that asks for no password."""
    from tests.bed.registry import running_registry

    with running_registry(with_password=False) as running:
        yield running


@pytest.fixture(scope="session")
def private_registry() -> Iterator[Registry]:
    """An image registry on loopback that asks for a password."""
    from tests.bed.registry import running_registry

    with running_registry(with_password=True) as running:
        yield running


@pytest.fixture
def blank_disk(tmp_path: Path) -> Iterator[Path]:
    """A block device with nothing on it."""
    image = tmp_path / "image"
    image.write_bytes(b"")
    os.truncate(image, 32 << 20)
    made = subprocess.run(["losetup", "-f", "--show", str(image)], capture_output=True, text=True, check=True)
    device = made.stdout.strip()
    yield Path(device)
    subprocess.run(["losetup", "-d", device], check=True)
