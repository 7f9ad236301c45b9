"""A pod that uses nearly every field there is, as plain values: the base for tests of rules and damage."""

import copy
from typing import Any

RICH: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "rich",
        "namespace": "demo",
        "labels": {"app": "rich", "example.com/tier": "back"},
        "annotations": {"example.com/Note": "free text", "controller.kubernetes.io/pod-deletion-cost": "-5"},
        "finalizers": ["example.com/guard"],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Thing", "name": "t", "uid": "u1", "controller": True},
            {"apiVersion": "v1", "kind": "Thing", "name": "s", "uid": "u2"},
        ],
    },
    "spec": {
        "activeDeadlineSeconds": 600,
        "serviceAccountName": "robot",
        "hostname": "rich",
        "subdomain": "web",
        "nodeSelector": {"disk": "ssd"},
        "priorityClassName": "high",
        "runtimeClassName": "kata",
        "preemptionPolicy": "Never",
        "os": {"name": "linux"},
        "hostUsers": True,
        "imagePullSecrets": [{"name": "registry"}],
        "readinessGates": [{"conditionType": "example.com/ready"}],
        "overhead": {"cpu": "10m", "memory": "8Mi"},
        "resources": {"limits": {"cpu": "4", "memory": "1Gi"}},
        "resourceClaims": [
            {"name": "gpu", "resourceClaimName": "gpu-1"},
            {"name": "nic", "resourceClaimTemplateName": "nic"},
        ],
        "dnsPolicy": "None",
        "dnsConfig": {
            "nameservers": ["10.0.0.1", "fd00::1"],
            "searches": ["svc.local", "_tcp.example.", "."],
            "options": [{"name": "ndots", "value": "2"}],
        },
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["a.example", "b"]}],
        "tolerations": [
            {"operator": "Exists"},
            {"key": "k", "value": "v", "effect": "NoSchedule"},
            {"key": "gone", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5},
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "minDomains": 2,
                "nodeAffinityPolicy": "Honor",
                "labelSelector": {"matchLabels": {"app": "rich"}},
                "matchLabelKeys": ["version"],
            }
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "disk", "operator": "In", "values": ["ssd"]},
                                {"key": "cores", "operator": "Gt", "values": ["4"]},
                            ],
                            "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}],
                        }
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 5, "preference": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}}
                ],
            },
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "topologyKey": "zone",
                        "namespaces": ["demo"],
                        "labelSelector": {
                            "matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["other"]}]
                        },
                        "mismatchLabelKeys": ["pod-template-hash"],
                    }
                ]
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "podAffinityTerm": {"topologyKey": "host", "namespaceSelector": {"matchLabels": {"a": "b"}}},
                    }
                ]
            },
        },
        "securityContext": {
            "fsGroup": 2000,
            "fsGroupChangePolicy": "OnRootMismatch",
            "runAsUser": 1000,
            "runAsGroup": 3000,
            "runAsNonRoot": True,
            "supplementalGroups": [1, 2],
            "supplementalGroupsPolicy": "Strict",
            "seLinuxChangePolicy": "Recursive",
            "seccompProfile": {"type": "RuntimeDefault"},
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "strict"},
            "sysctls": [
                {"name": "net.ipv4.ip_forward", "value": "1"},
                {"name": "kernel/shm_rmid_forced", "value": "0"},
            ],
        },
        "initContainers": [
            {
                "name": "setup",
                "image": "registry.example:5000/team/setup",
                "command": ["true"],
                "resources": {"limits": {"cpu": "100u"}},
                "restartPolicy": "OnFailure",
                "volumeMounts": [{"name": "scratch", "mountPath": "/s"}],
            },
            {
                "name": "proxy",
                "image": "proxy@sha256:" + "0" * 64,
                "restartPolicy": "Always",
                "ports": [{"containerPort": 9000, "hostPort": 9000, "protocol": "UDP"}],
                "startupProbe": {"grpc": {"port": 9000}},
                "lifecycle": {"preStop": {"sleep": {"seconds": 5}}},
            },
        ],
        "containers": [
            {
                "name": "app",
                "image": "app:latest",
                "command": ["app"],
                "args": ["--x"],
                "workingDir": "/w",
                "env": [
                    {"name": "PLAIN", "value": "$(OTHER)"},
                    {"name": "relaxed name", "value": ""},
                    {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
                    {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                    {"name": "CM", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "a.b", "optional": True}}},
                    {"name": "SEC", "valueFrom": {"secretKeyRef": {"name": "sec", "key": "k"}}},
                    {
                        "name": "FILE",
                        "valueFrom": {"fileKeyRef": {"volumeName": "scratch", "path": "env", "key": "K"}},
                    },
                ],
                "envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "sec"}}],
                "ports": [
                    {"name": "http", "containerPort": 80, "hostPort": 8080},
                    {"containerPort": 53, "protocol": "UDP", "hostIP": "127.0.0.1", "hostPort": 53},
                ],
                "resources": {
                    "requests": {"cpu": "100m", "memory": "64Mi"},
                    "limits": {"cpu": "2", "memory": "128Mi", "example.com/gpu": 1, "hugepages-2Mi": "4Mi"},
                    "claims": [{"name": "gpu", "request": "one"}],
                },
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                "restartPolicy": "OnFailure",
                "restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}],
                "livenessProbe": {
                    "httpGet": {"port": "http", "httpHeaders": [{"name": "X-A", "value": "b"}]},
                    "terminationGracePeriodSeconds": 3,
                },
                "readinessProbe": {"tcpSocket": {"port": 80}, "successThreshold": 2},
                "startupProbe": {"exec": {"command": ["ok"]}, "initialDelaySeconds": 1},
                "lifecycle": {
                    "postStart": {"httpGet": {"port": 80, "path": "/x", "scheme": "HTTPS"}},
                    "preStop": {"exec": {"command": ["bye"]}},
                    "stopSignal": "SIGRTMIN+3",
                },
                "securityContext": {
                    "privileged": True,
                    "procMount": "Default",
                    "runAsUser": 0,
                    "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
                    "seccompProfile": {"type": "Localhost", "localhostProfile": "p/x.json"},
                },
                "volumeMounts": [
                    {"name": "scratch", "mountPath": "/a", "subPath": "x/y", "mountPropagation": "Bidirectional"},
                    {"name": "conf", "mountPath": "/b", "readOnly": True, "recursiveReadOnly": "IfPossible"},
                    {"name": "mix", "mountPath": "/c", "subPathExpr": "$(POD)"},
                ],
                "volumeDevices": [{"name": "data", "devicePath": "/dev/xvda"}],
            },
            {
                "name": "aux",
                "image": "aux:1.2",
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "resources": {"limits": {"cpu": "1"}},
            },
        ],
        "volumes": [
            {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
            {"name": "nothing"},
            {"name": "host", "hostPath": {"path": "/var/log"}},
            {"name": "conf", "configMap": {"name": "cm", "items": [{"key": "k", "path": "d/f", "mode": 256}]}},
            {"name": "sec", "secret": {"secretName": "sec", "defaultMode": 288}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {
                "name": "temp",
                "ephemeral": {
                    "volumeClaimTemplate": {
                        "metadata": {"labels": {"a": "b"}},
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": "1Gi"}},
                            "storageClassName": "fast",
                        },
                    }
                },
            },
            {"name": "csi", "csi": {"driver": "csi.example.com", "nodePublishSecretRef": {"name": "sec"}}},
            {"name": "img", "image": {"reference": "registry.example/model"}},
            {
                "name": "info",
                "downwardAPI": {
                    "items": [
                        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                        {
                            "path": "mem",
                            "resourceFieldRef": {
                                "containerName": "app",
                                "resource": "requests.memory",
                                "divisor": "1Mi",
                            },
                        },
                    ]
                },
            },
            {
                "name": "mix",
                "projected": {
                    "sources": [
                        {"secret": {"name": "sec", "items": [{"key": "a", "path": "a"}]}},
                        {"configMap": {"name": "cm"}},
                        {"downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
                        {"serviceAccountToken": {"path": "token", "audience": "vault"}},
                        {"clusterTrustBundle": {"name": "roots", "path": "ca.pem"}},
                        {
                            "podCertificate": {
                                "signerName": "example.com/signer",
                                "keyType": "ED25519",
                                "credentialBundlePath": "bundle.pem",
                            }
                        },
                    ]
                },
            },
            {"name": "nfs", "nfs": {"server": "n", "path": "/x"}},
            {
                "name": "iscsi",
                "iscsi": {"targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:storage.x", "lun": 0},
            },
            {"name": "fc", "fc": {"targetWWNs": ["500a0982991b8dc5"], "lun": 2}},
            {"name": "rbd", "rbd": {"monitors": ["m"], "image": "i"}},
            {"name": "azure", "azureDisk": {"diskName": "d", "diskURI": "https://x/d.vhd"}},
            {"name": "sio", "scaleIO": {"gateway": "g", "system": "s", "volumeName": "v", "secretRef": {"name": "s"}}},
            {"name": "flex", "flexVolume": {"driver": "example.com/flex", "options": {"a": "b"}}},
        ],
    },
}


def rich_pod() -> dict[str, Any]:
    return copy.deepcopy(RICH)
