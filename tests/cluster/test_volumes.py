"""Volumes of API objects on a real control plane: absent ones, changed ones, immutable ones, tokens, claims.

Content, modes and owners of every kind inside containers are checked without a control plane in tests/node. The times
printed here (`pytest -s`) are for reading; what they may be at most is measured by `python -m bench.volumes`.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from pykubelet.cli.local_socket import local_socket
from tests.bed.certificates import Authority
from tests.bed.cluster import CERTIFICATE_GATES, Cluster
from tests.bed.runtime import BedContainerd
from tests.cluster.joined import STAY, Joined, Manifest, container_manifest, is_ready, joined, pod_manifest, state_of

pytestmark = pytest.mark.cluster

SOON = 20.0
"""Ten times what changes may take; the machine may be busy."""
GROUP, USER = 4242, 1234
T = TypeVar("T")


def a_config(name: str, immutable: bool | None = None, **data: str) -> Manifest:
    return _object("ConfigMap", name, immutable) | {"data": data}


def a_secret(name: str, immutable: bool | None = None, **data: str) -> Manifest:
    return _object("Secret", name, immutable) | {"stringData": data}


def _object(kind: str, name: str, immutable: bool | None) -> Manifest:
    fixed = {} if immutable is None else {"immutable": immutable}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}} | fixed


def with_volumes(
    node: Joined, name: str, script: str, *volumes: Manifest, labels: Manifest | None = None, **spec: Any
) -> Manifest:
    """A pod, bound at once, that has each volume at /v/NAME."""
    mounts = [{"name": volume["name"], "mountPath": f"/v/{volume['name']}"} for volume in volumes]
    return pod_manifest(
        name,
        node=node.agent.node,
        metadata={"labels": labels or {}},
        containers=[container_manifest(script, volumeMounts=mounts)],
        volumes=list(volumes),
        automountServiceAccountToken=False,
        **spec,
    )


@pytest.fixture(scope="module")
def shared_node(
    cluster: Cluster, containerd: BedContainerd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Joined]:
    gates = dict.fromkeys(CERTIFICATE_GATES, True)
    with joined(cluster, containerd, tmp_path_factory.mktemp("node"), name="worker", featureGates=gates) as made:
        yield made


@pytest.fixture
def emptied(node: Joined) -> Iterator[Joined]:
    """Takes away what this module's tests make beside pods."""
    yield node
    node.clean()
    for kind in ("pvc", "pv"):
        node.delete(kind, "--all", "--wait=false")
    node.delete("configmap,secret", "-l", "test=volumes", "--wait=false")
    left = [point for point in _mount_points() if point.startswith(f"{node.agent.root}/pods/")]
    assert left == [], "mounts left behind"


def _mount_points() -> list[str]:
    return [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]


def marked(*objects: Manifest) -> list[Manifest]:
    return [each | {"metadata": each["metadata"] | {"labels": {"test": "volumes"}}} for each in objects]


def messages(node: Joined, pod: str, reason: str) -> list[str]:
    found = node.cluster.get("events", "--field-selector", f"involvedObject.name={pod},reason={reason}")
    return [event["message"] for event in found["items"]]


def until(what: str, asked: Callable[[], object], within: float = 60.0) -> float:
    """Seconds until `asked()` is true."""
    began = time.monotonic()
    while not asked():
        if time.monotonic() > began + within:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - began


def test_a_missing_object_holds_up_only_its_pod(emptied: Joined) -> None:
    node = emptied
    node.apply(with_volumes(node, "waits", f"cat /v/cfg/k; {STAY}", {"name": "cfg", "configMap": {"name": "absent"}}))
    text = 'MountVolume.SetUp failed for volume "cfg" : configmap default/absent not found'
    until("an event", lambda: text in messages(node, "waits", "FailedMount"))
    node.apply(with_volumes(node, "bystander", STAY, {"name": "s", "emptyDir": {}}))
    node.wait_running("bystander")
    waiting = node.wait_pod("waits", state_of, "has a status")
    assert waiting["status"]["phase"] == "Pending"
    assert state_of(waiting)["state"]["waiting"]["reason"] == "ContainerCreating"
    said = explained(node, "waits")
    assert re.search(r"volume cfg: configmap default/absent not found, \d+(st|nd|rd|th) try", said), said
    assert "configmap default/absent not found" in node.agent.log()
    node.apply(*marked(a_config("absent", k="here it is\n")))
    began = time.monotonic()
    node.wait_pod("waits", is_ready, "is ready")
    took = time.monotonic() - began
    print(f"ready {took:.2f} s after its object appeared")
    assert took < SOON
    node.wait_log("waits", "here it is")


def explained(node: Joined, pod: str) -> str:
    program = Path(sys.executable).with_name("pykubelet")
    command = [str(program), "explain", pod, "--socket", str(local_socket(node.agent.root))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout + done.stderr


WATCHING = (
    "trap 'exit 0' TERM; last=; while :; do now=\"$(cat /v/*/k)\"; "
    '[ "$now" = "$last" ] || { echo SAW $now; last="$now"; }; sleep 0.1; done'
)


def test_changes_are_seen_inside(emptied: Joined) -> None:
    node = emptied
    node.apply(*marked(a_config("conf", k="conf-1\n"), a_secret("pass", k="pass-1\n"), a_config("part", k="part-1\n")))
    label = {"path": "k", "fieldRef": {"fieldPath": "metadata.labels['tier']"}}
    volumes: list[Manifest] = [
        {"name": "a", "configMap": {"name": "conf"}},
        {"name": "b", "secret": {"secretName": "pass"}},
        {"name": "c", "projected": {"sources": [{"configMap": {"name": "part"}}]}},
        {"name": "d", "downwardAPI": {"items": [label]}},
    ]
    node.apply(with_volumes(node, "sees", WATCHING, *volumes, labels={"tier": "tier-1"}))
    node.wait_log("sees", "SAW conf-1 pass-1 part-1 tier-1")
    changes: dict[str, Callable[[], object]] = {
        "conf-2": lambda: node.apply(*marked(a_config("conf", k="conf-2\n"))),
        "pass-2": lambda: node.apply(*marked(a_secret("pass", k="pass-2\n"))),
        "part-2": lambda: node.apply(*marked(a_config("part", k="part-2\n"))),
        "tier-2": lambda: node.cluster.kubectl("label", "pod", "sees", "tier=tier-2", "--overwrite"),
    }
    for text, change in changes.items():
        change()
        began = time.monotonic()
        node.wait_log("sees", text, within=SOON)
        print(f"{text} seen inside after {time.monotonic() - began:.2f} s")


def test_what_cannot_change_is_not_watched(emptied: Joined) -> None:
    node = emptied
    before = settled(lambda: (watches(node, "secrets"), watches(node, "configmaps")))
    node.apply(*marked(a_secret("fixed", True, k="1"), a_config("fixed", True, k="1")))
    node.apply(*marked(a_secret("free", k="1"), a_config("free", k="1")))
    sources = [("secret", "secretName"), ("configMap", "name")]
    volumes = [
        {"name": f"{which}-{kind.lower()}", kind: {field: which}}
        for which in ("fixed", "free")
        for kind, field in sources
    ]
    node.apply(with_volumes(node, "holds", STAY, *volumes))
    node.wait_running("holds")
    wanted = before[0] + 1, before[1] + 1
    until("one watch of each kind", lambda: (watches(node, "secrets"), watches(node, "configmaps")) == wanted)


def settled(asked: Callable[[], T], calm: float = 3.0, within: float = 60.0) -> T:
    """The answer as soon as it has been the same for `calm` seconds: watches of the last test may still be ending."""
    began = since = time.monotonic()
    last = asked()
    while time.monotonic() - since < calm:
        assert time.monotonic() < began + within, f"still changing: {last}"
        if (seen := asked()) != last:
            last, since = seen, time.monotonic()
    return last


def watches(node: Joined, resource: str) -> int:
    """How many single objects somebody watches, as the API server counts."""
    for line in node.cluster.kubectl("get", "--raw", "/metrics").splitlines():
        wanted = (f'resource="{resource}"', 'scope="resource"', 'verb="WATCH"')
        if line.startswith("apiserver_longrunning_requests{") and all(label in line for label in wanted):
            return int(float(line.rsplit(" ", 1)[1]))
    return 0


def test_a_token_for_one_audience(emptied: Joined) -> None:
    node = emptied
    token = {"path": "token", "audience": "vault", "expirationSeconds": 900}
    volume = {"name": "t", "projected": {"sources": [{"serviceAccountToken": token}]}}
    script = f"stat -L -c MODE=%a:%u:%g /v/t/token; echo TOKEN=$(cat /v/t/token); {STAY}"
    security = {"fsGroup": GROUP, "runAsUser": USER}
    node.apply(with_volumes(node, "bearer", script, volume, securityContext=security))
    pod = node.wait_running("bearer")
    said = dict(line.split("=", 1) for line in node.wait_log("bearer", "TOKEN=").splitlines())
    assert said["MODE"] == f"640:{USER}:{GROUP}"
    middle = said["TOKEN"].split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
    assert claims["aud"] == ["vault"] and claims["exp"] - claims["iat"] == 900
    assert claims["kubernetes.io"]["pod"] == {"name": "bearer", "uid": pod["metadata"]["uid"]}


def test_a_trust_bundle_and_its_change(emptied: Joined) -> None:
    node = emptied
    own, other = (Authority(node.agent.folder, name).pair.certificate.read_text() for name in ("trust-a", "trust-b"))
    source = {"clusterTrustBundle": {"name": "bed-roots", "path": "ca.pem"}}
    script = f"cat /v/t/ca.pem; until [ $(grep -c BEGIN /v/t/ca.pem) = 2 ]; do sleep 0.1; done; echo TWO; {STAY}"
    node.apply(with_volumes(node, "trusts", script, {"name": "t", "projected": {"sources": [source]}}))
    text = 'MountVolume.SetUp failed for volume "t" : clustertrustbundle bed-roots not found'
    until("an event", lambda: text in messages(node, "trusts", "FailedMount"))
    try:
        node.apply(a_bundle("bed-roots", own))
        node.wait_log("trusts", own)
        node.apply(a_bundle("bed-roots", own + other))
        node.wait_log("trusts", "TWO")
    finally:
        node.delete("clustertrustbundle", "bed-roots", "--ignore-not-found")


def a_bundle(name: str, pem: str) -> Manifest:
    meta, api = {"name": name}, "certificates.k8s.io/v1beta1"
    return {"apiVersion": api, "kind": "ClusterTrustBundle", "metadata": meta, "spec": {"trustBundle": pem}}


def test_a_certificate_of_the_pods_own(emptied: Joined) -> None:
    node = emptied
    source = {"signerName": "example.com/bed", "keyType": "ECDSAP256", "credentialBundlePath": "own.pem"}
    volume = {"name": "c", "projected": {"sources": [{"podCertificate": source}]}}
    node.apply(with_volumes(node, "certified", f"cat /v/c/own.pem; {STAY}", volume))

    def asked() -> Manifest | None:
        found = node.cluster.get("podcertificaterequests")["items"]
        return dict(found[0]) if found else None

    until("a request", asked)
    request = asked()
    assert request is not None and request["spec"]["podName"] == "certified"
    chain, status = signed(request)
    words = ("patch", "podcertificaterequest", request["metadata"]["name"], "--subresource=status", "--type=merge")
    node.cluster.kubectl(*words, "-p", json.dumps({"status": status}))
    node.wait_running("certified", within=60)
    said = node.wait_log("certified", chain)
    assert said.index("BEGIN PRIVATE KEY") < said.index("BEGIN CERTIFICATE")


def signed(request: Manifest) -> tuple[str, Manifest]:
    """What a signer answers: the chain and the status that brings it."""
    asked = x509.load_der_x509_csr(base64.b64decode(request["spec"]["stubPKCS10Request"]))
    begin = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
    end = begin + timedelta(hours=12)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bed")])
    made = x509.CertificateBuilder(name, name, asked.public_key(), x509.random_serial_number(), begin, end)
    chain = made.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.PEM).decode()
    stamp = "%Y-%m-%dT%H:%M:%SZ"
    issued = {"type": "Issued", "status": "True", "reason": "Signed", "message": "", "lastTransitionTime": None}
    return chain, {
        "conditions": [issued | {"lastTransitionTime": begin.strftime(stamp)}],
        "certificateChain": chain,
        "notBefore": begin.strftime(stamp),
        "beginRefreshAt": (begin + timedelta(hours=6)).strftime(stamp),
        "notAfter": end.strftime(stamp),
    }


def test_claims_bound_to_folders_of_the_node(emptied: Joined, tmp_path: Path) -> None:
    node = emptied
    volumes = []
    for kind in ("hostPath", "local"):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "data").write_text(f"kept in {kind}\n")
        node.apply(*claimed(kind.lower(), kind, folder, node.agent.node))
        volumes.append({"name": kind.lower(), "persistentVolumeClaim": {"claimName": kind.lower()}})
    node.apply(with_volumes(node, "claims", f"touch /v/local/made; cat /v/*/data; {STAY}", *volumes))
    node.wait_running("claims", within=60)
    node.wait_log("claims", "kept in hostPath\nkept in local")
    assert (tmp_path / "local" / "made").exists()
    node.delete("pod", "claims", "--grace-period=1", "--wait=false")
    node.wait_gone("claims")
    assert (tmp_path / "local" / "data").read_text() == "kept in local\n"
    assert (tmp_path / "hostPath" / "data").read_text() == "kept in hostPath\n"


def claimed(name: str, kind: str, folder: Path, node: str) -> list[Manifest]:
    """A volume of the node and the claim that it is made for."""
    shared = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    volume = shared | {
        "capacity": {"storage": "1Gi"},
        "claimRef": {"namespace": "default", "name": name},
        "persistentVolumeReclaimPolicy": "Retain",
        "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        kind: {"path": str(folder)},
    }
    claim = shared | {"resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": claim},
    ]
