"""Which pods end when at a shutdown, and the record of the last one: upstream's form, and metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.kit.metrics import Registry
from pykubelet.node.shutdown import (
    CRITICAL,
    ShutdownPeriod,
    ShutdownRecord,
    ShutdownTimes,
    configured_periods,
    grace_of,
    groups_of,
    two_periods,
    whole_time,
)
from pykubelet.settings.flag_forms import PriorityGracePeriod
from pykubelet.settings.schema_resources import ShutdownSettings
from tests.builders import a_pod


def period(priority: int, seconds: float = 10) -> ShutdownPeriod:
    return ShutdownPeriod(priority=priority, seconds=seconds)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (ShutdownSettings(), ()),
        (ShutdownSettings(shutdown_grace_period=30.0), (period(0, 30), period(CRITICAL, 0))),
        (
            ShutdownSettings(shutdown_grace_period=30.0, shutdown_grace_period_critical_pods=10.0),
            (period(0, 20), period(CRITICAL, 10)),
        ),
        (
            ShutdownSettings(
                shutdown_grace_period_by_pod_priority=(
                    PriorityGracePeriod(priority=100, shutdown_grace_period_seconds=5),
                    PriorityGracePeriod(priority=-3, shutdown_grace_period_seconds=7),
                )
            ),
            (period(-3, 7), period(100, 5)),
        ),
    ],
)
def test_turns_of_the_settings(settings: ShutdownSettings, expected: tuple[ShutdownPeriod, ...]) -> None:
    assert configured_periods(settings) == expected


@pytest.mark.parametrize(
    ("priority", "expected"),
    [
        (None, 0),
        (0, 0),
        (-50, 0),
        (999, 0),
        (1000, 1000),
        (CRITICAL - 1, 1000),
        (CRITICAL, CRITICAL),
        (2**31 - 1, CRITICAL),
    ],
)
def test_a_pod_goes_with_the_highest_class_not_above_it(priority: int | None, expected: int) -> None:
    groups = groups_of([period(0), period(1000), period(CRITICAL)], [a_pod(priority=priority)])
    assert [group.period.priority for group in groups if group.pods] == [expected]


@pytest.mark.parametrize(
    ("grace", "seconds", "expected"), [(30, 20, 20), (5, 20, 5), (None, 60, 30), (0, 20, 1), (30, 0, 1), (30, 1.9, 1)]
)
def test_the_grace_of_a_pod_is_its_own_within_its_class(grace: int | None, seconds: float, expected: int) -> None:
    pod = a_pod()
    pod.spec.termination_grace_period_seconds = grace
    assert grace_of(pod, period(0, seconds)) == expected


def test_all_the_time_there_is() -> None:
    # Three seconds to tell the statuses of each class, and three for the Node's.
    assert whole_time(two_periods(30, 10)) == 39
    assert whole_time(()) == 0


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
