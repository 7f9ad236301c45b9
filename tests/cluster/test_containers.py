"""Containers as written, through the real API server: the fields that conformance looks at, all pods at once.

What a container sees is read from its log, what became of it from its status as the API server has it. Resizes are
in test_resize.py, variables from config maps, secrets and services in test_pods.py.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pykubelet.standalone.images import busybox_image, find_busybox
from pykubelet.standalone.packer import architecture, pack
from tests.bed.registry import Registry
from tests.cluster.joined import (
    STAY,
    Joined,
    Manifest,
    condition,
    container_manifest,
    is_ready,
    phase,
    pod_manifest,
    state_of,
)

pytestmark = pytest.mark.cluster

SOON = {"periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30}
"""On a busy machine the runtime may take seconds to start a probe's command, which is no failure here."""
WITHIN = 60.0
DONE = "--told--"
NO_PULL = ("ErrImagePull", "ImagePullBackOff")


def tells(script: str, **more: Any) -> Manifest:
    """A container that says what it sees, and that it is done."""
    return container_manifest(f"exec 2>&1; {script}; echo {DONE}; {STAY}", **more)


def field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def share(name: str, resource: str, divisor: str) -> Manifest:
    return {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}


def runs(script: str) -> Manifest:
    return {"exec": {"command": ["sh", "-c", script]}}


def process_pods() -> list[Manifest]:
    env = [
        {"name": "FIRST", "value": "1"},
        {"name": "SECOND", "value": "$(FIRST)-$(LATER)-$$(FIRST)-$(NOBODY)"},
        {"name": "LATER", "value": "x"},
        field("NAME", "metadata.name"),
        field("UID", "metadata.uid"),
        field("ACCOUNT", "spec.serviceAccountName"),
        field("NOTE", "metadata.annotations['note']"),
        share("CPU", "limits.cpu", "1m"),
        share("MEMORY", "requests.memory", "1Mi"),
        share("NODE_CPU", "limits.ephemeral-storage", "1Gi"),
    ]
    items = [
        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
        {"path": "cpu", "resourceFieldRef": {"containerName": "app", "resource": "limits.cpu", "divisor": "1m"}},
    ]
    look = "cat /info/labels; echo; cat /info/cpu; echo; until grep -q 'kind=\"new\"' /info/labels; do sleep 0.1; done"
    last = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    return [
        pod_manifest(
            "written",
            metadata={"annotations": {"note": "a b"}},
            containers=[
                container_manifest(
                    command=["sh", "-c", f'env; echo ARGS="$@"; echo {DONE}; {STAY}', "sh"],
                    args=["$(FIRST)", "$$(FIRST)", "$(NOBODY)", "$(NAME)"],
                    env=env,
                    resources={"limits": {"cpu": "150m", "memory": "64Mi"}, "requests": {"memory": "32Mi"}},
                )
            ],
        ),
        pod_manifest(
            "files",
            metadata={"labels": {"kind": "old"}},
            containers=[
                tells(
                    look,
                    volumeMounts=[{"name": "info", "mountPath": "/info"}],
                    resources={"limits": {"cpu": "150m"}},
                )
            ],
            volumes=[{"name": "info", "downwardAPI": {"items": items}}],
        ),
        pod_manifest(
            "last-words",
            restartPolicy="Never",
            containers=[
                container_manifest("printf bye > /dev/termination-log", "file"),
                container_manifest("echo from the log; exit 3", "log", **last),
                container_manifest("echo from the log", "log-ok", **last),
                container_manifest("echo no; printf yes > /dev/termination-log; exit 4", "both", **last),
                container_manifest("echo from the log; exit 5", "default"),
            ],
        ),
        pod_manifest("nobody", containers=[container_manifest(securityContext={"runAsNonRoot": True})]),
    ]


def network_pods() -> list[Manifest]:
    aliases = [{"ip": "1.2.3.4", "hostnames": ["foo.local", "bar.local"]}]
    dns = {
        "nameservers": ["1.1.1.1"],
        "searches": ["my.domain"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }
    return [
        pod_manifest(
            "named", containers=[tells("hostname -f; cat /etc/hosts")], hostAliases=aliases, hostname="h", subdomain="s"
        ),
        pod_manifest("resolver", containers=[tells("cat /etc/resolv.conf")], dnsPolicy="None", dnsConfig=dns),
    ]


def security_pods() -> list[Manifest]:
    identity = {"runAsUser": 1001, "runAsGroup": 2002, "fsGroup": 3003, "supplementalGroups": [4004]}
    own = {
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    look = "id; cat /proc/self/status; touch /x; touch /data/x && stat -c 'OWNER %u:%g' /data/x"
    safe = [{"name": "kernel.shm_rmid_forced", "value": "1"}]
    unsafe = [{"name": "kernel.msgmax", "value": "65536"}]
    return [
        pod_manifest(
            "guarded",
            securityContext=identity,
            containers=[tells(look, securityContext=own, volumeMounts=[{"name": "data", "mountPath": "/data"}])],
            volumes=[{"name": "data", "emptyDir": {}}],
        ),
        pod_manifest(
            "tuned", containers=[tells("cat /proc/sys/kernel/shm_rmid_forced")], securityContext={"sysctls": safe}
        ),
        pod_manifest("mistuned", securityContext={"sysctls": unsafe}),
    ]


def lifecycle_pods(diary: Path) -> list[Manifest]:
    hooks = {"postStart": runs("echo started >> /diary/hooks"), "preStop": runs("echo stopping >> /diary/hooks")}
    stop = "trap 'echo stopped >> /diary/hooks; exit 0' TERM; sleep 100000 & wait"
    return [
        pod_manifest(
            "hooked",
            terminationGracePeriodSeconds=30,
            containers=[
                container_manifest(stop, lifecycle=hooks, volumeMounts=[{"name": "diary", "mountPath": "/diary"}])
            ],
            volumes=[{"name": "diary", "hostPath": {"path": str(diary)}}],
        ),
        pod_manifest("hook-fails", containers=[container_manifest(lifecycle={"postStart": runs("exit 7")})]),
    ]


def probed_pods(diary: Path) -> list[Manifest]:
    alive = runs("[ -e /tmp/alive ]") | SOON
    return [
        pod_manifest("lives", containers=[container_manifest(livenessProbe=runs("true") | SOON)]),
        pod_manifest(
            "dies",
            containers=[container_manifest(f"touch /tmp/alive; sleep 2; rm /tmp/alive; {STAY}", livenessProbe=alive)],
        ),
        pod_manifest(
            "slow",
            containers=[
                container_manifest(
                    f"sleep 3; touch /tmp/alive; {STAY}",
                    startupProbe=runs("[ -e /tmp/alive ]") | {"periodSeconds": 1, "failureThreshold": 60},
                    livenessProbe=alive,
                )
            ],
        ),
        pod_manifest(
            "moody",
            containers=[
                container_manifest(
                    f"touch /tmp/alive; until [ -e /diary/off ]; do sleep 0.1; done; rm /tmp/alive; {STAY}",
                    readinessProbe=alive,
                    volumeMounts=[{"name": "diary", "mountPath": "/diary"}],
                )
            ],
            volumes=[{"name": "diary", "hostPath": {"path": str(diary)}}],
        ),
        pod_manifest("closed", containers=[container_manifest(readinessProbe={"tcpSocket": {"port": 81}} | SOON)]),
    ]


def pulling_objects(registry: Registry) -> list[Manifest]:
    archive = pack(replace(busybox_image(find_busybox()), environment={"LABEL": "secret"}), architecture())
    image = registry.push("cluster/locked:v1", archive)

    def login(name: str, password: str | None) -> Manifest:
        known = {"auths": {registry.host: {"username": registry.user, "password": password}}}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": name},
            "data": {".dockerconfigjson": base64.b64encode(json.dumps(known).encode()).decode()},
        }

    def pulls(name: str, *secrets: str) -> Manifest:
        container = container_manifest(f"echo $LABEL; {STAY}", image=image)
        return pod_manifest(name, containers=[container], imagePullSecrets=[{"name": each} for each in secrets])

    return [
        login("right", registry.password),
        login("wrong", "guessed"),
        pulls("may-pull", "wrong", "right"),
        pulls("may-not-pull", "wrong"),
        pulls("asks-nobody"),
    ]


@pytest.fixture(scope="module")
def diary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("diary")


@pytest.fixture(scope="module")
def node(shared_node: Joined, private_registry: Registry, diary: Path) -> Iterator[Joined]:
    """The node with every pod of this module on it."""
    groups = (process_pods(), network_pods(), security_pods(), lifecycle_pods(diary), probed_pods(diary))
    shared_node.apply(*[pod for group in groups for pod in group], *pulling_objects(private_registry))
    yield shared_node
    shared_node.clean()
    shared_node.delete("secret/right", "secret/wrong")


def said(node: Joined, pod: str) -> str:
    return node.wait_log(pod, DONE, within=WITHIN).partition(DONE)[0]


def told(node: Joined, pod: str) -> dict[str, str]:
    lines = (line.partition("=") for line in said(node, pod).splitlines())
    return {name: value for name, equals, value in lines if equals}


def restarts(pod: Manifest) -> int:
    return int(state_of(pod).get("restartCount", 0))


def waiting_reason(pod: Manifest) -> str:
    return str(state_of(pod).get("state", {}).get("waiting", {}).get("reason", ""))


def test_variables_arguments_and_the_pods_own_fields(node: Joined) -> None:
    seen = told(node, "written")
    assert seen["SECOND"] == "1-$(LATER)-$(FIRST)-$(NOBODY)"
    assert seen["ARGS"] == "1 $(FIRST) $(NOBODY) written"
    pod = node.pod("written")
    assert (seen["NAME"], seen["UID"]) == ("written", pod["metadata"]["uid"])
    assert (seen["ACCOUNT"], seen["NOTE"]) == ("default", "a b")
    assert (seen["CPU"], seen["MEMORY"]) == ("150", "32")
    assert int(seen["NODE_CPU"]) > 0, "without a limit of its own, what the node has to give"


def test_fields_as_files_follow_the_pod(node: Joined) -> None:
    node.wait_log("files", "150", within=WITHIN)
    assert node.log_of("files").startswith('kind="old"\n150')
    node.cluster.kubectl("label", "pod", "files", "kind=new", "--overwrite")
    assert said(node, "files")


def test_last_words(node: Joined) -> None:
    pod = node.wait_pod("last-words", lambda p: phase(p) == "Failed", "ends", WITHIN)
    ends = {name: state_of(pod, name)["state"]["terminated"] for name in ("file", "log", "log-ok", "both", "default")}
    assert {name: (each["exitCode"], each["reason"], each.get("message")) for name, each in ends.items()} == {
        "file": (0, "Completed", "bye"),
        "log": (3, "Error", "from the log\n"),
        "log-ok": (0, "Completed", None),
        "both": (4, "Error", "yes"),
        "default": (5, "Error", None),
    }


def test_names_and_the_hosts_file(node: Joined) -> None:
    lines = said(node, "named").splitlines()
    address = node.wait_running("named", WITHIN)["status"]["podIP"]
    assert lines[0].startswith("h.s.default.svc.")
    assert lines[1] == "# Kubernetes-managed hosts file."
    assert f"{address}\t{lines[0]}\th" in lines
    assert lines[lines.index("# Entries added by HostAliases.") + 1] == "1.2.3.4\tfoo.local\tbar.local"


def test_a_resolver_of_ones_own(node: Joined) -> None:
    assert said(node, "resolver").splitlines() == [
        "search my.domain",
        "nameserver 1.1.1.1",
        "options ndots:2 edns0",
    ]


def test_identity_and_limits_of_the_process(node: Joined) -> None:
    text = said(node, "guarded")
    assert re.search(r"^uid=1001.* gid=2002.* groups=", text)
    status = {name: value.split() for name, _, value in (line.partition(":") for line in text.splitlines())}
    assert {"3003", "4004"} <= set(status["Groups"])
    assert int(status["CapBnd"][0], 16) == 1 << 10, "NET_BIND_SERVICE alone"
    assert (status["NoNewPrivs"], status["Seccomp"]) == (["1"], ["2"])
    assert "touch: /x: Read-only file system" in text
    assert "OWNER 1001:3003" in text


def test_kernel_parameters(node: Joined) -> None:
    assert said(node, "tuned") == "1\n"
    pod = node.wait_pod("mistuned", lambda p: phase(p) == "Failed", "rejected", WITHIN)
    assert pod["status"]["reason"] == "SysctlForbidden"
    assert 'forbidden sysctl: "kernel.msgmax" not allowlisted' in pod["status"]["message"]
    node.wait_events("mistuned", "SysctlForbidden")


def test_a_promise_not_to_be_root_is_kept(node: Joined) -> None:
    pod = node.wait_pod("nobody", lambda p: waiting_reason(p) == "CreateContainerConfigError", "refused", WITHIN)
    assert state_of(pod)["state"]["waiting"]["message"].startswith(
        "container has runAsNonRoot and image will run as root"
    )


def test_probes_restart_when_they_must_and_only_then(node: Joined) -> None:
    dead = node.wait_pod("dies", lambda p: restarts(p) >= 1, "restarted", WITHIN)
    assert state_of(dead)["lastState"]["terminated"]["exitCode"] in (0, 137, 143)
    node.wait_events("dies", "Unhealthy", "Killing")
    slow = node.wait_pod("slow", is_ready, "is up", WITHIN)
    assert state_of(slow)["started"] and restarts(slow) == 0
    assert restarts(node.wait_running("lives", WITHIN)) == 0
    closed = node.wait_pod("closed", lambda p: "running" in state_of(p).get("state", {}), "runs", WITHIN)
    assert (condition(closed, "Ready"), restarts(closed), state_of(closed)["ready"]) == ("False", 0, False)


def test_readiness_comes_and_goes_without_a_restart(node: Joined, diary: Path) -> None:
    node.wait_running("moody", WITHIN)
    (diary / "off").touch()
    gone = node.wait_pod("moody", lambda p: condition(p, "Ready") == "False", "is not ready", WITHIN)
    assert condition(gone, "ContainersReady") == "False" and restarts(gone) == 0


def test_hooks(node: Joined, diary: Path) -> None:
    node.wait_running("hooked", WITHIN)
    assert (diary / "hooks").read_text() == "started\n"
    node.delete("pod", "hooked")
    assert (diary / "hooks").read_text() == "started\nstopping\nstopped\n"
    pod = node.wait_pod("hook-fails", lambda p: restarts(p) >= 1, "restarted", WITHIN)
    node.wait_events("hook-fails", "FailedPostStartHook")
    assert not is_ready(pod)


def test_a_pull_secret_of_the_cluster_opens_the_registry(node: Joined) -> None:
    node.wait_log("may-pull", "secret", within=WITHIN)
    for name in ("may-not-pull", "asks-nobody"):
        pod = node.wait_pod(name, lambda p: waiting_reason(p) in NO_PULL, "cannot pull", WITHIN)
        assert phase(pod) == "Pending"
        node.wait_events(name, "Failed")
