"""Crash-loop back-off on container exit times."""

from __future__ import annotations

import pytest

from pykubelet.api.types import Container, Pod, ResourceRequirements
from pykubelet.model.runtime_status import ContainerState, ContainerStatus
from pykubelet.runtime.backoff import CrashBackoff, backoff_key, crash_delays
from tests.builders import NOW, a_container, a_container_status, a_pod, ns

POD = a_pod(containers=[a_container("c")])


def ended(when: float, pod: Pod = POD) -> ContainerStatus:
    return a_container_status(pod, "c", ContainerState.EXITED, exit_code=1, finished_at=ns(when))


def test_a_container_that_never_ended_starts_at_once() -> None:
    assert CrashBackoff().check(POD, POD.spec.containers[0], None, NOW) is None


def test_the_first_restart_is_immediate_and_then_waits_double() -> None:
    backoff, container, now = CrashBackoff(), POD.spec.containers[0], NOW
    assert backoff.check(POD, container, ended(now), now) is None
    waits = []
    for _ in range(7):
        now += 1  # runs for a second
        exit_time = now
        wait = backoff.check(POD, container, ended(exit_time), now)
        assert wait is not None and wait.retry_at == exit_time + wait.delay
        waits.append(wait.delay)
        assert backoff.check(POD, container, ended(exit_time), wait.retry_at - 0.001) is not None
        now = wait.retry_at
        assert backoff.check(POD, container, ended(exit_time), now) is None
    assert waits == [10, 20, 40, 80, 160, 300, 300]


def test_a_clock_that_is_set_back_does_not_make_a_container_wait_for_its_old_time() -> None:
    backoff, container = CrashBackoff(), POD.spec.containers[0]
    backoff.check(POD, container, ended(NOW), NOW)
    set_back = NOW + 1 - 3600
    assert backoff.check(POD, container, ended(NOW + 1), set_back) is None
    wait = backoff.check(POD, container, ended(set_back + 1), set_back + 1)
    assert wait is not None and wait.delay == 20, "the loop is still counted"


def test_an_exit_that_rounding_puts_into_the_future_waits_as_any_other() -> None:
    backoff, container = CrashBackoff(), POD.spec.containers[0]
    backoff.check(POD, container, ended(NOW), NOW)
    wait = backoff.check(POD, container, ended(NOW + 1), NOW + 0.9999998)
    assert wait is not None and wait.delay == 10


def test_the_message_is_upstreams() -> None:
    backoff, container = CrashBackoff(initial=80), POD.spec.containers[0]
    backoff.check(POD, container, ended(NOW), NOW)
    wait = backoff.check(POD, container, ended(NOW + 1), NOW + 1)
    assert wait is not None
    assert wait.message == "back-off 1m20s restarting failed container=c pod=web_default(uid-web)"


def test_a_long_run_makes_the_container_healthy_again() -> None:
    backoff, container = CrashBackoff(), POD.spec.containers[0]
    backoff.check(POD, container, ended(NOW), NOW)
    backoff.check(POD, container, ended(NOW), NOW + 10)
    assert backoff.check(POD, container, ended(NOW + 610), NOW + 610) is not None
    assert backoff.check(POD, container, ended(NOW + 611), NOW + 611) is None
    wait = backoff.check(POD, container, ended(NOW + 612), NOW + 612)
    assert wait is not None and wait.delay == 10


def test_the_maximum_is_a_setting() -> None:
    backoff, container = CrashBackoff(maximum=15), POD.spec.containers[0]
    backoff.check(POD, container, ended(NOW), NOW)
    backoff.check(POD, container, ended(NOW), NOW + 10)
    wait = backoff.check(POD, container, ended(NOW + 10), NOW + 10)
    assert wait is not None and wait.delay == 15


def test_what_the_container_runs_is_part_of_the_key() -> None:
    def key(container: Container, pod: Pod = POD) -> str:
        return backoff_key(pod, container)

    base = a_container("c")
    limited = a_container("c", resources=ResourceRequirements(limits={"cpu": "1", "memory": "1Gi"}))
    turned = a_container("c", resources=ResourceRequirements(limits={"memory": "1Gi", "cpu": "1"}))
    others = [a_container("d"), a_container("c", image="busybox:2"), limited]
    assert len({key(base), *map(key, others), key(base, a_pod("other"))}) == 5
    assert key(limited) == key(turned)


def test_quiet_entries_are_collected() -> None:
    backoff, container = CrashBackoff(), POD.spec.containers[0]
    backoff.check(POD, container, ended(NOW), NOW)
    backoff.collect(NOW + 600)
    assert len(backoff) == 1
    backoff.collect(NOW + 601)
    assert len(backoff) == 0


@pytest.mark.parametrize(
    ("longest", "reduced", "expected"),
    [
        (None, False, (10, 300)),
        (300, False, (10, 300)),
        (2, False, (2, 2)),
        (None, True, (1, 60)),
        (300, True, (1, 300)),
        (1, True, (1, 1)),
    ],
)
def test_first_and_longest_delay(longest: float | None, reduced: bool, expected: tuple[float, float]) -> None:
    assert crash_delays(longest, reduced=reduced) == expected
