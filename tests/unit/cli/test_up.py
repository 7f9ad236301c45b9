"""`up` without a runtime: paths, who runs, what is shown, the merge of several paths."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.api.types import Pod
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.up import UpState, check_paths
from pykubelet.cli.up_view import PlainView, Row
from pykubelet.model.pod import Source, name_of
from pykubelet.sources.static import MergedSets
from pykubelet.standalone.daemon import Daemon, process_start
from tests.builders import a_pod


class Sets:
    def __init__(self) -> None:
        self.delivered: list[list[str]] = []

    def deliver(self, source: Source, pods: list[Pod]) -> None:
        assert source is Source.FILE
        self.delivered.append([name_of(pod) for pod in pods])


def test_several_paths_are_one_set_that_is_first_told_when_all_are_read() -> None:
    sets = Sets()
    merged = MergedSets(sets.deliver, 2)
    merged.part(1)(Source.FILE, [a_pod("b")])
    assert sets.delivered == []
    merged.part(0)(Source.FILE, [a_pod("a")])
    merged.part(1)(Source.FILE, [])
    assert sets.delivered == [["a", "b"], ["a"]]


def test_closed_means_no_pods_whatever_comes() -> None:
    sets = Sets()
    merged = MergedSets(sets.deliver, 1)
    merged.part(0)(Source.FILE, [a_pod("a")])
    merged.close()
    merged.part(0)(Source.FILE, [a_pod("a"), a_pod("b")])
    assert sets.delivered == [["a"], []]


def test_paths_must_exist_and_count_once(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.touch()
    assert check_paths([file, tmp_path, file]) == [file, tmp_path]
    with pytest.raises(CommandFailed, match="no such file or folder"):
        check_paths([tmp_path / "none"])


def test_one_agent_a_state_folder(tmp_path: Path) -> None:
    state = UpState(tmp_path / "state")
    assert state.agent() is None
    state.enter([Path("/a"), Path("/b")], "")
    found = state.agent()
    assert found is not None
    assert found.pid == os.getpid()
    assert state.recorded() == ([Path("/a"), Path("/b")], "")
    state.leave()
    assert state.agent() is None
    other = process_start(1)
    assert other is not None
    Daemon(pid=1, start_time=other, config_digest="").save(state.pid_file)
    with pytest.raises(CommandFailed, match="runs already"):
        state.enter([], "")


def row(status: str = "Running", note: str = "", uid: str = "u") -> Row:
    return Row(uid=uid, name="web", ready="1/1", status=status, restarts="0", age="3s", note=note)


def test_plain_lines_tell_changes_and_not_time_passing() -> None:
    written: list[str] = []
    view = PlainView(written.append)
    view.show([row("Pending")], [])
    view.show([row("Pending")], [])
    view.show([row("Terminating", "asked to stop 0.2 s ago")], [])
    view.show([row("Terminating", "asked to stop 1.5 s ago")], ["web | bye"])
    view.show([], [])
    assert written == [
        "web: Pending, 1/1 ready",
        "web: Terminating, 1/1 ready: asked to stop 0.2 s ago",
        "web | bye",
        "web: gone",
    ]
