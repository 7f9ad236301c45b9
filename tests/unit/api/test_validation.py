"""Validation: one broken field at a time on a pod that is otherwise good, and all at once."""

# A case is one line of the table, however long its message is.
# ruff: noqa: E501

import re
from typing import Any

import pytest

from pykubelet.api.codec import convert
from pykubelet.api.defaults import default_pod
from pykubelet.api.types import Pod
from pykubelet.api.validation import names
from pykubelet.api.validation.findings import FieldError, Findings, show
from pykubelet.api.validation.pod import validate_pod
from tests.unit.api.rich_pod import rich_pod

GONE = object()
STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")


def edit(tree: Any, path: str, value: Any) -> None:
    """Set, append to (path ending in `[+]`) or remove (GONE) one place of a plain pod."""
    append = path.endswith("[+]")
    steps = [int(m[2]) if m[2] else m[1] for m in STEP.finditer(path.removesuffix("[+]"))]
    for step in steps if append else steps[:-1]:
        tree = tree[step]
    if append:
        tree.append(value)
    elif value is GONE:
        del tree[steps[-1]]
    else:
        tree[steps[-1]] = value


def validated(tree: Any) -> list[str]:
    pod = convert(Pod, tree)
    default_pod(pod)
    return [str(problem) for problem in validate_pod(pod)]


def broken(*edits: tuple[str, Any]) -> list[str]:
    tree = rich_pod()
    for path, value in edits:
        edit(tree, path, value)
    return validated(tree)


def test_the_rich_pod_is_good() -> None:
    assert validated(rich_pod()) == []


C = "spec.containers[0]"
V = "spec.volumes"

# What is set where -> the one problem that must come of it (the path of the edit when it begins with ":").
ONE_PROBLEM: list[tuple[str, Any, str]] = [
    ("metadata.name", "", ": required"),
    ("metadata.name", "Web_1", ': must be lower case letters, digits, inner dashes and dots, not "Web_1"'),
    ("metadata.name", "a" * 249, "spec.volumes[6].name: POD-VOLUME, its claim's name, must be at most 253 characters"),
    ("metadata.namespace", "a.b", ': must be lower case letters, digits and inner dashes, not "a.b"'),
    ("metadata.labels", {"a/b/c": "x"}, '[a/b/c]: the key must have at most one slash, not "a/b/c"'),
    ("metadata.labels", {"a": "-x"}, '[a]: the value must be letters, digits and inner dashes, dots or underscores, not "-x"'),
    ("metadata.annotations", {"a": "x" * 300_000}, ": must be at most 262144 bytes together, not 300001"),
    ("metadata.annotations", {"b d": ""}, '[b d]: the key must be letters, digits and inner dashes, dots or underscores, not "b d"'),
    ("metadata.annotations", {"controller.kubernetes.io/pod-deletion-cost": "07"}, '[controller.kubernetes.io/pod-deletion-cost]: must be a 32 bit number, not "07"'),
    ("metadata.annotations", {"kubernetes.io/config.mirror": "x"}, "spec.nodeName: required with the annotation kubernetes.io/config.mirror"),
    ("metadata.ownerReferences[1].controller", True, ": only one owner may be the controller"),
    ("metadata.ownerReferences[1].uid", "", ": required"),
    ("metadata.finalizers", ["lonely"], '[0]: must have a domain or be kubernetes, orphan or foregroundDeletion, not "lonely"'),
    ("spec.restartPolicy", "Sometimes", ': must be Always, OnFailure or Never, not "Sometimes"'),
    ("spec.activeDeadlineSeconds", 0, ": must be 1..2147483647, not 0"),
    ("spec.os.name", "plan9", ': must be linux or windows, not "plan9"'),
    ("spec.serviceAccountName", "A", ': must be lower case letters, digits, inner dashes and dots, not "A"'),
    ("spec.runtimeClassName", "", ': must be lower case letters, digits, inner dashes and dots, not ""'),
    ("spec.hostname", "a.b", ': must be lower case letters, digits and inner dashes, not "a.b"'),
    ("spec.dnsPolicy", "Cluster", ': must be ClusterFirst, ClusterFirstWithHostNet, Default or None, not "Cluster"'),
    ("spec.dnsConfig.nameservers", [], ": required with dnsPolicy None"),
    ("spec.dnsConfig.nameservers", ["1.1.1.1"] * 4, ": must be at most 3, not 4"),
    ("spec.dnsConfig.nameservers[0]", "1.1.1", ': must be an IP address, not "1.1.1"'),
    ("spec.dnsConfig.nameservers[0]", "fe80::1%eth0", ': must be an IP address, not "fe80::1%eth0"'),
    ("spec.dnsConfig.searches", ["a"] * 33, ": must be at most 32, not 33"),
    ("spec.dnsConfig.searches", ["a" * 250] * 9, ": must be at most 2048 characters together, not 2258"),
    ("spec.dnsConfig.options[0].name", "", ": required"),
    ("spec.hostAliases[0].ip", "localhost", ': must be an IP address, not "localhost"'),
    ("spec.hostAliases[0].hostnames[1]", "B", ': must be lower case letters, digits, inner dashes and dots, not "B"'),
    ("spec.nodeSelector", {"": "x"}, '[]: the key must be letters, digits and inner dashes, dots or underscores, not ""'),
    ("spec.tolerations[1].key", "", 'spec.tolerations[1].operator: must be Exists when key is empty, not "Equal"'),
    ("spec.tolerations[2].effect", "NoSchedule", ": must be NoExecute when tolerationSeconds is set"),
    ("spec.tolerations[1].operator", "Near", ': must be Equal or Exists, not "Near"'),
    ("spec.tolerations[0].value", "x", ': must be empty with operator Exists, not "x"'),
    ("spec.preemptionPolicy", "Maybe", ': must be PreemptLowerPriority or Never, not "Maybe"'),
    ("spec.topologySpreadConstraints[0].maxSkew", 0, ": must be 1 or more, not 0"),
    ("spec.topologySpreadConstraints[0].whenUnsatisfiable", "ScheduleAnyway", "spec.topologySpreadConstraints[0].minDomains: needs whenUnsatisfiable DoNotSchedule"),
    ("spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms", [], ": required"),
    ("spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight", 101, ": must be 1..100, not 101"),
    ("spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey", "", ": required"),
    ("spec.overhead.cpu", "-1", "spec.overhead[cpu]: must not be negative, not -1"),
    ("spec.resources.limits.cpu", "1500m", "spec.containers[0].resources.limits[cpu]: must be at most the pod's limit 1500m, not 2"),
    ("spec.resources.limits.storage", "1", "spec.resources.limits[storage]: must be cpu, memory or hugepages-SIZE for a whole pod, not \"storage\""),
    ("spec.resources.requests", {"memory": "1Mi"}, "[memory]: must be at least what the containers ask for, 64Mi, not 1Mi"),
    ("spec.resourceClaims[1].name", "gpu", ': is used twice: "gpu"'),
    ("spec.resourceClaims[1].resourceClaimName", "x", "spec.resourceClaims[1]: must have exactly one of resourceClaimName, resourceClaimTemplateName"),
    ("spec.securityContext.fsGroup", -1, ": must be 0..2147483647, not -1"),
    ("spec.securityContext.supplementalGroups[1]", 2**31, ": must be 0..2147483647, not 2147483648"),
    ("spec.securityContext.sysctls[1].name", "Kernel", ': must be a sysctl name, not "Kernel"'),
    ("spec.securityContext.sysctls[1].name", "net.ipv4.ip_forward", ': is used twice: "net.ipv4.ip_forward"'),
    ("spec.securityContext.seccompProfile.localhostProfile", "x", ": must be set only with type Localhost"),
    ("spec.securityContext.appArmorProfile.localhostProfile", " x", ': must not begin or end with blanks, not " x"'),
    ("spec.securityContext.supplementalGroupsPolicy", "Lax", ': must be Merge or Strict, not "Lax"'),
    ("spec.securityContext.windowsOptions", {}, ": must not be set for a linux pod"),
    ("spec.containers", [], ": required"),
    (f"{C}.name", "", ": required"),
    (f"{C}.name", "a" * 64, ": must be at most 63 characters long, not 64"),
    ("spec.containers[1].name", "app", ': "app" is already the name of spec.containers[0]'),
    ("spec.initContainers[1].name", "aux", ': "aux" is already the name of spec.containers[1]'),
    (f"{C}.image", "", ": required"),
    (f"{C}.image", "busybox ", ': must not begin or end with blanks, not "busybox "'),
    (f"{C}.imagePullPolicy", "Ask", ': must be Always, IfNotPresent or Never, not "Ask"'),
    (f"{C}.terminationMessagePolicy", "Log", ': must be File or FallbackToLogsOnError, not "Log"'),
    (f"{C}.ports[0].containerPort", 70000, ": must be 1..65535, not 70000"),
    (f"{C}.ports[0].containerPort", GONE, ": required"),
    (f"{C}.ports[0].hostPort", -1, ": must be 1..65535, not -1"),
    (f"{C}.ports[0].protocol", "tcp", ': must be TCP, UDP or SCTP, not "tcp"'),
    (f"{C}.ports[1].name", "http", ': is used twice: "http"'),
    (f"{C}.ports[1].name", "80", ': must be lower case letters, digits and single inner dashes with a letter, not "80"'),
    (f"{C}.ports[+]", {"containerPort": 81, "hostPort": 8080}, "spec.containers[0].ports[2].hostPort: 8080/TCP is already taken by spec.containers[0].ports[0].hostPort"),
    (f"{C}.env[0].name", "A=B", ": must be printable ASCII without '=', not \"A=B\""),
    (f"{C}.env[2].value", "x", "spec.containers[0].env[2].valueFrom: must not be set together with value"),
    (f"{C}.env[2].valueFrom", {}, ": must have one of fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef, fileKeyRef"),
    (f"{C}.env[6].valueFrom.configMapKeyRef", {"name": "n", "key": "k"}, "spec.containers[0].env[6].valueFrom: must have only one source, not configMapKeyRef and secretKeyRef"),
    (f"{C}.env[3].valueFrom.fieldRef.fieldPath", "spec['x']", ": only metadata.labels or metadata.annotations take a key, not \"spec['x']\""),
    (f"{C}.env[4].valueFrom.resourceFieldRef.divisor", "3", ': must be 1m or 1, not "3"'),
    (f"{C}.env[5].valueFrom.configMapKeyRef.key", "..x", ': must be letters, digits, dashes, underscores and dots, not "..x"'),
    (f"{C}.env[7].valueFrom.fileKeyRef.volumeName", "conf", ': volume "conf" must be an emptyDir'),
    (f"{C}.envFrom[0].secretRef", {"name": "x"}, "spec.containers[0].envFrom[0]: must have exactly one of configMapRef, secretRef"),
    (f"{C}.resources.requests.memory", "1Gi", "spec.containers[0].resources.requests[memory]: must be at most the limit 128Mi, not 1Gi"),
    (f"{C}.resources.requests.memory", "64MB", 'spec.containers[0].resources.requests[memory]: must be a quantity such as 100m or 64Mi, not "64MB"'),
    (f"{C}.resources.limits.cores", "1", 'spec.containers[0].resources.limits[cores]: must be cpu, memory, ephemeral-storage, hugepages-SIZE or domain/name, not "cores"'),
    ("spec.containers[1].resources.limits", {"hugepages-2Mi": "2Mi"}, "spec.containers[1].resources: huge pages need a cpu or memory amount too"),
    (f"{C}.resources.claims[0].name", "tpu", ': there is no claim named "tpu" in spec.resourceClaims'),
    (f"{C}.resizePolicy[0].resourceName", "disk", ': must be cpu or memory, not "disk"'),
    (f"{C}.restartPolicy", GONE, ": required with restartPolicyRules"),
    (f"{C}.restartPolicyRules[0].action", "Stop", ': must be Restart or RestartAllContainers, not "Stop"'),
    (f"{C}.restartPolicyRules[0].exitCodes", GONE, ": required"),
    (f"{C}.livenessProbe.successThreshold", 2, ": must be 1, not 2"),
    (f"{C}.livenessProbe.periodSeconds", -1, ": must be 0 or more, not -1"),
    (f"{C}.livenessProbe.exec", {"command": ["x"]}, "spec.containers[0].livenessProbe: must have only one handler, not exec and httpGet"),
    (f"{C}.livenessProbe.httpGet", GONE, "spec.containers[0].livenessProbe: must have one of exec, httpGet, tcpSocket, grpc"),
    (f"{C}.livenessProbe.httpGet.port", 0, ": must be 1..65535, not 0"),
    (f"{C}.livenessProbe.httpGet.scheme", "FTP", ': must be HTTP or HTTPS, not "FTP"'),
    (f"{C}.livenessProbe.httpGet.httpHeaders[0].name", "X A", ': must be letters, digits and dashes, not "X A"'),
    (f"{C}.readinessProbe.terminationGracePeriodSeconds", 3, ": must not be set for a readiness probe"),
    (f"{C}.startupProbe.exec.command", [], ": required"),
    (f"{C}.lifecycle.preStop", {"sleep": {"seconds": 31}}, ".sleep.seconds: must be 0..30 (the grace period), not 31"),
    (f"{C}.lifecycle.stopSignal", "SIGNOPE", ': must be a signal such as SIGTERM, not "SIGNOPE"'),
    ("spec.initContainers[0].livenessProbe", {"exec": {"command": ["x"]}}, ": must not be set for an init container without restartPolicy Always"),
    (f"{C}.securityContext.allowPrivilegeEscalation", False, ": must not be false for a privileged container"),
    (f"{C}.securityContext.procMount", "Unmasked", ": Unmasked needs spec.hostUsers false"),
    (f"{C}.securityContext.seccompProfile.localhostProfile", "../x", ": must not contain '..', not \"../x\""),
    (f"{C}.volumeMounts[0].name", "nope", ': there is no volume named "nope"'),
    (f"{C}.volumeMounts[1].mountPath", "/a", ': is used twice: "/a"'),
    (f"{C}.volumeMounts[0].subPath", "/x", ': must be a relative path, not "/x"'),
    (f"{C}.volumeMounts[2].subPath", "x", "spec.containers[0].volumeMounts[2].subPathExpr: must not be set together with subPath"),
    (f"{C}.volumeMounts[1].readOnly", False, "spec.containers[0].volumeMounts[1].recursiveReadOnly: needs readOnly true"),
    ("spec.initContainers[0].volumeMounts[0].mountPropagation", "Bidirectional", ": Bidirectional needs a privileged container"),
    (f"{C}.volumeDevices[0].name", "host", ': volume "host" must be a claim to be a block device'),
    (f"{C}.volumeDevices[0].devicePath", "/b", ': is used twice: "/b"'),
    (f"{V}[1].name", "scratch", ': is used twice: "scratch"'),
    (f"{V}[1].name", "no_good", ': must be lower case letters, digits and inner dashes, not "no_good"'),
    (f"{V}[0].hostPath", {"path": "/x"}, "spec.volumes[0]: must have only one source, not emptyDir and hostPath"),
    (f"{V}[0].emptyDir.sizeLimit", "-1", ": must not be negative, not -1"),
    (f"{V}[0].emptyDir.sizeLimit", "big", ': must be a quantity such as 64Mi, not "big"'),
    (f"{V}[2].hostPath.path", "/a/../b", ": must not contain '..', not \"/a/../b\""),
    (f"{V}[2].hostPath.type", "Thing", ': must be "", DirectoryOrCreate, Directory, FileOrCreate, File, Socket, CharDevice or BlockDevice, not "Thing"'),
    (f"{V}[3].configMap.items[0].path", "..data", ": must not start with '..', not \"..data\""),
    (f"{V}[3].configMap.items[0].mode", 512, ": must be 0..0777 (octal), not 512"),
    (f"{V}[4].secret.secretName", "", ": required"),
    (f"{V}[5].persistentVolumeClaim.claimName", "rich-temp", ": must not be the claim of an ephemeral volume"),
    (f"{V}[6].ephemeral.volumeClaimTemplate.spec.accessModes", ["ReadWriteOncePod", "ReadOnlyMany"], ": ReadWriteOncePod must stand alone"),
    (f"{V}[6].ephemeral.volumeClaimTemplate.spec.resources", {}, ".requests[storage]: required"),
    (f"{V}[7].csi.driver", "x" * 64, ": must be at most 63 characters long, not 64"),
    (f"{V}[8].image.reference", "", ": required"),
    (f"{V}[9].downwardAPI.items[0].fieldRef.fieldPath", "status.podIP", ': must be metadata.name, metadata.namespace, metadata.labels, metadata.annotations or metadata.uid, not "status.podIP"'),
    (f"{V}[9].downwardAPI.items[1].resourceFieldRef.containerName", "", ": required"),
    (f"{V}[10].projected.sources[2].downwardAPI.items[0].path", "a", ': "a" is already written by spec.volumes[10].projected.sources[0].secret.items[0].path'),
    (f"{V}[10].projected.sources[3].serviceAccountToken.expirationSeconds", 60, ": must be 600..4294967296, not 60"),
    (f"{V}[10].projected.sources[4].clusterTrustBundle.signerName", "a.b/c", "spec.volumes[10].projected.sources[4].clusterTrustBundle: must have exactly one of name, signerName"),
    (f"{V}[10].projected.sources[5].podCertificate.keyType", "DSA", ': must be RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519, not "DSA"'),
    (f"{V}[10].projected.sources[1]", {}, ": must have exactly one source, not none"),
    (f"{V}[11].nfs.path", "x", ': must be an absolute path, not "x"'),
    (f"{V}[12].iscsi.iqn", "iqn.x", ': must be an iqn., eui. or naa. name, not "iqn.x"'),
    (f"{V}[12].iscsi.lun", 256, ": must be 0..255, not 256"),
    (f"{V}[13].fc.wwids", ["x"], "spec.volumes[13].fc: must have exactly one of targetWWNs, wwids"),
    (f"{V}[15].azureDisk.kind", "Managed", "spec.volumes[15].azureDisk.diskURI: must begin with /subscriptions/, not \"https://x/d.vhd\""),
    (f"{V}[17].flexVolume.options", {"x.k8s.io/a": "b"}, "[x.k8s.io/a]: kubernetes.io and k8s.io are reserved"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "expected"), ONE_PROBLEM, ids=[f"{p}={str(v)[:20]}" for p, v, _ in ONE_PROBLEM]
)
def test_one_broken_field_is_one_problem(path: str, value: Any, expected: str) -> None:
    full = expected if expected.startswith(("spec.", "metadata.")) else f"{path}{expected}"
    assert broken((path, value)) == [full]


def test_every_problem_is_reported_at_once() -> None:
    found = broken(
        ("metadata.name", "BAD"),
        (f"{C}.ports[0].containerPort", 0),
        (f"{C}.volumeMounts[0].name", "nope"),
        ("spec.containers[1].image", ""),
        ("spec.restartPolicy", "x"),
    )
    assert [line.split(": ")[0] for line in found] == [
        "metadata.name",
        "spec.containers[0].ports[0].containerPort",
        "spec.containers[0].volumeMounts[0].name",
        "spec.containers[1].image",
        "spec.restartPolicy",
    ]


def test_host_network_rules() -> None:
    found = broken(("spec.hostNetwork", True), ("spec.hostnameOverride", "x"))
    assert "spec.containers[0].ports[0].hostPort: must equal containerPort 80 with hostNetwork, not 8080" in found
    assert 'spec.securityContext.sysctls[0].name: "net.ipv4.ip_forward" must not be set with hostNetwork' in found
    assert "spec.hostnameOverride: must not be set with hostNetwork" in found


def test_user_namespace_rules() -> None:
    found = broken(("spec.hostUsers", False), ("spec.hostPID", True), ("spec.hostIPC", True))
    assert "spec.hostPID: must not be true when hostUsers is false" in found
    assert "spec.hostIPC: must not be true when hostUsers is false" in found
    assert "spec.containers[0].volumeDevices: must not be set when hostUsers is false" in found
    assert 'spec.securityContext.sysctls[1].name: "kernel/shm_rmid_forced" must not be set with hostIPC' in found


def test_shared_and_host_processes_exclude_each_other() -> None:
    assert broken(("spec.hostPID", True), ("spec.shareProcessNamespace", True)) == [
        "spec.shareProcessNamespace: must not be true together with hostPID"
    ]


def test_ephemeral_containers() -> None:
    debugger = {
        "name": "app",
        "image": "b",
        "ports": [{"containerPort": 1}],
        "livenessProbe": {"exec": {"command": ["x"]}},
        "targetContainerName": "gone",
        "volumeMounts": [{"name": "scratch", "mountPath": "/x", "subPath": "y"}],
    }
    assert broken(("spec.ephemeralContainers", [debugger])) == [
        'spec.ephemeralContainers[0].name: "app" is already the name of spec.containers[0]',
        "spec.ephemeralContainers[0].livenessProbe: must not be set for an ephemeral container",
        "spec.ephemeralContainers[0].ports: must not be set for an ephemeral container",
        'spec.ephemeralContainers[0].targetContainerName: there is no container named "gone"',
        "spec.ephemeralContainers[0].volumeMounts[0].subPath: must not be set for an ephemeral container",
    ]


def test_old_security_annotations() -> None:
    apparmor, seccomp = "container.apparmor.security.beta.kubernetes.io/", "seccomp.security.alpha.kubernetes.io/pod"
    notes = {f"{apparmor}app": "unconfined", f"{apparmor}gone": "what", seccomp: "unconfined"}
    assert broken(("metadata.annotations", notes)) == [
        f"metadata.annotations[{apparmor}gone]: there is no container of that name",
        f'metadata.annotations[{apparmor}gone]: must be an AppArmor profile, not "what"',
        'spec.securityContext.seccompProfile: differs from the annotation, which says "unconfined"',
        'spec.containers[0].securityContext.appArmorProfile: differs from the annotation, which says "unconfined"',
    ]


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"requests": {"e.x/gpu": 1}}, "limits[e.x/gpu]: required, because the request and limit must be equal"),
        ({"requests": {"e.x/gpu": 1}, "limits": {"e.x/gpu": 2}}, "requests[e.x/gpu]: must equal the limit 2, not 1"),
        ({"limits": {"e.x/gpu": "1500m"}}, "limits[e.x/gpu]: must be a whole number, not 1500m"),
        ({"limits": {"cpu": 1, "hugepages-2Mi": "3Mi"}}, "limits[hugepages-2Mi]: must be a multiple of the page size 2Mi, not 3Mi"),
        ({"limits": {"cpu": 1, "hugepages-big": 1}}, 'limits[hugepages-big]: must name a page size such as hugepages-2Mi, not "hugepages-big"'),
        ({"limits": {"requests.x/y": 1}}, 'limits[requests.x/y]: is not an extended resource name: "requests.x/y"'),
    ],
)  # fmt: skip
def test_special_resources(resources: Any, expected: str) -> None:
    tree = rich_pod()
    del tree["spec"]["resources"]
    tree["spec"]["containers"][1]["resources"] = resources
    assert f"spec.containers[1].resources.{expected}" in validated(tree)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (names.dns_label, ["a", "a-b", "9", "a" * 63], ["", "-a", "a-", "A", "a.b", "a_b", "a" * 64, "a\n"]),
        (names.dns_subdomain, ["a.b", "a-b.c"], ["", ".a", "a.", "a..b", "a.-b", "a" * 254]),
        (names.qualified_name, ["a", "A_b.c", "x.y/Z"], ["", "/a", "a/", "a/b/c", "-a", "X/a", "a" * 64]),
        (names.label_value, ["", "a", "A.b_c"], ["-", "a b", "a" * 64, "é"]),
        (names.port_name, ["a", "http", "a-1"], ["", "1", "a--b", "-a", "A", "a" * 16]),
        (names.env_name, ["A", "a b", "1", "."], ["", "a=b", "é", "\t"]),
        (names.config_key, ["a", ".x", "A-b_c.d"], ["", ".", "..", "..a", "a/b", "a" * 254]),
        (names.sysctl_name, ["kernel.x", "net/ipv4/conf/eth0.1/x"], ["", "A", "a..b", "a" * 254]),
        (names.ip_address, ["1.2.3.4", "::1"], ["", "1.2.3", "01.2.3.4", "::ffff:1.2.3.4", "fe80::1%1", "x"]),
        (names.relative_path, ["", "a/b", "a..b/..c"], ["/a", "..", "a/../b", "../a"]),
        (names.projected_path, ["a", "a/..b"], ["/a", "..", "..a", "../a"]),
        (names.dns_search, [".", "a.", "_a._b", "a_b.c"], ["", "..", "_", "a b"]),
    ],
)
def test_shapes_of_names(check: Any, good: list[str], bad: list[str]) -> None:
    assert [value for value in good if check(value) is not None] == []
    assert [value for value in bad if check(value) is None] == []


def test_values_in_messages_stay_short_and_printable() -> None:
    assert show("a\nb\x1b\ud800") == '"a\\nb\\x1b\\ud800"'
    assert len(show("x" * 1000)) < 70
    assert show(10**5000) == "a huge number"
    assert str(FieldError(path="a[\n]", message="x")) == "a[\\n]: x"


def test_findings_count() -> None:
    found = Findings()
    assert not found.required("a", "") and found.required("b", 0) and len(found) == 1
