"""Who goes when, by table."""

from __future__ import annotations

import pytest

from pykubelet.node.shutdown import (
    CRITICAL,
    ShutdownPeriod,
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
