"""Manifests: good ones, hostile ones, and what makes a pod a static pod."""

import io
import json
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import yaml

from pykubelet.api.codec import ManifestError, encode_json
from pykubelet.api.manifest import (
    Allowed,
    InvalidManifest,
    ManifestWarnings,
    api_references,
    document_problems,
    load_pods,
    load_static_pods,
    static_pod_defaults,
)
from pykubelet.api.types import Pod, Toleration
from tests.unit.api.rich_pod import rich_pod

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
GOOD = b"{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}"


def load_pod(data: bytes | BinaryIO, *, origin: str, warnings: ManifestWarnings | None = None) -> Pod:
    [pod] = load_pods(data, origin=origin, warnings=warnings)
    return pod


def refused(data: bytes) -> list[str]:
    with pytest.raises(InvalidManifest) as caught:
        load_pods(data, origin="file.yaml")
    assert str(caught.value).startswith("file.yaml: ")
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_are_good_static_pods(path: Path) -> None:
    warnings: ManifestWarnings = []
    data = path.read_bytes()
    pods = load_static_pods(data, node_name="node", source="file", origin=str(path), warnings=warnings)
    assert [pod.metadata.name for pod in pods] == [f"{path.stem}-node"] and warnings == []
    images = {c.image for c in (*pods[0].spec.containers, *pods[0].spec.init_containers)}
    assert images <= {"pykubelet.local/busybox:1", "pykubelet.local/testserver:1"}


def test_there_are_five_examples() -> None:
    assert [path.stem for path in EXAMPLES] == ["hello", "init-sidecar", "job-like", "multi", "web-probe"]


def test_a_good_manifest_is_defaulted() -> None:
    pod = load_pod(GOOD, origin="x")
    assert pod.spec.restart_policy == "Always" and pod.spec.containers[0].image_pull_policy == "Always"


def test_a_file_object_is_read_too() -> None:
    assert load_pod(io.BytesIO(GOOD), origin="x").metadata.name == "p"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "line 1: nothing here, expected a Pod"),
        (b"# only a comment\n---\n", "line 1: nothing here, expected a Pod"),
        (b"null", "line 1: nothing here, expected a Pod"),
        (b"hello", 'line 1: expected a Pod, found "hello"'),
        (b"[1, 2]", "line 1: expected a Pod, found a list"),
        (b"7", "line 1: expected a Pod, found 7"),
        (b"\x7fELF\x00\x01\x02", "line 1: control character U+007F is not allowed (a binary file?)"),
        (b"a: b\n\xff\xfe", "line 2: not UTF-8 text (a binary file?)"),
        (b"{apiVersion: apps/v1, kind: Deployment}", 'apiVersion: must be v1, not "apps/v1"'),
        (b"{apiVersion: v1, kind: Service}", 'kind: must be Pod, not "Service"'),
        (b"{apiVersion: v1, kind: [Pod]}", "kind: must be Pod, not a list"),
        (b"{kind: Pod}", "apiVersion: required, must be v1"),
        (b"a: &a [*a]", "line 1: anchor &a contains itself"),
        (b"a: &a\n  b: *a\n", "line 2: anchor &a contains itself"),
        (b"a: 1\na: 2\n", 'line 2: duplicate key "a"'),
        (b"a: [1\nb: 2\n", "line 2: invalid YAML: while parsing a flow sequence, did not find expected ',' or ']'"),
        (GOOD + b"\n---\n" + GOOD, "document 2: expected one Pod in a file, found 2 documents"),
        (b"[" * 100_000, "line 1: nested more than 100 levels deep"),
        (b'{"apiVersion": "v1", "kind": "Pod\\ud800"}', "kind: has half of a surrogate pair, which is no text"),
    ],
)
def test_what_is_no_pod(data: bytes, expected: str) -> None:
    assert refused(data)[0] == expected


def test_fifty_megabytes_are_refused_without_reading_on() -> None:
    big = io.BytesIO(b"#" * 50_000_000)
    with pytest.raises(InvalidManifest, match="larger than"):
        load_pod(big, origin="x")
    assert big.tell() <= 10 * 1024 * 1024 + 1


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    assert refused("\n".join(lines).encode())[0].startswith("line ")


def test_wrong_types_are_all_reported() -> None:
    data = b"""
apiVersion: v1
kind: Pod
metadata: {name: p, labels: {example.com/a: {x: 1}, b: 2}}
spec:
  hostNetwork: "yes"
  containers:
    name: c
  volumes: [3, {name: v, emptyDir: []}]
"""
    assert refused(data) == [
        "metadata.labels[example.com/a]: must be text, not a map",
        "metadata.labels[b]: must be text, not a whole number",
        "spec.hostNetwork: must be true or false, not text",
        "spec.containers: must be a list, not a map",
        "spec.volumes[0]: must be a map, not a whole number",
        "spec.volumes[1].emptyDir: must be a map, not a list",
    ]


def test_all_problems_of_a_pod_are_in_the_error() -> None:
    tree = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"volumeMounts": [{"name": "v"}]}]}}
    found = refused(json.dumps(tree).encode())
    assert [line.split(": ")[0] for line in found] == [
        "metadata.name",
        "spec.containers[0].name",
        "spec.containers[0].image",
        "spec.containers[0].volumeMounts[0].name",
        "spec.containers[0].volumeMounts[0].mountPath",
    ]


def test_a_long_error_is_cut_but_its_problems_are_not() -> None:
    tree = yaml.safe_load(GOOD)
    tree["spec"]["containers"] = [{}] * 40
    with pytest.raises(ManifestError) as caught:
        load_pod(json.dumps(tree).encode(), origin="x")
    assert isinstance(caught.value, InvalidManifest)
    assert len(caught.value.problems) == 80 and str(caught.value).endswith("; and 70 more")


def test_unknown_fields_warn_the_agent_and_are_problems_for_people() -> None:
    tree = yaml.safe_load(GOOD)
    tree["spec"]["containers"][0]["imagePullPolice"] = "Never"
    tree["extra"] = 1
    warnings: ManifestWarnings = []
    load_pod(json.dumps(tree).encode(), origin="x", warnings=warnings)
    said = ["spec.containers[0].imagePullPolice: unknown field", "extra: unknown field"]
    assert [str(warning) for warning in warnings] == said
    assert [str(problem) for problem in document_problems(tree)] == said


def test_ephemeral_containers_do_not_belong_into_manifests() -> None:
    tree = yaml.safe_load(GOOD)
    tree["spec"]["ephemeralContainers"] = [{"name": "d", "image": "i"}]
    assert refused(json.dumps(tree).encode()) == ["spec.ephemeralContainers: must not be set in a manifest"]


def test_pod_lists_name_the_item() -> None:
    good, bad = yaml.safe_load(GOOD), yaml.safe_load(GOOD)
    listed: dict[str, Any] = {"apiVersion": "v1", "kind": "PodList", "items": [good, good]}
    assert len(load_pods(json.dumps(listed).encode(), origin="x")) == 2
    bad["spec"]["containers"][0]["name"] = "C"
    listed["items"] = [good, bad]
    with pytest.raises(InvalidManifest, match=r"items\[1\]\.spec\.containers\[0\]\.name: must be"):
        load_pods(json.dumps(listed).encode(), origin="x")


def test_what_a_static_pod_gets() -> None:
    pod = load_pod(GOOD, origin="x")
    before = encode_json(pod)
    static = static_pod_defaults(pod, node_name="Node-1", source="file", origin="/m/p.yaml")
    uid = static.metadata.uid or ""
    assert len(uid) == 32 and int(uid, 16) >= 0
    assert (static.metadata.name, static.metadata.namespace) == ("p-node-1", "default")
    assert static.metadata.annotations == {"kubernetes.io/config.hash": uid}
    assert (static.spec.node_name, static.status.phase) == ("Node-1", "Pending")
    assert static.spec.tolerations == [Toleration(operator="Exists", effect="NoExecute")]
    assert encode_json(pod) == before


def test_a_static_pod_from_a_url_gets_no_toleration_and_a_given_uid_stays() -> None:
    tree = yaml.safe_load(GOOD)
    tree["metadata"] |= {"uid": "mine", "namespace": "kube-system"}
    pod = load_pod(json.dumps(tree).encode(), origin="x")
    static = static_pod_defaults(pod, node_name="n", source="http", origin="http://h/p")
    assert static.spec.tolerations == []
    assert (static.metadata.uid, static.metadata.namespace) == ("mine", "kube-system")
    assert static.metadata.annotations["kubernetes.io/config.hash"] == "mine"


def test_the_uid_follows_content_node_and_place() -> None:
    def uid(data: bytes, node: str = "n", origin: str = "/a") -> str | None:
        return load_static_pods(data, node_name=node, source="file", origin=origin)[0].metadata.uid

    reordered = b"{kind: Pod, spec: {containers: [{image: i, name: c}]}, apiVersion: v1, metadata: {name: p}}"
    assert uid(GOOD) == uid(reordered)
    assert len({uid(GOOD), uid(GOOD.replace(b"image: i", b"image: j")), uid(GOOD, "m"), uid(GOOD, "n", "/b")}) == 4


def test_a_file_may_not_hold_a_list_but_a_url_may() -> None:
    listed = b"{apiVersion: v1, kind: PodList, items: [" + GOOD + b"]}"
    assert len(load_static_pods(listed, node_name="n", source="http", origin="u")) == 1
    with pytest.raises(InvalidManifest, match="kind: must be Pod in a file, not PodList"):
        load_static_pods(listed, node_name="n", source="file", origin="f")


def test_a_static_pod_needs_a_name_of_its_own() -> None:
    nameless = GOOD.replace(b"name: p", b"labels: {}")
    with pytest.raises(InvalidManifest, match=r"metadata\.name: required"):
        load_static_pods(nameless, node_name="n", source="file", origin="f")


def test_the_name_with_its_suffix_must_fit() -> None:
    data = GOOD.replace(b"name: p", b"name: " + b"p" * 250)
    assert load_pod(data, origin="x")
    with pytest.raises(InvalidManifest, match=r"metadata\.name: must be at most 253"):
        load_static_pods(data, node_name="node", source="file", origin="f")


def test_references_of_a_static_pod() -> None:
    pod = load_pod(json.dumps(rich_pod()).encode(), origin="x")
    assert [(p.path, p.message.removeprefix("static pods may not reference ")) for p in api_references(pod)] == [
        ("spec.serviceAccountName", "serviceaccounts"),
        ("spec.imagePullSecrets[0]", "secrets"),
        ("spec.containers[0].envFrom[0].configMapRef", "configmaps"),
        ("spec.containers[0].envFrom[1].secretRef", "secrets"),
        ("spec.containers[0].env[5].valueFrom.configMapKeyRef", "configmaps"),
        ("spec.containers[0].env[6].valueFrom.secretKeyRef", "secrets"),
        ("spec.resourceClaims[0]", "resourceclaims"),
        ("spec.resourceClaims[1]", "resourceclaims"),
        ("spec.volumes[3].configMap", "configmaps"),
        ("spec.volumes[4].secret", "secrets"),
        ("spec.volumes[5].persistentVolumeClaim", "persistentvolumeclaims"),
        ("spec.volumes[6].ephemeral", "persistentvolumeclaims"),
        ("spec.volumes[7].csi", "csidrivers"),
        ("spec.volumes[10].projected.sources[0].secret", "secrets"),
        ("spec.volumes[10].projected.sources[1].configMap", "configmaps"),
        ("spec.volumes[10].projected.sources[3].serviceAccountToken", "serviceaccounts"),
        ("spec.volumes[10].projected.sources[4].clusterTrustBundle", "clustertrustbundles"),
        ("spec.volumes[10].projected.sources[5].podCertificate", "podcertificates"),
        ("spec.volumes[16].scaleIO.secretRef", "secrets"),
    ]
    with pytest.raises(InvalidManifest, match="static pods may not reference serviceaccounts"):
        load_static_pods(json.dumps(rich_pod()).encode(), node_name="n", source="file", origin="f")


def test_references_are_a_matter_of_a_gate_but_for_two_kinds() -> None:
    manifest: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "configMap": {"name": "m"}}],
        },
    }

    def load(**also: Any) -> None:
        document = {**manifest, "spec": {**manifest["spec"], **also}}
        load_static_pods(
            json.dumps(document).encode(),
            node_name="n",
            source="file",
            origin="f",
            allowed=Allowed(api_references=True),
        )

    load()
    with pytest.raises(InvalidManifest, match="static pods may not reference resourceclaims"):
        load(resourceClaims=[{"name": "r", "resourceClaimName": "x"}])


def test_a_user_namespace_in_the_hosts_network_must_be_allowed() -> None:
    spec = {"containers": [{"name": "c", "image": "i"}], "hostNetwork": True, "hostUsers": False}
    data = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec}).encode()
    with pytest.raises(InvalidManifest, match=r"spec\.hostNetwork: must not be true when hostUsers is false"):
        load_static_pods(data, node_name="n", source="file", origin="f")
    (pod,) = load_static_pods(
        data, node_name="n", source="file", origin="f", allowed=Allowed(users_in_host_network=True)
    )
    assert pod.spec.host_network and pod.spec.host_users is False
