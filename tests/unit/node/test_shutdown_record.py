"""The record of the last shutdown: upstream's form, and metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.kit.metrics import Registry
from pykubelet.node.shutdown import ShutdownRecord, ShutdownTimes


def test_what_was_saved_is_found_after_the_reboot_and_shown(tmp_path: Path) -> None:
    file = tmp_path / "state"
    times = ShutdownTimes(started=1_700_000_000.25, ended=1_700_000_030.5)
    ShutdownRecord(file, metrics=Registry()).save(times)
    assert file.stat().st_mode & 0o777 == 0o644
    assert json.loads(file.read_text())["startTime"] == "2023-11-14T22:13:20.250000Z"
    metrics = Registry()
    assert ShutdownRecord(file, metrics=metrics).load() == times
    assert "kubelet_graceful_shutdown_start_time_seconds 1700000000.25" in metrics.expose()


def test_a_file_of_the_go_kubelet_is_read(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text('{"startTime":"2023-11-15T00:13:20.123456789+02:00","endTime":"0001-01-01T00:00:00Z"}')
    assert ShutdownRecord(file, metrics=Registry()).load() == ShutdownTimes(started=1_700_000_000.123456)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"startTime":"x","endTime":"y"}', '{"startTime":1,"endTime":2}'])
def test_a_damaged_file_is_told_and_counts_as_none(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "state"
    file.write_text(text)
    assert ShutdownRecord(file, metrics=Registry()).load() == ShutdownTimes()
    assert [each.message for each in caplog.records] == ["checkpoint is damaged and was set aside; it will be rebuilt"]
    assert file.with_name("state.damaged").read_text() == text


def test_a_disk_that_refuses_does_not_stop_the_shutdown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ShutdownRecord(tmp_path / "none" / "state", metrics=Registry()).save(ShutdownTimes(started=1.0))
    assert "cannot be written" in caplog.text
