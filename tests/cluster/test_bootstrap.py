"""Joining with nothing but a bootstrap token, and living on through the certificate's end."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.bed.cluster import SIGNED_FOR, Cluster
from tests.bed.runtime import BedContainerd
from tests.cluster.joined import condition, joined, pod_manifest

pytestmark = pytest.mark.cluster

NAME = "newcomer"
OTHERS = ("MissingClusterDNS", "oomScoreAdj")
"""Warnings that have nothing to do with certificates."""
TROUBLE = ("cannot", "failed", "Unauthorized", "refuse", "no new certificate")


def test_a_node_joins_and_its_certificate_is_renewed(
    cluster: Cluster, containerd: BedContainerd, tmp_path: Path
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    with joined(
        cluster,
        containerd,
        tmp_path,
        name=NAME,
        kubeconfig=kubeconfig,
        flags=[f"--bootstrap-kubeconfig={cluster.bootstrap_kubeconfig}"],
        rotateCertificates=True,
    ) as node:
        began = time.monotonic()
        pem = node.agent.certificates / "kubelet-client-current.pem"
        first = pem.resolve()
        assert first.stat().st_mode & 0o777 == 0o600
        login = json.loads(kubeconfig.read_text())["users"][0]["user"]
        assert login == {"client-certificate": str(pem), "client-key": str(pem)}
        node.apply(pod_manifest("before", node=NAME))
        node.wait_running("before")
        # Well past the end of the first certificate, with work on the way.
        number = 0
        while time.monotonic() - began < SIGNED_FOR + 5:
            number += 1
            node.apply(pod_manifest(f"p{number}", node=NAME))
            node.wait_running(f"p{number}")
            node.cluster.kubectl("delete", "pod", f"p{number}", "--grace-period=1")
            time.sleep(3)
        assert pem.resolve() != first, "renewed"
        readiness = {condition(seen.object, "Ready") for seen in node.nodes.history if _is(seen.object, NAME)}
        assert readiness <= {"True", "False", ""}, "the control plane never lost sight of it"
        lines = node.agent.log().splitlines()
        said = [line for line in lines if line[:1] in "WE" and not any(word in line for word in OTHERS)]
        assert not [line for line in said if any(word in line for word in TROUBLE)], said
        requests = cluster.get("certificatesigningrequests")["items"]
        assert sum(each["spec"]["username"] == f"system:node:{NAME}" for each in requests) >= 1
        node.agent.stop()
        node.agent.start()
        node.apply(pod_manifest("after", node=NAME))
        node.wait_running("after")
        node.clean()


def _is(obj: dict[str, dict[str, str]], name: str) -> bool:
    return obj["metadata"]["name"] == name
