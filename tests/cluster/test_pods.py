"""Single pods on a real control plane: their parts, their ends, what they are told, and who is turned away."""

from __future__ import annotations

import base64
import json
import time

import pytest

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

STUBBORN = "trap 'echo told' TERM; echo here; while true; do sleep 0.1; done"
"""Hears of its end and goes on."""


def env_from(name: str, **source: Manifest) -> Manifest:
    return {"name": name, "valueFrom": source}


def test_init_sidecar_and_two_containers(node: Joined) -> None:
    node.apply(
        pod_manifest(
            "parts",
            initContainers=[
                container_manifest(
                    "echo first > /shared/file", "init", volumeMounts=[{"name": "s", "mountPath": "/shared"}]
                ),
                container_manifest(name="sidecar", restartPolicy="Always"),
            ],
            containers=[
                container_manifest("cat /shared/file; " + STAY, volumeMounts=[{"name": "s", "mountPath": "/shared"}]),
                container_manifest(name="other"),
            ],
            volumes=[{"name": "s", "emptyDir": {}}],
        )
    )
    pod = node.wait_running("parts")
    assert state_of(pod, "init")["state"]["terminated"]["exitCode"] == 0
    assert state_of(pod, "init")["ready"]
    assert state_of(pod, "sidecar")["started"]
    assert all("running" in state_of(pod, name)["state"] for name in ("sidecar", "app", "other"))
    assert [condition(pod, kind) for kind in ("Initialized", "ContainersReady", "PodScheduled")] == ["True"] * 3
    assert condition(pod, "PodReadyToStartContainers") == "True"
    node.wait_log("parts", "first")
    assert pod["status"]["hostIP"] == node.nodes.objects[node.agent.node]["status"]["addresses"][0]["address"]
    assert pod["status"]["observedGeneration"] == pod["metadata"]["generation"]
    node.wait_events("parts", "Pulled", "Created", "Started")


def test_delete_gives_the_grace_that_was_asked_for(node: Joined) -> None:
    node.apply(
        pod_manifest("polite", "trap 'echo bye; sleep 1; exit 0' TERM; echo here; while true; do sleep 0.1; done",
              terminationGracePeriodSeconds=30),
        pod_manifest("stubborn", STUBBORN, terminationGracePeriodSeconds=30),
        pod_manifest("forced", STUBBORN, terminationGracePeriodSeconds=2),
    )  # fmt: skip
    for name in ("polite", "stubborn", "forced"):
        node.wait_running(name)
        node.wait_log(name, "here")  # before its trap a first process hears nothing
    began = time.monotonic()
    node.cluster.kubectl("delete", "pod", "polite", "--wait=false")
    node.cluster.kubectl("delete", "pod", "stubborn", "--wait=false", "--grace-period=4")
    node.cluster.kubectl("delete", "pod", "forced", "--grace-period=0", "--force")
    node.wait_gone("polite", within=28)
    assert time.monotonic() - began < 28, "it left by itself before its 30 s were over"
    node.wait_gone("stubborn", within=28)
    assert 4 <= time.monotonic() - began < 30
    last = [seen.object for seen in node.pods.history if seen.object["metadata"]["name"] == "polite"][-1]
    assert state_of(last)["state"]["terminated"]["exitCode"] == 0
    deadline = time.monotonic() + 30
    while node.running_ids() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not node.running_ids(), "what was forced away from the API server ends on the node, too"


def test_a_shorter_grace_wins_while_a_pod_is_ending(node: Joined) -> None:
    node.apply(pod_manifest("slow", STUBBORN, terminationGracePeriodSeconds=60))
    node.wait_running("slow")
    node.wait_log("slow", "here")
    node.cluster.kubectl("delete", "pod", "slow", "--wait=false")
    node.wait_log("slow", "told")
    node.cluster.kubectl("delete", "pod", "slow", "--wait=false", "--grace-period=1")
    node.wait_gone("slow", within=40)


def test_a_pod_re_created_under_its_name(node: Joined) -> None:
    """Again and again, by force: the old one may still be ending when the new one comes."""
    uids = set()
    for number in range(3):
        node.apply(pod_manifest("again", f"echo run {number}; {STAY}"))
        pod = node.wait_pod("again", lambda p: p["metadata"]["uid"] not in uids and is_ready(p), f"run {number}")
        uids.add(pod["metadata"]["uid"])
        node.wait_log("again", "run")
        if number == 0:
            node.cluster.kubectl("delete", "pod", "again", "--force", "--grace-period=0")
        else:
            node.cluster.kubectl("delete", "pod", "again", "--grace-period=1")
    assert len(uids) == 3
    node.wait_gone("again")


def test_crashes_are_counted_and_told(node: Joined) -> None:
    node.apply(pod_manifest("crash", "echo last words > /dev/termination-log; exit 3"))
    pod = node.wait_pod("crash", lambda p: state_of(p).get("restartCount", 0) >= 1, "restarted")
    assert state_of(pod)["lastState"]["terminated"]["exitCode"] == 3
    assert state_of(pod)["lastState"]["terminated"]["message"] == "last words\n"
    pod = node.wait_pod(
        "crash",
        lambda p: state_of(p)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff",
        "waits in back-off",
    )
    assert condition(pod, "Ready") == "False"


def test_readiness_gates_hold_a_pod_back(node: Joined) -> None:
    node.apply(pod_manifest("gated", readinessGates=[{"conditionType": "bed.example/open"}]))
    pod = node.wait_pod("gated", lambda p: condition(p, "ContainersReady") == "True", "containers are ready")
    assert condition(pod, "Ready") == "False"

    def turn(status: str) -> None:
        body = json.dumps({"status": {"conditions": [{"type": "bed.example/open", "status": status}]}})
        node.cluster.kubectl("patch", "pod", "gated", "--subresource=status", "-p", body)

    turn("True")
    node.wait_running("gated", within=30)
    turn("False")
    node.wait_pod("gated", lambda p: condition(p, "Ready") == "False", "closed again", within=30)


def test_rejected_pods_fail_with_the_reason(node: Joined) -> None:
    """Bound here by somebody who did not look: what does not fit is Failed at once and stays so."""
    much = {"resources": {"requests": {"cpu": "4000"}}}
    elsewhere = {"kubernetes.io/os": "plan9"}
    node.apply(
        pod_manifest("too-big", node=node.agent.node, containers=[container_manifest(**much)]),
        pod_manifest("elsewhere", node=node.agent.node, nodeSelector=elsewhere),
        pod_manifest("fits", node=node.agent.node),
    )
    big = node.wait_pod("too-big", lambda p: phase(p) == "Failed", "rejected")
    assert big["status"]["reason"] == "OutOfcpu"
    assert big["status"]["message"].startswith("Pod was rejected: Node didn't have enough resource: cpu, requested")
    other = node.wait_pod("elsewhere", lambda p: phase(p) == "Failed", "rejected")
    assert other["status"]["reason"] == "NodeAffinity"
    node.wait_running("fits")
    node.wait_events("too-big", "OutOfcpu")
    node.delete("pod", "too-big", "--wait=true", "--timeout=50s")


def test_environment_from_config_maps_secrets_services_and_fields(node: Joined) -> None:
    node.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"}, "data": {"COLOUR": "red", "n": "7"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "stringData": {"word": "sesame"}},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "front-door"},
            "spec": {"ports": [{"name": "http", "port": 80}], "selector": {"app": "x"}},
        },
    )
    address = node.cluster.get("service", "front-door")["spec"]["clusterIP"]
    fields = {
        "LABEL": "metadata.labels['kind']",
        "NODE": "spec.nodeName",
        "IP": "status.podIP",
        "HOST": "status.hostIP",
    }
    env = [env_from(name, fieldRef={"fieldPath": path}) for name, path in fields.items()]
    env += [
        env_from("WORD", secretKeyRef={"name": "hidden", "key": "word"}),
        env_from("NUMBER", configMapKeyRef={"name": "conf", "key": "n"}),
        env_from("MAYBE", configMapKeyRef={"name": "absent", "key": "n", "optional": True}),
        env_from("LIMIT", resourceFieldRef={"resource": "limits.memory", "divisor": "1Mi"}),
    ]
    node.apply(
        pod_manifest(
            "told",
            metadata={"labels": {"kind": "test"}},
            containers=[
                container_manifest(
                    "env; echo --told--; " + STAY,
                    env=env,
                    envFrom=[{"configMapRef": {"name": "conf"}, "prefix": "P_"}],
                    resources={"limits": {"memory": "64Mi"}},
                )
            ],
        )
    )
    pod = node.wait_running("told")
    lines = set(node.wait_log("told", "--told--").splitlines())
    wanted = {
        "COLOUR": "red",
        "WORD": "sesame",
        "NUMBER": "7",
        "LIMIT": "64",
        "LABEL": "test",
        "NODE": node.agent.node,
        "IP": pod["status"]["podIP"],
        "HOST": pod["status"]["hostIP"],
        "FRONT_DOOR_SERVICE_HOST": address,
        "FRONT_DOOR_PORT": f"tcp://{address}:80",
        "KUBERNETES_SERVICE_HOST": "10.204.0.1",
    }
    wanted["P_COLOUR"] = wanted.pop("COLOUR")
    assert {f"{name}={value}" for name, value in wanted.items()} <= lines, lines
    assert not any(line.startswith("MAYBE=") for line in lines)
    node.delete("configmap/conf", "secret/hidden", "service/front-door")


def test_a_missing_secret_is_waited_for(node: Joined) -> None:
    env = [env_from("WORD", secretKeyRef={"name": "late", "key": "word"})]
    node.apply(pod_manifest("waits", containers=[container_manifest("env; " + STAY, env=env)]))
    pod = node.wait_pod("waits", lambda p: "waiting" in state_of(p).get("state", {}), "waits")
    node.wait_pod(
        "waits",
        lambda p: state_of(p)["state"].get("waiting", {}).get("reason") == "CreateContainerConfigError",
        "says why",
    )
    assert pod["status"]["phase"] == "Pending"
    node.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "late"}, "stringData": {"word": "now"}})
    node.wait_running("waits", within=30)
    node.wait_log("waits", "WORD=now")
    node.delete("secret/late")


def test_files_follow_their_config_map_and_the_token_is_there(node: Joined) -> None:
    conf = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "files"}, "data": {"key": "one"}}
    node.apply(conf)
    script = "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace; echo; "
    script += "wc -c < /var/run/secrets/kubernetes.io/serviceaccount/token; "
    script += "until grep -q two /conf/key; do sleep 0.1; done; echo changed; " + STAY
    mount = [{"name": "conf", "mountPath": "/conf"}]
    node.apply(
        pod_manifest(
            "reads",
            containers=[container_manifest(script, volumeMounts=mount)],
            volumes=[{"name": "conf", "configMap": {"name": "files"}}],
        )
    )
    node.wait_running("reads")
    assert node.wait_log("reads", "default")
    node.apply(conf | {"data": {"key": "two"}})
    node.wait_log("reads", "changed", within=30)
    assert int(node.log_of("reads").split()[1]) > 500, "a signed token"
    node.delete("configmap/files")


def test_missing_pull_secrets_are_told_and_do_not_stop_a_pod(node: Joined) -> None:
    login = base64.b64encode(b'{"auths":{"registry.bed":{"username":"u","password":"p"}}}').decode()
    node.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/dockerconfigjson",
            "metadata": {"name": "login"},
            "data": {".dockerconfigjson": login},
        },
        pod_manifest("pulls", imagePullSecrets=[{"name": "login"}, {"name": "nowhere"}]),
    )
    node.wait_running("pulls")
    node.delete("secret/login")


def test_static_pods_have_mirrors(node: Joined) -> None:
    name = f"fixed-{node.agent.node}"
    node.agent.put("fixed", pod_manifest("fixed"))
    pod = node.wait_running(name)
    mark = pod["metadata"]["annotations"]["kubernetes.io/config.mirror"]
    assert pod["metadata"]["ownerReferences"][0]["name"] == node.agent.node
    ids = node.running_ids()
    first = pod["metadata"]["uid"]
    node.cluster.kubectl("delete", "pod", name, "--wait=false")
    again = node.wait_pod(name, lambda p: p["metadata"]["uid"] != first and is_ready(p), "made again")
    assert again["metadata"]["annotations"]["kubernetes.io/config.mirror"] == mark
    assert node.running_ids() == ids, "deleting a mirror stops nothing"

    node.agent.put("fixed", pod_manifest("fixed", "echo second; " + STAY))
    node.wait_pod(
        name,
        lambda p: p["metadata"]["annotations"]["kubernetes.io/config.mirror"] != mark and is_ready(p),
        "a mirror of the new manifest",
    )
    assert node.running_ids().isdisjoint(ids)
    node.agent.drop("fixed")
    node.wait_gone(name)
    deadline = time.monotonic() + 30
    while node.running_ids() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not node.running_ids()


def test_an_ephemeral_container_joins_a_running_pod(node: Joined) -> None:
    node.apply(pod_manifest("host"))
    pod = node.wait_running("host")
    before = state_of(pod)["containerID"]
    pod["spec"]["ephemeralContainers"] = [container_manifest("echo here; " + STAY, "debugger")]
    del pod["metadata"]["resourceVersion"]  # its status may have been written again since
    path = "/api/v1/namespaces/default/pods/host/ephemeralcontainers"
    node.cluster.kubectl("replace", "--raw", path, "-f", "-", stdin=json.dumps(pod))
    pod = node.wait_pod("host", lambda p: "running" in state_of(p, "debugger").get("state", {}), "debugger runs")
    node.wait_log("host", "here", "debugger")
    assert state_of(pod)["containerID"] == before
