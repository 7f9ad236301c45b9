"""What controllers of a real control plane ask of a node: deployments, jobs, daemon sets, stateful sets."""

from __future__ import annotations

import json

import pytest

from tests.cluster.joined import (
    Joined,
    a_workload,
    container_manifest,
    is_ready,
    of_app,
    phase,
    state_of,
)

pytestmark = pytest.mark.cluster


def test_deployment_of_20_runs_scales_rolls_and_goes(node: Joined) -> None:
    node.apply(a_workload("Deployment", "web", replicas=20))
    node.wait("20 ready", lambda pods: sum(map(is_ready, of_app(pods, "web"))) == 20, within=120)
    ips = {pod["status"]["podIP"] for pod in of_app(node.pods.objects, "web")}
    assert len(ips) == 20
    assert sum(state_of(pod)["restartCount"] for pod in of_app(node.pods.objects, "web")) == 0

    node.cluster.kubectl("scale", "deployment", "web", "--replicas=5")
    node.wait("5 left", lambda pods: len(of_app(pods, "web")) == 5)

    before = {pod["metadata"]["uid"] for pod in of_app(node.pods.objects, "web")}
    change = {"spec": {"template": {"metadata": {"annotations": {"rolled": "yes"}}}}}
    node.cluster.kubectl("patch", "deployment", "web", "-p", json.dumps(change))
    node.cluster.kubectl("rollout", "status", "deployment", "web", "--timeout=110s", within=120)
    node.wait("old ones gone", lambda pods: before.isdisjoint(pod["metadata"]["uid"] for pod in of_app(pods, "web")))
    node.wait("5 new ones", lambda pods: len(of_app(pods, "web")) == 5)

    node.delete("deployment", "web")
    node.wait("all gone", lambda pods: not of_app(pods, "web"))
    assert not node.running_ids()


def test_job_fails_backs_off_and_completes(node: Joined) -> None:
    node.apply(
        a_workload("Job", "bad", "exit 7", pod={"restartPolicy": "Never"}, backoffLimit=1),
        a_workload("Job", "good", "echo done", pod={"restartPolicy": "OnFailure"}, completions=3, parallelism=3),
        a_workload(
            "Job",
            "retried",
            "[ -e /keep/tried ] && exit 0; touch /keep/tried; exit 1",
            pod={
                "restartPolicy": "OnFailure",
                "containers": [
                    container_manifest(
                        "[ -e /keep/tried ] && exit 0; touch /keep/tried; exit 1",
                        volumeMounts=[{"name": "keep", "mountPath": "/keep"}],
                    )
                ],
                "volumes": [{"name": "keep", "emptyDir": {}}],
            },
        ),
    )
    node.cluster.kubectl("wait", "--for=condition=complete", "job/good", "--timeout=110s", within=120)
    node.wait("3 good ends", lambda pods: [phase(pod) for pod in of_app(pods, "good")] == ["Succeeded"] * 3)
    node.cluster.kubectl("wait", "--for=condition=complete", "job/retried", "--timeout=110s", within=120)
    [pod] = node.wait("one end", lambda pods: [each for each in of_app(pods, "retried") if phase(each) == "Succeeded"])
    assert state_of(pod)["restartCount"] == 1
    assert state_of(pod)["state"]["terminated"]["reason"] == "Completed"
    node.cluster.kubectl("wait", "--for=condition=failed", "job/bad", "--timeout=110s", within=120)
    two = ["Failed"] * 2
    node.wait("the first try and one more", lambda pods: [phase(pod) for pod in of_app(pods, "bad")] == two)
    ended = of_app(node.pods.objects, "bad")
    assert {state_of(pod)["state"]["terminated"]["exitCode"] for pod in ended} == {7}


def test_daemon_set_puts_its_pod_here(node: Joined) -> None:
    node.apply(a_workload("DaemonSet", "agentlike"))
    node.wait("its pod", lambda pods: any(map(is_ready, of_app(pods, "agentlike"))))
    [pod] = of_app(node.pods.objects, "agentlike")
    assert pod["spec"]["nodeName"] == node.agent.node
    node.cluster.kubectl("rollout", "status", "daemonset", "agentlike", "--timeout=50s")


def test_stateful_set_starts_in_order_and_keeps_names(node: Joined) -> None:
    node.apply(a_workload("StatefulSet", "db", replicas=3, serviceName="db"))
    node.cluster.kubectl("rollout", "status", "statefulset", "db", "--timeout=110s", within=120)
    node.wait("3 ready", lambda pods: sum(map(is_ready, of_app(pods, "db"))) == 3)
    pods = {pod["metadata"]["name"]: pod for pod in of_app(node.pods.objects, "db")}
    assert sorted(pods) == ["db-0", "db-1", "db-2"]
    begun = [state_of(pods[name])["state"]["running"]["startedAt"] for name in sorted(pods)]
    assert begun == sorted(begun)
    first = pods["db-1"]["metadata"]["uid"]
    node.delete("pod", "db-1")
    again = node.wait_pod("db-1", lambda pod: pod["metadata"]["uid"] != first and is_ready(pod), "another one")
    assert again["metadata"]["name"] == "db-1"
