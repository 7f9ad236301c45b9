"""The commands against a canned node: what they ask, what they show, how they end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from pykubelet.api.types import (
    ContainerState,
    ContainerStateRunning,
    ContainerStatus,
    EnvVar,
    EnvVarSource,
    ObjectFieldSelector,
    Pod,
    PodCondition,
    PodStatus,
    SecretKeySelector,
)
from pykubelet.cli.main import COMMANDS
from pykubelet.explain.explain import explain
from tests.builders import NOW, a_container, a_pod, at
from tests.unit.cli.a_node import CannedNode, Commands
from tests.unit.explain.making import crashed, ended, facts

pytestmark = pytest.mark.real_loop


def web(name: str = "web-node1", namespace: str = "default") -> Pod:
    running = ContainerStatus(
        name="app", ready=True, restart_count=0, state=ContainerState(running=ContainerStateRunning(started_at=at(NOW)))
    )
    status = PodStatus(
        phase="Running",
        pod_ip="10.1.0.4",
        start_time=at(NOW),
        container_statuses=[running],
        conditions=[PodCondition(type="Ready", status="True")],
    )
    return a_pod(name, namespace=namespace, static=True, node_name="node1", status=status)


# --- get ------------------------------------------------------------------------------------------


def test_get_pods_looks_like_kubectl(node: CannedNode, run: Commands) -> None:
    node.give_pods(web(), web("other-node1", "shop"))
    done = run("get", "pods")
    head, row = done.out.splitlines()
    assert head.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["web-node1", "1/1", "Running", "0"]
    assert run("get", "po", "-A", "--no-headers").out.count("\n") == 2
    assert "10.1.0.4" in run("get", "pods", "web", "-o", "wide").out
    assert run("get", "pod/web", "-o", "name").out == "pod/web-node1\n"


def test_get_pods_as_objects(node: CannedNode, run: Commands) -> None:
    node.give_pods(web())
    one = json.loads(run("get", "pods", "web", "-o", "json").out)
    assert (one["kind"], one["apiVersion"], one["metadata"]["name"]) == ("Pod", "v1", "web-node1")
    many = yaml.safe_load(run("get", "pods", "-o", "yaml").out)
    assert (many["kind"], len(many["items"])) == ("List", 1)


def test_nothing_to_list_is_said_on_standard_error(node: CannedNode, run: Commands) -> None:
    node.give_pods()
    done = run("get", "pods", "-n", "shop")
    assert (done.status, done.out, done.err) == (0, "", "No resources found in shop namespace.\n")


def test_any_kubelet_can_be_asked(node: CannedNode, run: Commands) -> None:
    node.give("/pods", {"items": []})
    assert run("get", "pods").status == 0


# --- exit statuses --------------------------------------------------------------------------------


def test_exit_statuses(node: CannedNode, run: Commands, tmp_path: Path) -> None:
    node.give_pods(web())
    assert run("get", "pods", "nobody").status == 1
    assert run("get", "nodes").status == 2
    assert run("get").status == 2
    nobody = run.bare("get", "pods", "--socket", str(tmp_path / "none"))
    assert nobody.status == 3
    assert "no agent is running here" in nobody.err


@pytest.mark.parametrize("words", [["frobnicate"], ["frobnicate", "--help"]])
def test_unknown_commands(run: Commands, words: list[str]) -> None:
    done = run.bare(*words)
    assert done.status == 2
    assert "unknown command frobnicate" in done.err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run: Commands, name: str) -> None:
    done = run.bare(name, "--help")
    assert done.status == 0
    assert f"Usage: pykubelet {name}" in done.out
    assert name in run.bare("help").out


# --- logs, restart, images ------------------------------------------------------------------------


def test_logs(node: CannedNode, run: Commands) -> None:
    node.give_pods(web())
    node.give("/containerLogs/default/web-node1/app", b"hello\n")
    assert run("logs", "web", "-f", "--tail", "3", "--timestamps").out == "hello\n"
    assert node.requested[-1][2] == "follow=true&timestamps=true&tailLines=3"
    run("logs", "web", "-p", "--since", "1h")
    assert "previous=true&sinceTime=20" in node.requested[-1][2]
    assert run("logs", "web", "-c", "nope").status == 1
    assert run("logs", "web", "--since", "soon").status == 2


def test_the_nodes_own_words_reach_the_person(node: CannedNode, run: Commands) -> None:
    node.give_pods(web())
    text = b'container "app" in pod "web" is waiting to start: ContainerCreating'
    node.give("/containerLogs/default/web-node1/app", text, status=400)
    done = run("logs", "web")
    assert (done.status, done.err) == (1, f"pykubelet: {text.decode()}\n")


def test_restart(node: CannedNode, run: Commands) -> None:
    node.give_pods(web())
    node.give("/local/restart/default/web-node1", {"stopped": ["app"]}, method="POST")
    node.give("/local/restart/default/web-node1/app", b"no", method="POST", status=409)
    assert run("restart", "web").out == "pod/web container app restarted\n"
    assert run("restart", "pod/web").status == 0
    done = run("restart", "web/app")
    assert (done.status, done.err) == (1, "pykubelet: no\n")


def test_images(node: CannedNode, run: Commands) -> None:
    item = {"id": "sha256:0123456789abcdef", "tags": ["localhost:5000/app:1"], "digests": [], "size_bytes": 2130000}
    node.give("/local/images", {"items": [item]})
    node.give("/local/images", {"ref": "x", "size_bytes": 5}, method="POST")
    node.give("/local/images", b"no such image: y", method="DELETE", status=404)
    assert run("image", "ls").out.splitlines()[1].split() == ["localhost:5000/app", "1", "0123456789abc", "2.13MB"]
    assert run("image", "ls", "-q").out == "localhost:5000/app:1\n"
    assert run("image", "pull", "app:1", "--creds", "me:secret").status == 0
    assert node.requested[-1] == ("POST", "/local/images", "image=app:1", b'{"username":"me","password":"secret"}')
    done = run("image", "rm", "y")
    assert (done.status, done.err) == (1, "pykubelet: no such image: y\n")


def test_events(node: CannedNode, run: Commands) -> None:
    event = {
        "kind": "Warning", "reason": "BackOff", "message": "no", "object_kind": "Pod", "namespace": "default",
        "name": "web-node1", "uid": "u", "field_path": "", "first": NOW, "last": NOW + 60, "count": 3,
    }  # fmt: skip
    node.give_pods(web())
    node.give("/local/events", {"items": [event]})
    done = run("events", "web")
    assert node.requested[-1][2] == "namespace=default&pod=web-node1"
    assert "(x3 over" in done.out and "pod/web-node1" in done.out
    assert run("events", "--types", "Normal").err == "No events found.\n"
    head, row = run("events", "-A").out.splitlines()
    assert (head.split()[0], row.split()[0]) == ("NAMESPACE", "default")


def test_top(node: CannedNode, run: Commands) -> None:
    use = {"cpu": {"usageNanoCores": 1_500_000}, "memory": {"workingSetBytes": 5 << 20, "availableBytes": 1 << 30}}
    pod = {"podRef": {"name": "web-node1", "namespace": "default"}, **use, "containers": [{"name": "app", **use}]}
    node.give("/stats/summary", {"node": {"nodeName": "node1", **use}, "pods": [pod]})
    assert run("top").out.splitlines()[1].split() == ["web-node1", "2m", "5Mi"]
    assert run("top", "pods", "--containers").out.splitlines()[1].split() == ["web-node1", "app", "2m", "5Mi"]
    assert run("top", "node").out.splitlines()[1].split() == ["node1", "2m", "5Mi", "1024Mi"]
    assert run("top", "pods", "nobody").status == 1


# --- describe and explain -------------------------------------------------------------------------


def test_explain_shows_the_nodes_answer_and_its_status(node: CannedNode, run: Commands) -> None:
    node.give_pods(web())
    node.give("/explain/default/web-node1", explain(facts(crashed(ended(1)))).to_json())
    done = run("explain", "web")
    assert done.status == 4
    assert done.out.startswith("default/web: restarting\n")
    assert "Why (crash-loop)" in done.out
    assert json.loads(run("explain", "web", "-o", "json").out)["causes"][0]["id"] == "crash-loop"
    node.give("/explain/default/web-node1", explain(facts(phase="Succeeded")).to_json())
    assert run("explain", "web").status == 0


def test_describe(node: CannedNode, run: Commands) -> None:
    pod = web()
    pod.spec.containers[0] = a_container(command=["sh", "-c", "echo hi"])
    node.give_pods(pod)
    done = run("describe", "pod", "web")
    assert done.status == 0
    for words in ("Name:             web-node1", "Status:           Running", "      echo hi", "  Ready   True"):
        assert words in done.out, done.out


def test_describe_says_where_variables_come_from_and_what_conditions_mean(node: CannedNode, run: Commands) -> None:
    pod = web()
    secret = EnvVarSource(secret_key_ref=SecretKeySelector(name="login", key="password"))
    field = EnvVarSource(field_ref=ObjectFieldSelector(field_path="metadata.name"))
    env = [EnvVar(name="A", value="b c"), EnvVar(name="S", value_from=secret), EnvVar(name="F", value_from=field)]
    pod.spec.containers[0] = a_container(env=env)
    pod.status.conditions = [PodCondition(type="Ready", status="False", reason="ContainersNotReady", message="why")]
    node.give_pods(pod)
    said = run("describe", "pod", "web").out
    assert "      A: b c\n" in said
    assert "      S: <set to the key 'password' in secret 'login'> Optional: false\n" in said
    assert "      F: web-node1 (v1:metadata.name)\n" in said
    assert re.search(r"  Ready +False +ContainersNotReady +why\n", said), said


def test_pods_are_chosen_by_their_labels(node: CannedNode, run: Commands) -> None:
    pod = web()
    pod.metadata.labels = {"app": "web"}
    node.give_pods(pod)
    assert run("get", "pods", "-l", "app=web", "-o", "name").out == "pod/web-node1\n"
    assert run("get", "pods", "-l", "app!=web").err == "No resources found in default namespace.\n"
    assert run("get", "pods", "-l", "a b").status == 2


# --- the rest -------------------------------------------------------------------------------------


def test_completion_code_calls_a_command_and_never_the_agent(run: Commands) -> None:
    for shell in ("bash", "zsh", "fish"):
        text = run.bare("completion", shell).out
        assert "pykubelet get)" in text or "$1 get)" in text


def test_pods_are_completed(
    node: CannedNode, run: Commands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node.give_pods(web())
    monkeypatch.setenv("_PYKUBELET_COMPLETE", "bash_complete")
    monkeypatch.setenv("PYKUBELET_SOCKET", str(node.socket))
    monkeypatch.setenv("COMP_WORDS", "pykubelet logs w")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        run.bare("get")
    assert capsys.readouterr().out == "plain,web\n"


def test_check_is_a_command(run: Commands) -> None:
    assert run.bare("check", "/nonexistent.yaml").status == 1
    assert run.bare("check").status == 2
