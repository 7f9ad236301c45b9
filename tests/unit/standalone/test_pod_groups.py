"""The group of all pods goes with `down`, where the agent made it, and stays where it was somebody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pykubelet.standalone.cleanup import hierarchies, note_pod_groups, remove_pod_groups


@pytest.fixture(params=[1, 2])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "cgroup"
    folder.mkdir()
    if request.param == 2:
        (folder / "cgroup.controllers").touch()
    else:
        for name in ("cpu,cpuacct", "memory", "devices"):
            (folder / name).mkdir()
        (folder / "cpu").symlink_to("cpu,cpuacct")
    return folder


def tops(root: Path) -> list[Path]:
    return [each / "kubepods" for each in hierarchies(root)]


def agent_runs(root: Path) -> None:
    for top in tops(root):
        for name in ("burstable/poduid-a", "besteffort", "poduid-b"):
            (top / name).mkdir(parents=True, exist_ok=True)


def test_what_the_agent_made_goes(root: Path, tmp_path: Path) -> None:
    note = tmp_path / "cgroups.json"
    assert len(tops(root)) in (1, 3)
    note_pod_groups(note, root)
    agent_runs(root)
    note_pod_groups(note, root)  # it was killed, and `up` came again
    remove_pod_groups(note)
    assert not any(top.exists() for top in tops(root)) and not note.exists()
    remove_pod_groups(note)


def test_what_was_there_before_stays(root: Path, tmp_path: Path) -> None:
    note = tmp_path / "cgroups.json"
    foreign = tops(root)[0]
    foreign.mkdir()
    note_pod_groups(note, root)
    agent_runs(root)
    remove_pod_groups(note)
    assert [top for top in tops(root) if top.exists()] == [foreign]


def test_a_group_in_which_something_lives_stays(root: Path, tmp_path: Path) -> None:
    note = tmp_path / "cgroups.json"
    note_pod_groups(note, root)
    agent_runs(root)
    busy = tops(root)[0] / "burstable" / "poduid-a"
    (busy / "lives").touch()  # a folder that cannot be removed, as a group with processes cannot
    remove_pod_groups(note)
    assert busy.exists() and not (tops(root)[0] / "besteffort").exists()


@pytest.mark.parametrize("text", ["", "{", "3", '["/etc"]', "[null]"])
def test_a_damaged_note_removes_nothing(tmp_path: Path, text: str) -> None:
    note = tmp_path / "cgroups.json"
    note.write_text(text)
    remove_pod_groups(note)
    assert not note.exists()
