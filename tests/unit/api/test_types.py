"""The generated types: names, round trips of real-looking objects, tables beside them."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pykubelet.api import generated, types
from pykubelet.api.codec import convert, decode_json, encode_json, unknown_fields

ROOT = Path(__file__).parents[3]

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "everything",
        "namespace": "default",
        "uid": "0d7ad8a5-6c5e-4a0e-9a7b-3d1d8f1e2c11",
        "resourceVersion": "1234",
        "generation": 3,
        "creationTimestamp": "2024-05-01T08:30:00Z",
        "deletionTimestamp": "2024-05-01T09:30:00Z",
        "deletionGracePeriodSeconds": 30,
        "labels": {"app": "web", "empty": ""},
        "annotations": {"kubernetes.io/config.source": "file"},
        "finalizers": ["example.test/hold"],
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "rs", "uid": "u", "controller": False}
        ],
    },
    "spec": {
        "hostNetwork": True,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": True,
        "setHostnameAsFQDN": True,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 0,
        "priority": -10,
        "overhead": {"cpu": "10m"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "imagePullSecrets": [{"name": "regcred"}],
        "hostAliases": [{"ip": "192.0.2.1", "hostnames": ["a", "b"]}],
        "dnsConfig": {"nameservers": ["192.0.2.53"], "options": [{"name": "ndots", "value": "2"}]},
        "readinessGates": [{"conditionType": "example.test/ready"}],
        "tolerations": [{"operator": "Exists", "tolerationSeconds": 0}],
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}}
        ],
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu"}],
        "securityContext": {
            "runAsUser": 0,
            "fsGroup": 2000,
            "supplementalGroups": [1, 2],
            "seLinuxOptions": {"level": "s0:c123,c456"},
            "seccompProfile": {"type": "RuntimeDefault"},
            "sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}],
        },
        "volumes": [
            {"name": "empty", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": "/var/log", "type": "Directory"}},
            {"name": "config", "configMap": {"name": "c", "defaultMode": 420, "optional": False}},
            {"name": "secret", "secret": {"secretName": "s", "items": [{"key": "k", "path": "p", "mode": 0}]}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
            {"name": "csi", "csi": {"driver": "d", "volumeAttributes": {"a": "b"}, "nodePublishSecretRef": {}}},
            {
                "name": "projected",
                "projected": {
                    "sources": [
                        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600, "audience": "a"}},
                        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                    ]
                },
            },
        ],
        "initContainers": [{"name": "init", "image": "i", "restartPolicy": "Always"}],
        "containers": [
            {
                "name": "app",
                "image": "example.test/app@sha256:0000",
                "command": ["/bin/app"],
                "args": ["", "--x"],
                "stdin": True,
                "tty": False,
                "ports": [{"containerPort": 80, "hostPort": 8080, "hostIP": "192.0.2.9", "protocol": "UDP"}],
                "env": [
                    {"name": "EMPTY", "value": ""},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                ],
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}],
                "resources": {
                    "limits": {"cpu": 2, "memory": "1Gi", "example.test/gpu": 1.5},
                    "requests": {"cpu": "0"},
                    "claims": [{"name": "gpu", "request": "r"}],
                },
                "livenessProbe": {"httpGet": {"port": "http", "httpHeaders": [{"name": "h", "value": "v"}]}},
                "readinessProbe": {"tcpSocket": {"port": 80}, "initialDelaySeconds": 0},
                "startupProbe": {"grpc": {"port": 9, "service": ""}},
                "lifecycle": {"preStop": {"exec": {"command": ["sleep", "1"]}}, "stopSignal": "SIGUSR1"},
                "securityContext": {"capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]}, "privileged": False},
                "volumeMounts": [{"name": "empty", "mountPath": "/e", "subPathExpr": "$(X)", "readOnly": False}],
                "volumeDevices": [{"name": "claim", "devicePath": "/dev/x"}],
            }
        ],
        "ephemeralContainers": [{"name": "debug", "targetContainerName": "app"}],
    },
    "status": {
        "phase": "Running",
        "hostIP": "192.0.2.9",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "2001:db8::1"}],
        "startTime": "2024-05-01T08:30:01Z",
        "observedGeneration": 3,
        "qosClass": "Burstable",
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2024-05-01T08:30:05Z"}],
        "containerStatuses": [
            {
                "name": "app",
                "ready": False,
                "started": False,
                "restartCount": 0,
                "image": "i",
                "imageID": "",
                "containerID": "containerd://abc",
                "lastState": {},
                "state": {"terminated": {"exitCode": 0, "reason": "Completed", "signal": 9}},
                "allocatedResources": {"cpu": "2"},
            }
        ],
    },
}

OBJECTS: list[tuple[type[types.ApiStruct], dict[str, Any]]] = [
    (types.Pod, POD),
    (types.PodList, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": [POD]}),
    (types.PodList, {"metadata": {"continue": "abc", "remainingItemCount": 5}, "items": []}),
    (
        types.Node,
        {
            "kind": "Node",
            "metadata": {"name": "n1"},
            "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "p", "unschedulable": True},
            "status": {
                "capacity": {"cpu": "2", "memory": "7964Mi", "pods": "110"},
                "addresses": [{"type": "InternalIP", "address": "192.0.2.9"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {"machineID": "m", "bootID": "b", "systemUUID": "s", "kubeletVersion": "v1.36.4"},
                "images": [{"names": ["a@b", "a:1"], "sizeBytes": 123456789012}],
                "conditions": [
                    {"type": "Ready", "status": "True", "lastHeartbeatTime": "2024-05-01T08:30:05.25Z"},
                ],
            },
        },
    ),
    (
        types.Event,
        {
            "metadata": {"name": "web.17", "namespace": "default"},
            "involvedObject": {"kind": "Pod", "name": "web", "fieldPath": "spec.containers{app}"},
            "reason": "Started",
            "count": 2,
            "eventTime": None,
            "firstTimestamp": "2024-05-01T08:30:05Z",
            "source": {"component": "kubelet", "host": "n1"},
        },
    ),
    (
        types.EventsEvent,
        {"metadata": {"name": "e"}, "eventTime": "2024-05-01T08:30:05.123456Z", "series": {"count": 3}},
    ),
    (
        types.Lease,
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "n1"},
            "spec": {
                "holderIdentity": "n1",
                "leaseDurationSeconds": 40,
                "renewTime": "2024-05-01T08:30:05.000000Z",
            },
        },
    ),
    (types.ConfigMap, {"metadata": {"name": "c"}, "data": {"k": "v", "": ""}, "binaryData": {"b": "AAEC/w=="}}),
    (types.Secret, {"metadata": {"name": "s"}, "type": "Opaque", "immutable": False, "data": {"p": "c2VjcmV0"}}),
    (
        types.Service,
        {"spec": {"clusterIP": "None", "ports": [{"port": 80, "targetPort": "http"}], "externalIPs": ["x"]}},
    ),
    (types.Status, {"status": "Failure", "reason": "NotFound", "code": 404, "details": {"causes": [{"field": "f"}]}}),
    (types.TokenRequest, {"spec": {"audiences": ["a"], "expirationSeconds": 600}, "status": {"token": "t"}}),
    (types.RuntimeClass, {"handler": "runc", "overhead": {"podFixed": {"cpu": "1m"}}}),
    (
        types.ResourceSlice,
        {
            "spec": {
                "driver": "d",
                "devices": [{"name": "g", "attributes": {"a": {"bool": False}, "b": {"int": 0}, "c": {"string": ""}}}],
            }
        },
    ),
]


def without_nulls(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: without_nulls(value) for key, value in tree.items() if value is not None}
    return [without_nulls(value) for value in tree] if isinstance(tree, list) else tree


@pytest.mark.parametrize(("type_", "tree"), OBJECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_round_trip_loses_nothing_and_adds_nothing(type_: type[types.ApiStruct], tree: dict[str, Any]) -> None:
    assert unknown_fields(type_, tree) == []
    decoded = decode_json(type_, json.dumps(tree))
    expected = json.loads(json.dumps(without_nulls(tree)).replace("05.25Z", "05.250000Z"))
    assert json.loads(encode_json(decoded)) == expected
    assert convert(type_, tree) == decoded
    assert decode_json(type_, encode_json(decoded)) == decoded


def test_the_committed_file_is_what_the_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_types.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_definition_has_its_type_with_exactly_its_fields() -> None:
    definitions = json.loads((ROOT / "tools" / "data" / "k8s-types.json").read_text())["definitions"]
    by_doc = {c.__doc__: c for c in vars(generated).values() if isinstance(c, type) and c.__doc__}
    plain = {"Quantity", "IntOrString", "Time", "MicroTime", "RawExtension", "FieldsV1", "Patch"}
    unread = {"ManagedFieldsEntry", "WatchEvent"}
    left_out = {
        "ObjectMeta": "managedFields",
        "AllocatedDeviceStatus": "data",
        "OpaqueDeviceConfiguration": "parameters",
    }
    assert len(definitions) == 312
    for name, schema in definitions.items():
        short = name.rsplit(".", 1)[1]
        if short in plain | unread:
            continue
        fields = [info.encode_name for info in msgspec.structs.fields(by_doc[name])]
        assert fields == [each for each in schema.get("properties", {}) if left_out.get(short) != each], name


@pytest.mark.parametrize(
    ("type_", "python_name", "wire_name"),
    [
        (types.PodStatus, "host_ip", "hostIP"),
        (types.PodStatus, "pod_ips", "podIPs"),
        (types.PodSpec, "host_pid", "hostPID"),
        (types.PodSpec, "set_hostname_as_fqdn", "setHostnameAsFQDN"),
        (types.PodSpec, "node_name", "nodeName"),
        (types.PodSecurityContext, "se_linux_options", "seLinuxOptions"),
        (types.PodSecurityContext, "fs_group", "fsGroup"),
        (types.NodeSpec, "external_id", "externalID"),
        (types.NodeSystemInfo, "machine_id", "machineID"),
        (types.NodeSystemInfo, "system_uuid", "systemUUID"),
        (types.DaemonEndpoint, "port", "Port"),
        (types.ListMeta, "continue_", "continue"),
        (types.DeviceAttribute, "int_", "int"),
        (types.DeviceAttribute, "bool_", "bool"),
        (types.ObjectMeta, "uid", "uid"),
        (types.Pod, "api_version", "apiVersion"),
    ],
)
def test_names_in_python_and_on_the_wire(type_: type[types.ApiStruct], python_name: str, wire_name: str) -> None:
    wire_names = {info.name: info.encode_name for info in msgspec.structs.fields(type_)}
    assert wire_names[python_name] == wire_name


def test_a_new_pod_has_parts_of_its_own_and_no_nones_to_check() -> None:
    one, two = types.Pod(), types.Pod()
    one.metadata.name = "one"
    one.metadata.labels["a"] = "b"
    one.spec.containers.append(types.Container(name="app"))
    assert two == types.Pod()
    assert one.status.phase is None


def test_absent_stays_absent_but_a_list_shows_its_items() -> None:
    assert encode_json(types.Pod(kind="Pod")) == b'{"kind":"Pod"}'
    assert encode_json(types.PodList()) == b'{"items":[]}'
    assert encode_json(types.Volume(empty_dir=types.EmptyDirVolumeSource())) == b'{"emptyDir":{}}'
    pod = types.Pod(kind="Pod")
    encode_json(pod)
    assert pod.metadata == types.ObjectMeta(), "encoding must not change the object"


def test_times_are_aware_datetimes() -> None:
    pod = decode_json(types.Pod, b'{"metadata":{"creationTimestamp":"2024-05-01T08:30:00Z"}}')
    assert pod.metadata.creation_timestamp == datetime(2024, 5, 1, 8, 30, tzinfo=UTC)


def test_colliding_names_and_kinds() -> None:
    assert types.KINDS["v1", "Pod"] is types.Pod
    assert types.KINDS["v1", "Event"] is types.Event
    assert types.KINDS["events.k8s.io/v1", "Event"] is types.EventsEvent
    assert types.KINDS["resource.k8s.io/v1", "ResourceClaim"] is types.ResourceResourceClaim
    assert types.KINDS["certificates.k8s.io/v1beta1", "ClusterTrustBundle"] is types.ClusterTrustBundle
    assert types.StorageTokenRequest is not types.TokenRequest


def test_patch_merge_keys() -> None:
    assert types.PATCH_MERGE_KEYS["PodStatus"]["conditions"] == ("type", "merge")
    assert types.PATCH_MERGE_KEYS["PodSpec"]["containers"] == ("name", "merge")
    assert types.PATCH_MERGE_KEYS["NodeStatus"]["addresses"] == ("type", "merge")
    assert types.PATCH_MERGE_KEYS["ObjectMeta"]["finalizers"] == ("", "merge")
    for name, fields in types.PATCH_MERGE_KEYS.items():
        known = {info.encode_name for info in msgspec.structs.fields(getattr(types, name))}
        assert fields.keys() <= known
