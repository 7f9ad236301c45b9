"""The benchmark's own sums: times of log lines, verdicts, the table in the document."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.measure import own_cpu, pss, stamp_ns
from bench.report import judge, markdown, text_table, update_document
from bench.scenario import Figures

WHERE = {
    "date": "today",
    "cpus": 2,
    "cpu": "x",
    "memory": "1 GiB",
    "kernel": "6",
    "containerd": "1.6",
    "python": "3.11",
    "load": 0.1,
    "volumes": "none",
    "rounds": 3,
    "floor": {"burst": "4", "delete": "50"},
    "commit": "abc",
}


def figures(**values: float) -> Figures:
    found = Figures()
    for name, value in values.items():
        found.add(name, value)
    return found


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1970-01-01T00:00:01.000000002Z stdout F up", 1_000_000_002),
        ("1970-01-01T00:00:01.5Z stdout F up", 1_500_000_000),
        ("1970-01-01T01:00:01.25+01:00 stdout F up", 1_250_000_000),
        ("1969-12-31T23:00:01.25-01:00 stdout F up", 1_250_000_000),
    ],
)
def test_stamp_of_a_log_line(line: str, expected: int) -> None:
    assert stamp_ns(line) == expected


@pytest.mark.parametrize(
    ("floor", "go", "own", "verdict"),
    [
        (0.1, 0.5, 0.12, True),
        (0.1, 0.5, 0.17, False),  # within 0.35 of the Go kubelet, but too far from the floor
        (0.1, 0.3, 0.12, False),
        (None, 0.5, 0.15, None),  # half measured is not passed
        (None, 0.3, 0.15, False),
    ],
)
def test_verdict_needs_every_limit(floor: float | None, go: float, own: float, verdict: bool | None) -> None:
    results = {"go": figures(single=go), "pykubelet": figures(single=own)}
    if floor is not None:
        results["floor"] = figures(single=floor)
    assert [row.verdict for row in judge(results)] == [verdict]


@pytest.mark.parametrize(("held", "verdict"), [(110, True), (109, False)])
def test_absolute_limits(held: float, verdict: bool) -> None:
    (row,) = judge({"pykubelet": figures(full_held=held)})
    assert row.verdict is verdict
    assert row.rules == "≥ 110"


def test_the_median_counts() -> None:
    found = Figures()
    for sample in (3.0, 1.0, 2.0):
        found.add("burst", sample)
    assert found.values == {"burst": 2.0}


def test_the_best_width_of_the_floor_counts() -> None:
    found = Figures()
    for variant, last, first in (("2", 6.0, 0.2), ("4", 5.0, 0.3), ("50", 7.0, 4.0)):
        found.add(f"burst@{variant}", last)
        found.add(f"burst_first@{variant}", first)
    assert found.keep_best("burst", ["2", "4", "50", "100"]) == "4"
    assert (found.values["burst"], found.values["burst_first"]) == (5.0, 0.3)


def test_the_spread_is_shown() -> None:
    found = Figures()
    for sample in (3.0, 1.0, 2.0):
        found.add("burst", sample)
    (row,) = judge({"pykubelet": found})
    assert row.spread == "1.00 s – 3.00 s"


def test_tables_show_what_was_measured_and_what_not(tmp_path: Path) -> None:
    rows = judge({"go": figures(burst=4.0), "pykubelet": figures(burst=2.0)})
    assert "0.50 ≤ 0.8 × go, ? ≤ 1.2 × floor" in text_table(rows)
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- bench:begin -->\nold\n<!-- bench:end -->\nafter\n")
    update_document(markdown(rows, WHERE), page)
    text = page.read_text()
    assert text.startswith("before\n<!-- bench:begin -->\ntoday: 2 × x")
    assert text.endswith("|\n<!-- bench:end -->\nafter\n")
    assert "old" not in text


def test_readings_of_a_process() -> None:
    assert own_cpu(os.getpid()) > 0
    assert pss(os.getpid()) > 2**20
