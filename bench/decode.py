"""How long decoding a list of 500 pods takes, compared with json.loads on the same bytes.

Covers: a PodList as an API server sends it to a node agent (spec with defaults, status, managed fields).
Does not cover: the network or the watch protocol. Best of several rounds, as other load only adds time.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from pykubelet.api.codec import decode_json
from pykubelet.api.types import PodList

PODS = 500
ROUNDS = 9
LIMIT = 1.5


def pod_list(pods: int = PODS) -> bytes:
    """A PodList as the API server writes it: about 4 KB a pod, without blanks."""
    listing = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "184467"},
        "items": [_pod(number) for number in range(pods)],
    }
    return json.dumps(listing, separators=(",", ":")).encode()


def measure() -> dict[str, float]:
    """Best times in seconds, their ratio and the size of the text."""
    data = pod_list()
    types, plain = _best(lambda: decode_json(PodList, data)), _best(lambda: json.loads(data))
    return {
        "bytes": len(data),
        "types_seconds": types,
        "json_loads_seconds": plain,
        "ratio": types / plain,
        "limit": LIMIT,
    }


def main() -> int:
    found = measure()
    print(
        f"decode {PODS} pods ({found['bytes'] / 1e6:.1f} MB): types {found['types_seconds'] * 1e3:.1f} ms, "
        f"json.loads {found['json_loads_seconds'] * 1e3:.1f} ms, ratio {found['ratio']:.2f} (at most {LIMIT})"
    )
    return 0 if found["ratio"] <= LIMIT else 1


def _best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def _pod(number: int) -> dict[str, Any]:
    name, uid = f"web-{number:04d}", f"3f2b8c1e-0000-4000-8000-{number:012d}"
    labels = {"app": "web", "pod-template-hash": "7c5ddbdf54", "tier": "frontend", "release": f"r{number % 7}"}
    return {
        "metadata": {
            "name": name,
            "generateName": "web-",
            "namespace": f"team-{number % 10}",
            "uid": uid,
            "resourceVersion": str(100_000 + number),
            "creationTimestamp": "2024-05-01T08:30:00Z",
            "labels": labels,
            "annotations": {"checksum/config": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
            "ownerReferences": [
                {
                    "apiVersion": "apps/v1",
                    "kind": "ReplicaSet",
                    "name": "web-7c5ddbdf54",
                    "uid": "77bfc1f4-1111-4000-8000-000000000001",
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            "managedFields": [
                {
                    "manager": "kube-controller-manager",
                    "operation": "Update",
                    "apiVersion": "v1",
                    "time": "2024-05-01T08:30:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:metadata": {"f:labels": {f"f:{key}": {} for key in labels}}},
                }
            ],
        },
        "spec": _spec(number),
        "status": _status(number),
    }


def _spec(number: int) -> dict[str, Any]:
    return {
        "volumes": [
            {"name": "config", "configMap": {"name": "web-config", "defaultMode": 420}},
            {"name": "cache", "emptyDir": {"sizeLimit": "1Gi"}},
            {
                "name": "kube-api-access-x7k2p",
                "projected": {
                    "defaultMode": 420,
                    "sources": [
                        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
                        {
                            "configMap": {
                                "name": "kube-root-ca.crt",
                                "items": [{"key": "ca.crt", "path": "ca.crt"}],
                            }
                        },
                    ],
                },
            },
        ],
        "containers": [_container("app", number), _container("proxy", number)],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "nodeName": "node-1",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 2000},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{what}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for what in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _container(name: str, number: int) -> dict[str, Any]:
    probe = {
        "httpGet": {"path": "/healthz", "port": "http", "scheme": "HTTP"},
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }
    return {
        "name": name,
        "image": f"example.test/team/{name}:1.{number % 20}",
        "args": ["--listen=:8080", "--log-level=info"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}},
            {"name": "MODE", "value": "production"},
        ],
        "resources": {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [
            {"name": "config", "readOnly": True, "mountPath": "/etc/web"},
            {"name": "cache", "mountPath": "/var/cache"},
        ],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _status(number: int) -> dict[str, Any]:
    address = f"10.244.{number // 250}.{number % 250 + 2}"
    return {
        "phase": "Running",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": "2024-05-01T08:30:05Z"}
            for kind in ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "hostIP": "192.0.2.10",
        "hostIPs": [{"ip": "192.0.2.10"}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": "2024-05-01T08:30:01Z",
        "containerStatuses": [
            {
                "name": name,
                "state": {"running": {"startedAt": "2024-05-01T08:30:04Z"}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": f"example.test/team/{name}:1.{number % 20}",
                "imageID": "sha256:" + "ab" * 32,
                "containerID": "containerd://" + f"{number:064x}",
                "started": True,
            }
            for name in ("app", "proxy")
        ],
        "qosClass": "Burstable",
    }


if __name__ == "__main__":
    raise SystemExit(main())
