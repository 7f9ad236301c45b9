"""The UIDs of static pods are those of the Go kubelet: static_uids.json has what its own code gave for each manifest.

tools/gen_static_uids.py asks it again. The manifests: those of a control plane made by kubeadm, one with nearly every
field, empty lists and maps, kinds of volumes, and every way to write a quantity.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.codec import convert
from pykubelet.api.defaults import default_pod
from pykubelet.api.manifest import InvalidManifest, load_static_pods, static_pod_defaults
from pykubelet.api.types import Pod

PODS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "static_uids.json").read_text())


@pytest.mark.parametrize("name", PODS)
def test_the_uid_is_that_of_the_go_kubelet(name: str) -> None:
    document = PODS[name]["manifest"]
    pod = convert(Pod, document)
    default_pod(pod)  # without validation: some of the quantities are not allowed where they stand
    origin = f"/etc/kubernetes/manifests/{name}.yaml"
    static = static_pod_defaults(pod, node_name="control", source="file", origin=origin, document=document)
    assert static.metadata.uid == PODS[name]["uid"]


def test_a_manifest_on_its_usual_way_gets_it() -> None:
    data = json.dumps(PODS["kube-apiserver"]["manifest"]).encode()
    origin = "/etc/kubernetes/manifests/kube-apiserver.yaml"
    [pod] = load_static_pods(data, node_name="control", source="file", origin=origin)
    assert pod.metadata.uid == PODS["kube-apiserver"]["uid"]
    assert pod.metadata.annotations["kubernetes.io/config.hash"] == PODS["kube-apiserver"]["uid"]


def test_a_quantity_without_end_is_refused_by_its_field() -> None:
    resources = {"limits": {"cpu": "1" * 5000}}
    container = {"name": "main", "image": "busybox", "resources": resources}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [container]}}
    with pytest.raises(InvalidManifest, match=r"spec\.containers\[0\]\.resources\.limits"):
        load_static_pods(json.dumps(document).encode(), node_name="control", source="file", origin="/a.yaml")
