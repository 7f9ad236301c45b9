"""One agent per module, in the one cluster of the run; every test leaves it empty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.bed.cluster import Cluster
    from tests.bed.runtime import BedContainerd
    from tests.cluster.joined import Joined


@pytest.fixture(scope="module")
def shared_node(
    cluster: Cluster, containerd: BedContainerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Joined]:
    from tests.cluster.joined import joined

    with joined(cluster, containerd, tmp_path_factory.mktemp("node"), name="worker") as made:
        yield made


@pytest.fixture
def node(shared_node: Joined) -> Iterator[Joined]:
    """A ready, empty node."""
    yield shared_node
    shared_node.clean()
