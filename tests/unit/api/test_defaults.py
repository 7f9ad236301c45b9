"""Defaults: what an API server fills in, field by field, and what it leaves alone."""

import json
from typing import Any

import pytest

from pykubelet.api.codec import convert, encode_json
from pykubelet.api.defaults import default_pod, image_tag, pull_policy
from pykubelet.api.types import Pod
from tests.unit.api.rich_pod import rich_pod


def defaulted(spec: dict[str, Any], **rest: Any) -> Pod:
    pod = convert(Pod, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": spec, **rest})
    default_pod(pod)
    return pod


def test_an_almost_empty_pod_gets_everything() -> None:
    pod = defaulted({"containers": [{"name": "c", "image": "busybox", "ports": [{"containerPort": 80}]}]})
    assert json.loads(encode_json(pod))["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "busybox",
                "imagePullPolicy": "Always",
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
    }


def test_defaulting_twice_changes_nothing_more() -> None:
    pod = convert(Pod, rich_pod())
    default_pod(pod)
    once = encode_json(pod)
    default_pod(pod)
    assert encode_json(pod) == once


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("busybox", "latest"),
        ("busybox:latest", "latest"),
        ("busybox:1.36", "1.36"),
        ("localhost:5000/busybox", "latest"),
        ("localhost:5000/a/b:v1", "v1"),
        ("[::1]:5000/a", "latest"),
        ("busybox@sha256:" + "a" * 64, None),
        ("busybox:latest@sha256:" + "a" * 64, "latest"),
        ("busybox@sha256:short", None),
        ("Upper/case", "latest"),
        ("UPPER", None),
        ("a b", None),
        ("busybox:", None),
        ("", None),
        ("a" * 300, None),
        ("x/" * 3000, None),
    ],
)
def test_tag_of_an_image(image: str, tag: str | None) -> None:
    assert image_tag(image) == tag
    assert pull_policy(image) == ("Always" if tag == "latest" else "IfNotPresent")


def test_probes_hooks_and_env() -> None:
    pod = defaulted(
        {
            "containers": [
                {
                    "name": "c",
                    "image": "i:1",
                    "livenessProbe": {"httpGet": {"port": 1}, "timeoutSeconds": 0},
                    "readinessProbe": {"grpc": {"port": 1}, "periodSeconds": 3, "failureThreshold": 7},
                    "lifecycle": {"preStop": {"httpGet": {"port": 1}}},
                    "env": [
                        {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                        {"name": "B", "valueFrom": {"fileKeyRef": {"volumeName": "v", "path": "p", "key": "k"}}},
                    ],
                }
            ]
        }
    )
    c = pod.spec.containers[0]
    live, ready = c.liveness_probe, c.readiness_probe
    assert live is not None and live.http_get is not None and ready is not None and ready.grpc is not None
    numbers = (live.timeout_seconds, live.period_seconds, live.success_threshold, live.failure_threshold)
    assert numbers == (1, 10, 1, 3)
    assert (live.http_get.path, live.http_get.scheme) == ("/", "HTTP")
    assert (ready.period_seconds, ready.failure_threshold, ready.grpc.service) == (3, 7, "")
    assert c.lifecycle is not None and c.lifecycle.pre_stop is not None and c.lifecycle.pre_stop.http_get is not None
    assert c.lifecycle.pre_stop.http_get.scheme == "HTTP"
    a, b = (env.value_from for env in c.env)
    assert a is not None and a.field_ref is not None and a.field_ref.api_version == "v1"
    assert b is not None and b.file_key_ref is not None and b.file_key_ref.optional is False


def test_requests_come_from_limits_where_missing() -> None:
    resources = {"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}
    pod = defaulted(
        {
            "containers": [{"name": "c", "image": "i", "resources": resources}],
            "initContainers": [{"name": "i", "image": "i", "resources": {"limits": {"cpu": "1"}}}],
        }
    )
    regular, init = pod.spec.containers[0].resources, pod.spec.init_containers[0].resources
    assert regular is not None and regular.requests == {"cpu": "1", "memory": "1Gi"}
    assert init is not None and init.requests == {"cpu": "1"}


def test_amounts_finer_than_a_thousandth_are_rounded_up() -> None:
    limits = {"cpu": "100u", "memory": "1.0001", "example.com/x": 3, "bad": "what"}
    pod = defaulted({"containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}]})
    resources = pod.spec.containers[0].resources
    assert resources is not None
    assert resources.limits == {"cpu": "1m", "memory": "1001m", "example.com/x": 3, "bad": "what"}


@pytest.mark.parametrize(
    ("pod_level", "requests", "limits"),
    [
        ({"limits": {"cpu": "4"}}, {"cpu": "1500m"}, {"cpu": "4"}),
        ({"limits": {"cpu": "4", "memory": "1Gi"}}, {"cpu": "1500m", "memory": "1Gi"}, {"cpu": "4", "memory": "1Gi"}),
        ({"requests": {"cpu": "3"}}, {"cpu": "3"}, {}),
        ({}, {}, {}),
    ],
)
def test_pod_level_requests(pod_level: Any, requests: Any, limits: Any) -> None:
    def asks(cpu: str) -> dict[str, Any]:
        return {"requests": {"cpu": cpu}}

    pod = defaulted(
        {
            "resources": pod_level,
            "containers": [{"name": "c", "image": "i", "resources": asks("500m")}],
            "initContainers": [
                {"name": "s", "image": "i", "restartPolicy": "Always", "resources": asks("500m")},
                {"name": "big", "image": "i", "resources": asks("1")},
            ],
        }
    )
    assert pod.spec.resources is not None
    assert (pod.spec.resources.requests, pod.spec.resources.limits) == (requests, limits)


def test_pod_level_huge_pages_come_from_the_containers() -> None:
    own = {"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}
    pod = defaulted(
        {
            "resources": {"limits": {"memory": "2Gi"}},
            "containers": [{"name": "c", "image": "i", "resources": own}],
        }
    )
    assert pod.spec.resources is not None
    assert pod.spec.resources.limits == {"memory": "2Gi", "hugepages-2Mi": "4Mi"}
    assert pod.spec.resources.requests == {"memory": "1Gi", "hugepages-2Mi": "4Mi"}


@pytest.mark.parametrize(
    ("volume", "path", "value"),
    [
        ({}, "empty_dir.medium", None),
        ({"hostPath": {"path": "/"}}, "host_path.type", ""),
        ({"secret": {"secretName": "s"}}, "secret.default_mode", 0o644),
        ({"configMap": {"name": "s", "defaultMode": 0}}, "config_map.default_mode", 0),
        ({"downwardAPI": {}}, "downward_api.default_mode", 0o644),
        ({"projected": {"sources": []}}, "projected.default_mode", 0o644),
        ({"image": {"reference": "m"}}, "image.pull_policy", "Always"),
        ({"image": {"reference": "m:1"}}, "image.pull_policy", "IfNotPresent"),
        ({"iscsi": {}}, "iscsi.iscsi_interface", "default"),
        ({"rbd": {}}, "rbd.keyring", "/etc/ceph/keyring"),
        ({"rbd": {}}, "rbd.pool", "rbd"),
        ({"scaleIO": {}}, "scale_io.storage_mode", "ThinProvisioned"),
        ({"azureDisk": {}}, "azure_disk.kind", "Shared"),
        ({"azureDisk": {}}, "azure_disk.read_only", False),
        (
            {"ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            "ephemeral.volume_claim_template.spec.volume_mode",
            "Filesystem",
        ),
    ],
)
def test_volumes(volume: dict[str, Any], path: str, value: Any) -> None:
    found: Any = defaulted({"volumes": [{"name": "v", **volume}]}).spec.volumes[0]
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


def test_projected_sources() -> None:
    sources = [
        {"serviceAccountToken": {"path": "t"}},
        {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}},
    ]
    volume = defaulted({"volumes": [{"name": "v", "projected": {"sources": sources}}]}).spec.volumes[0]
    assert volume.projected is not None
    token, downward = volume.projected.sources
    assert token.service_account_token is not None and token.service_account_token.expiration_seconds == 3600
    assert downward.downward_api is not None
    ref = downward.downward_api.items[0].field_ref
    assert ref is not None and ref.api_version == "v1"


def test_host_network_ports() -> None:
    ports = [{"containerPort": 80}, {"containerPort": 81, "hostPort": 82}]
    pod = defaulted({"hostNetwork": True, "containers": [{"name": "c", "image": "i", "ports": ports}]})
    assert [port.host_port for port in pod.spec.containers[0].ports] == [80, 82]
    pod = defaulted({"containers": [{"name": "c", "image": "i", "ports": ports}]})
    assert [port.host_port for port in pod.spec.containers[0].ports] == [None, 82]


def test_ephemeral_containers_are_defaulted_too() -> None:
    pod = defaulted({"ephemeralContainers": [{"name": "d", "image": "busybox"}]})
    assert pod.spec.ephemeral_containers[0].termination_message_policy == "File"
    assert pod.spec.ephemeral_containers[0].image_pull_policy == "Always"


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, None), ({"serviceAccount": "old"}, "old"), ({"serviceAccount": "old", "serviceAccountName": "new"}, "new")],
)
def test_the_old_name_of_the_service_account(given: dict[str, str], kept: str | None) -> None:
    spec = defaulted(given).spec
    assert (spec.service_account_name, spec.service_account) == (kept, kept)


@pytest.mark.parametrize(("given", "kept"), [(None, 30), (0, 0), (7, 7), (-5, 1)])
def test_grace_period(given: int | None, kept: int) -> None:
    assert defaulted({"terminationGracePeriodSeconds": given}).spec.termination_grace_period_seconds == kept


@pytest.mark.parametrize(
    ("status", "ip", "ips"),
    [
        ({"podIP": "1.1.1.1"}, "1.1.1.1", ["1.1.1.1"]),
        ({"podIPs": [{"ip": "1.1.1.1"}, {"ip": "::1"}]}, "1.1.1.1", ["1.1.1.1", "::1"]),
        ({"podIP": "2.2.2.2", "podIPs": [{"ip": "1.1.1.1"}]}, "2.2.2.2", ["2.2.2.2"]),
        ({}, None, []),
    ],
)
def test_addresses_in_the_status_agree(status: Any, ip: str | None, ips: list[str]) -> None:
    found = defaulted({}, status=status).status
    assert found.pod_ip == ip and [entry.ip for entry in found.pod_ips] == ips
