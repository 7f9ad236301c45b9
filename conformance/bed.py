"""What the specs run against: the real control plane, a private runtime with the stand-in images, one agent.

Both agents get the same configuration. Logs stay in the given folder when it is over; everything else is taken away.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance import images
from tests.bed.agent import BedAgent, bed_agent
from tests.bed.cluster import Cluster, go_programs, running_cluster
from tests.bed.crio import BedRuntime, running_crio
from tests.bed.parts import free_port
from tests.bed.runtime import running_containerd

NODE = "conformance"
NODE_SILENCE = 40.0
"""Kubernetes' default; the specs keep two cores busier than the bed's own tests do."""


@dataclass(frozen=True, slots=True)
class Bed:
    cluster: Cluster
    runtime: BedRuntime
    agent: BedAgent
    programs: Path
    """Folder of e2e.test and ginkgo."""
    foreign: frozenset[str] = frozenset()
    """Containers that were there before."""

    def gone(self) -> bool:
        """Whether no pod is left in the cluster."""
        return not self.cluster.get("pods", "--all-namespaces")["items"]


@contextmanager
def running_bed(agent: str, runtime: str, folder: Path) -> Iterator[Bed]:
    """A bed of its own with one ready node for as long as the block lasts; `runtime` is one of report.RUNTIMES."""
    with running_runtime(runtime) as container_runtime, running_cluster(node_silence=NODE_SILENCE) as cluster:
        kubelet = cluster.programs / "kubelet" if agent == "go" else None
        with joined_bed(cluster, container_runtime, folder, kubelet) as bed:
            yield bed


def running_runtime(name: str) -> AbstractContextManager[BedRuntime]:
    if name == "crio":
        return running_crio(events=False)  # its default
    return running_containerd(go_programs("containerd2") if name == "2" else None)


@contextmanager
def joined_bed(cluster: Cluster, runtime: BedRuntime, folder: Path, kubelet: Path | None = None) -> Iterator[Bed]:
    """The same with parts that run already; the node is taken out of the cluster at the end."""
    programs = go_programs("e2e")
    import_images(runtime, images.build(programs, folder))
    foreign = runtime.container_ids()
    login = cluster.node_kubeconfig(NODE)
    settings = agent_settings(cluster, runtime, folder)
    try:
        with bed_agent(folder, runtime, node=NODE, kubeconfig=login, program=kubelet, **settings) as agent:
            wait_ready(cluster, agent)
            yield Bed(cluster, runtime, agent, programs, foreign)
    finally:
        cluster.kubectl("delete", "node", NODE, "--ignore-not-found", check=False)


def agent_settings(cluster: Cluster, runtime: BedRuntime, folder: Path) -> dict[str, Any]:
    address = runtime.gateway_ip
    pair = cluster.serving_certificate(f"system:node:{NODE}", [NODE, address])
    return {
        "address": address,
        "port": free_port(address),
        "tlsCertFile": str(pair.certificate),
        "tlsPrivateKeyFile": str(pair.key),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(cluster.ca_file)},
        },
        "authorization": {"mode": "Webhook"},
        "clusterDomain": "cluster.local",
        # Renewed four times in it: an agent that is renewing must not count as silent.
        "nodeLeaseDurationSeconds": int(cluster.node_silence),
        "volumePluginDir": str(folder / "volume-plugins"),
        "imageGCHighThresholdPercent": 100,
        # A Go kubelet may not raise its limit without CAP_SYS_RESOURCE, and does not start then.
        "maxOpenFiles": min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1_000_000),
    }


def import_images(runtime: BedRuntime, built: Sequence[images.Named]) -> None:
    for each in built:
        runtime.load(each.archive, each.others)


def wait_ready(cluster: Cluster, agent: BedAgent, within: float = 90.0) -> None:
    """Until pods can be scheduled to the node."""
    deadline = time.monotonic() + within
    while True:
        found = cluster.get("nodes")["items"]
        ready = [
            each
            for node in found
            for each in node["status"].get("conditions", ())
            if each["type"] == "Ready" and each["status"] == "True" and not node["spec"].get("taints")
        ]
        if ready:
            return
        if agent.status is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the node does not become ready; the end of {agent.log_file}:\n{agent.tail()}")
        time.sleep(0.5)
