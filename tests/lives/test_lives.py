"""Random lives hold what the model asks, a failing one is made short, and the model does notice what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.api.types import Pod
from pykubelet.runtime.backoff import CrashBackoff
from pykubelet.runtime.stop import Stopper
from pykubelet.sync.housekeeping import Housekeeping
from tests.lives.__main__ import report, try_seeds
from tests.lives.history import Event, History, Spec, make_history, to_text
from tests.lives.life import live
from tests.lives.shrink import shrink

SEEDS = int(os.environ.get("LIVES", "2000"))
BATCH = 100


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_life_holds(first: int) -> None:
    found = try_seeds(range(first, min(SEEDS, first + BATCH)))
    assert not found, f"seed {found[0][0]}: {report(make_history(found[0][0]), found[0][1])}"


def a_spec(*, grace: int = 30, policy: str = "Always", **program: object) -> Spec:
    plain = {"name": "c0", "kind": "", "exits": [], "stops": 0.0, "pre": None, "post": None}
    one = {**plain, "image": "here", "probe": "", **program}
    return {"policy": policy, "grace": grace, "static": False, "finalizer": False, "volume": False, "programs": [one]}


def test_histories_are_plain_data_that_can_be_pasted() -> None:
    for seed in range(50):
        history = make_history(seed)
        assert eval(to_text(history)) == history == make_history(seed)


def test_the_same_history_ends_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Housekeeping, "_remove_folders", lambda self, known: None)
    history = make_history(3)
    found = live(history, tmp_path / "life")
    assert found and found == live(history, tmp_path / "life")


def test_a_failing_history_is_made_short() -> None:
    asked: list[History] = []

    def fails(events: History) -> bool:
        asked.append(events)
        adds = [event for event in events if event[1] == "add"]
        return any(event[3]["grace"] for event in adds) and any(event[1] == "delete" for event in events)

    long: list[Event] = [(0.0, "add", "p0", a_spec(pre=2.0)), *((float(n), "label", "p0") for n in range(40))]
    long += [(50.0, "delete", "p0", 5), (51.0, "watch ends", "p0"), (52.0, "delete", "p0", 0)]
    assert [event[1] for event in shrink(long, fails)] == ["add", "delete"]
    assert shrink(long, fails)[0][3]["programs"][0]["pre"] is None
    assert len(asked) < 250


# --- histories that once failed ---------------------------------------------------------------------


def test_a_sidecar_keeps_the_whole_seconds_of_its_grace(tmp_path: Path) -> None:
    """It waits a part of a second for its turn; that part was taken for a whole one."""
    spec = a_spec(exits=[[5.0, 0]], stops=None)
    spec["programs"].append({**spec["programs"][0], "name": "i0", "kind": "side", "exits": []})
    assert live([(0.7, "add", "p0", spec), (5.6, "evict", "p0", 10)], tmp_path / "life") == []


def test_init_containers_run_again_after_a_reboot_between_create_and_start(tmp_path: Path) -> None:
    spec = a_spec()
    spec["programs"].append({**spec["programs"][0], "name": "i0", "kind": "side"})
    spec["programs"].append({**spec["programs"][0], "name": "i1", "kind": "init", "exits": [[0.0, 0]]})
    assert live([(0.0, "latency", 0.2, 0.3), (1.7, "add", "p0", spec), (6.4, "reboot")], tmp_path / "life") == []


def test_a_static_pod_that_comes_while_the_node_goes_down_is_not_missed(tmp_path: Path) -> None:
    spec = {**a_spec(), "static": True}
    history: History = [(2.6, "shutdown down"), (2.8, "add", "p0", spec), (4.0, "label", "p0")]
    assert live(history, tmp_path / "life") == []


def test_a_pod_first_seen_while_the_node_goes_down_is_stopped_as_an_orphan(tmp_path: Path) -> None:
    history: History = [
        (1.0, "add", "p0", a_spec(pre=0.0)), (4.9, "agent down", True), (5.2, "agent up"), (5.2, "shutdown down"),
    ]  # fmt: skip
    assert live(history, tmp_path / "life") == []


def test_a_probe_that_fails_the_last_container_ends_the_sidecar_too(tmp_path: Path) -> None:
    """With policy Never nothing is left to run; the preStop hook uses up the grace, so both end at once."""
    spec = a_spec(grace=1, policy="Never", pre=20.0, probe="startup")
    spec["programs"].append(
        {**spec["programs"][0], "name": "i0", "kind": "side", "pre": None, "probe": "", "image": "pull"}
    )
    history: History = [(0.5, "add", "p0", spec), (0.8, "probe", "p0", "c0", False), (20.0, "label", "p0")]
    assert live(history, tmp_path / "life") == []


def test_a_lost_container_with_policy_never_runs_again_and_stays_told_as_ended(tmp_path: Path) -> None:
    spec = a_spec(policy="Never")
    spec["programs"].append({**spec["programs"][0], "name": "c1"})
    history: History = [(1.5, "add", "p0", spec), (25.1, "lose container", "p0", "c1"), (58.8, "label", "p0")]
    assert live(history, tmp_path / "life") == []


def test_a_new_image_ends_the_back_off_when_the_agent_hears_of_it(tmp_path: Path) -> None:
    history: History = [
        (0.9, "add", "p0", a_spec(exits=[[3.0, 1]])),
        (1.8, "api down"), (2.1, "image", "p0", "c0", 1), (21.8, "api up"),
    ]  # fmt: skip
    assert live(history, tmp_path / "life") == []


def test_without_grace_no_hook_runs_until_the_agent_hears_of_the_deletion(tmp_path: Path) -> None:
    history: History = [
        (0.1, "add", "p0", a_spec(grace=0, pre=2.0)),
        (9.9, "api down"), (27.0, "delete", "p0", 1), (31.0, "lose sandbox", "p0"),
    ]  # fmt: skip
    assert live(history, tmp_path / "life") == []


def test_a_pod_without_grace_is_gone_before_a_new_agent_sees_its_deletion(tmp_path: Path) -> None:
    history: History = [
        (2.7, "add", "p0", a_spec(grace=0, pre=0.0)),
        (17.1, "agent down", True), (17.4, "agent up"), (17.4, "delete", "p0", None),
    ]  # fmt: skip
    assert live(history, tmp_path / "life") == []


def test_a_container_replaced_as_soon_as_it_started_has_no_back_off(tmp_path: Path) -> None:
    """Its image is changed while the pass that starts it waits for another one's image."""
    slow, spec = a_spec(), a_spec(image="bad")
    slow["programs"].append({**slow["programs"][0], "name": "i0", "kind": "side", "image": "pull"})
    spec["programs"].append({**spec["programs"][0], "name": "c1", "image": "here", "exits": [[5.0, 0]]})
    history: History = [(0.9, "add", "p0", slow), (1.1, "add", "p2", spec), (2.2, "image", "p2", "c1", 1)]
    assert live(history, tmp_path / "life") == []


# --- the model notices ------------------------------------------------------------------------------


def test_a_kill_before_the_grace_is_over_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Stopper.stop_pod

    async def hasty(self: Stopper, pod: Pod, seen: object, grace: int | None) -> None:
        await stop(self, pod, seen, 1)  # type: ignore[arg-type]

    history: History = [(0.0, "add", "p0", a_spec(stops=None)), (10.0, "delete", "p0", None)]
    assert live(history, tmp_path / "life") == []
    monkeypatch.setattr(Stopper, "stop_pod", hasty)
    (told,) = live(history, tmp_path / "life")
    assert "c0 of p0 was killed before its grace was over (30 s at 10.0)" in told


def test_a_hook_left_out_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_hook(*args: object, **more: object) -> int:
        return 0

    history: History = [(0.0, "add", "p0", a_spec(pre=2.0)), (10.0, "delete", "p0", None)]
    assert live(history, tmp_path / "life") == []
    monkeypatch.setattr(Stopper, "_pre_stop", no_hook)
    (told,) = live(history, tmp_path / "life")
    assert "without its preStop hook" in told


def test_a_restart_before_its_time_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history: History = [(0.0, "add", "p0", a_spec(exits=[[3.0, 1]]))]
    assert live(history, tmp_path / "life") == []
    monkeypatch.setattr(CrashBackoff, "check", lambda *args, **more: None)
    assert "started again after 0.0 s, not 10" in live(history, tmp_path / "life")[0]


def test_what_is_left_behind_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Housekeeping, "_remove_folders", lambda self, known: None)
    (told,) = live([(0.0, "add", "p0", a_spec())], tmp_path / "life")
    assert "folder uid-p0-1" in told
