"""Rounds of chaos are made from a seed, the look at a node notices what is wrong, growth is told from noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import churn, churn_real
from bench.churn import grown
from bench.endurance import DOCUMENT, next_round, read_lines, table

from pykubelet.model.runtime_status import ContainerRecord, ContainerState, SandboxRecord, SandboxState
from tests.bed.chaos.plan import ALONE, CLUSTER, LONG_LIVED, SPANS, plan_round, wanted_after, wanted_before
from tests.bed.chaos.world import NodeSnapshot, Pod, spoiled_files, violations

ALL = (*ALONE, *CLUSTER)
BOX, RUNS, DEAD = "b" * 64, "c" * 64, "d" * 64


def test_a_round_is_the_same_whenever_it_is_planned() -> None:
    for number in range(50):
        wanted = wanted_before(7, number, ALL)
        round = plan_round(7, number, wanted, ALL)
        assert round == plan_round(7, number, wanted, ALL) and round != plan_round(8, number, wanted, ALL)
        assert wanted_before(7, number + 1, ALL) == wanted_after(round, wanted)
        assert set(LONG_LIVED) <= set(wanted) and len(wanted) <= 11


def test_every_trouble_comes_alone_and_together_and_ends() -> None:
    rounds = [plan_round(1, number, wanted_before(1, number, ALL), ALL) for number in range(150)]
    assert {kinds for round in rounds if len(kinds := round.kinds) == 1} == {(kind,) for kind in ALL}
    assert sum(len(round.kinds) > 1 for round in rounds) > 40
    for round in rounds:
        what = [step.what for step in round.steps]
        for first, last in (SPANS[kind] for kind in round.kinds if kind in SPANS):
            assert what.count(first) == what.count(last) > 0 and what.index(first) < what.index(last)
            assert max(i for i, each in enumerate(what) if each == first) < len(what) - what[::-1].index(last) - 1


def told(id: str = RUNS, name: str = "web", phase: str = "Running") -> Pod:
    shown = {"ready": True, "containerID": f"containerd://{id}", "state": {"running": {}}}
    labels = {"generation": "0"}
    return {"metadata": {"name": name, "labels": labels}, "status": {"phase": phase, "containerStatuses": [shown]}}


def a_world(**changes: object) -> NodeSnapshot:
    """One pod `web` that runs as it should."""
    facts = {"pod_uid": "1", "pod_name": "web-bed-node", "pod_namespace": "default"}
    box = SandboxRecord(id=BOX, state=SandboxState.READY, created_at=1, labels={"generation": "0"}, **facts)
    runs = ContainerRecord(id=RUNS, sandbox_id=BOX, name="main", state=ContainerState.RUNNING, created_at=1, **facts)
    fine = {
        "sandboxes": [box], "containers": [runs],
        "pod_folders": {"1"}, "log_folders": {"default_web_1"}, "log_links": set(),
        "groups": {"kubepods": set(), f"kubepods/pod1/{RUNS}": {"sh"}}, "mounts": ["/r/pods/1/volumes/x"],
        "runtime_mounts": [f"/run/{BOX}"], "files": [], "told": [told()], "api": [told()],
    }  # fmt: skip
    return NodeSnapshot(**{**fine, **changes})  # type: ignore[arg-type]


def found(world: NodeSnapshot) -> list[str]:
    return violations({"web": "0"}, world, runtime_killed=False)


def test_a_node_as_it_should_be_has_no_violations() -> None:
    assert found(a_world()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sandboxes": []}, "0 ready sandboxes"),
        ({"containers": []}, "0 running containers"),
        ({"sandboxes": a_world().sandboxes * 2}, "2 ready sandboxes"),
        ({"containers": a_world().containers * 2}, "2 running containers"),
        ({"pod_folders": {"1", "2"}}, "pod folder 2 is left over"),
        ({"log_folders": {"default_gone_2"}}, "log folder default_gone_2 is left over"),
        ({"log_links": {f"web-{DEAD}.log"}}, "log link"),
        ({"groups": {"kubepods/pod2": set()}}, "cgroup kubepods/pod2"),
        ({"groups": {f"kubepods/pod1/{DEAD}": {"sh"}}}, "['sh'] is left over"),
        ({"mounts": ["/r/pods/2/volumes/x"]}, "mount /r/pods/2/volumes/x is left over"),
        ({"runtime_mounts": [f"/run/{DEAD}"]}, "mount /run/"),
        ({"files": ["cpu_manager_state.damaged"]}, "cpu_manager_state.damaged"),
        ({"told": []}, "the agent does not show the pod web"),
        ({"told": [told(), told()]}, "the agent shows 2 pods web"),
        ({"told": [told(), told(name="other")]}, "the agent shows the pod other, which is not wanted"),
        ({"api": [told(phase="Pending")]}, "the API server says web is Pending"),
        ({"api": [told(id=DEAD)]}, "the API server says web is Running with ['dddddddddddd']"),
    ],
)
def test_what_is_wrong_is_noticed(changes: dict[str, object], text: str) -> None:
    assert any(text in each for each in found(a_world(**changes))), found(a_world(**changes))


def test_spoiled_files_are_found_but_not_those_of_pods(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text("{}")
    (tmp_path / "pods").mkdir()
    (tmp_path / "pods" / ".x.1.tmp").touch()
    assert list(spoiled_files(tmp_path)) == []
    (tmp_path / "memory_manager_state").write_text('{"half":')
    (tmp_path / ".cpu_manager_state.17.tmp").touch()
    (tmp_path / "dra_manager_state.damaged").touch()
    assert len(list(spoiled_files(tmp_path))) == 3


def test_a_run_goes_on_after_its_last_round() -> None:
    lines = [json.loads(f'{{"seed": {seed}, "round": {number}}}') for seed, number in ((1, 0), (1, 1), (2, 7))]
    assert [next_round(lines, seed) for seed in (1, 2, 3)] == [2, 8, 0]


def test_the_table_counts_violations_by_kind() -> None:
    base = {"seed": 1, "played": 1.0, "settled": 2.0, "refused": 0, "cluster": True, "commit": "abc", "containerd": "2"}
    lines = [
        {**base, "round": 0, "kinds": ["disk full"], "violations": []},
        {**base, "round": 1, "kinds": ["disk full", "agent killed"], "violations": ["pod a: 0 ready sandboxes"]},
    ]
    text = table(lines)
    assert "- seed 1, round 1 (disk full, agent killed), commit abc: pod a: 0 ready sandboxes" in text
    assert "| disk full | 2 | 2.0 s | 2.0 s | 2.0 s | 1 |" in text and "| agent killed | 1 |" in text


def test_growth_is_told_from_noise() -> None:
    flat = [{"hour": n / 2, "made": n, "pods": 30, "tasks": 70 + n % 5, "blocks": 4e5 + n % 7 * 900} for n in range(48)]
    assert grown(flat) == {}
    leak = [{**each, "tasks": each["tasks"] + n} for n, each in enumerate(flat)]
    assert grown(leak).keys() == {"tasks"}
    leak = [{**each, "blocks": each["blocks"] + 1500 * n} for n, each in enumerate(flat)]
    assert grown(leak).keys() == {"blocks"}


def test_the_document_shows_what_is_kept() -> None:
    document = DOCUMENT.read_text()
    assert table(read_lines()) in document
    day, real = (json.loads(kept.RESULTS.read_text()) for kept in (churn, churn_real))
    assert churn.table(day) in document and churn_real.table(real) in document
    for result in (day, *real["runs"]):
        assert result["grown"] == grown(result["samples"]), "the verdict is that of the data"
