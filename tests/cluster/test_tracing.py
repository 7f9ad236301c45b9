"""Requests to the API server as spans, beside those that the Go kubelet makes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.bed.agent import bed_agent
from tests.bed.cluster import Cluster, go_programs
from tests.bed.collector import CollectedSpan, running_collector
from tests.bed.runtime import BedContainerd

pytestmark = pytest.mark.cluster

METHODS = ("HTTP GET", "HTTP PATCH", "HTTP POST", "HTTP PUT")


def requests_of(
    folder: Path, cluster: Cluster, containerd: BedContainerd, node: str, program: Path | None
) -> dict[str, list[CollectedSpan]]:
    """What an agent asked the API server for until its node was there and its lease renewed, by name."""
    folder.mkdir()
    limits: dict[str, Any] = {"maxOpenFiles": 10_000, "localStorageCapacityIsolation": False}
    limits["volumePluginDir"] = str(folder / "plugins")
    with running_collector(folder) as collector:
        tracing = {"endpoint": collector.endpoint, "samplingRatePerMillion": 1_000_000}
        login = cluster.node_kubeconfig(node)
        with bed_agent(
            folder / "agent", containerd, node=node, kubeconfig=login, program=program, tracing=tracing, **limits
        ) as agent:
            end = time.monotonic() + 90
            while not {"HTTP GET", "HTTP PATCH", "HTTP POST", "HTTP PUT"} <= {each.name for each in collector.spans()}:
                assert time.monotonic() < end, agent.tail()
                time.sleep(0.2)
            agent.stop()
        collector.stop()
        spans = collector.spans()
    cluster.kubectl("delete", "node", node)
    return {name: [each for each in spans if each.name == name] for name in METHODS}


def test_requests_have_the_attributes_that_the_go_kubelet_gives_them(
    tmp_path: Path, cluster: Cluster, containerd: BedContainerd
) -> None:
    theirs = requests_of(tmp_path / "go", cluster, containerd, "go", go_programs("controlplane") / "kubelet")
    ours = requests_of(tmp_path / "ours", cluster, containerd, "ours", None)
    for name in METHODS:
        good = [[each for each in side[name] if not each.failed] for side in (ours, theirs)]
        mine, other = ({frozenset(each.attributes) for each in side} for side in good)
        assert mine <= other and mine, name
    for each in ours["HTTP PUT"]:
        assert each.kind == 3 and each.attributes["network.protocol.version"] == "2"
        assert each.attributes["server.port"] == cluster.port
        assert each.attributes["url.full"].startswith(f"https://127.0.0.1:{cluster.port}/apis/coordination.k8s.io/")
