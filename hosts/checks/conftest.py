"""What every check has: the agent's log beside a failure; and an API server beside the guest, for those that ask."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator

import pytest
from tests.bed.cluster import Cluster, running_cluster

from hosts.machine import CommandFailed
from hosts.node import Node


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A control plane on this machine; it waits long for a node in a slow guest."""
    with running_cluster(node_silence=600) as cluster:
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the agent's journal to a failure."""
    report = yield
    node = getattr(item, "funcargs", {}).get("node")
    if report.when == "call" and report.failed and isinstance(node, Node):
        try:
            journal = node.log(80)
        except (CommandFailed, subprocess.TimeoutExpired, OSError) as error:
            journal = f"not to be had: {error}"
        report.sections.append(("journal of the agent", journal))
    return report
