"""The arithmetic behind the figures about probes."""

from __future__ import annotations

import pytest
from bench.probe_server import Arrivals, deviations
from bench.report import Budget, Limit, judge, plain
from bench.scenario import Figures


def test_intervals_and_means_are_told_apart() -> None:
    arrivals = Arrivals({"a": [0.0, 1.0, 2.2, 3.0], "b": [0.5, 1.5], "once": [9.0]}).within(0.0, 5.0)
    single, means = deviations(arrivals, period=1.0)
    assert [round(each, 6) for each in single] == [0.0, 0.0, 0.2, 0.2]
    assert [round(each, 6) for each in means] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("go", "floor", "verdict"),
    [(3.0, 0.5, True), (1.5, 0.95, True), (1.5, 0.5, False), (1.5, None, None), (3.0, None, True)],
)
def test_one_of_two_limits_is_enough(go: float, floor: float | None, verdict: bool | None) -> None:
    budget = Budget("cpu", "cpu", plain, (Limit(0.5, "go"), Limit(1.1, "floor")), either=True)
    results = {name: Figures() for name in ("go", "floor", "pykubelet")}
    results["go"].add("cpu", go)
    results["pykubelet"].add("cpu", 1.0)
    if floor is not None:
        results["floor"].add("cpu", floor)
    assert judge(results, (budget,))[0].verdict is verdict
