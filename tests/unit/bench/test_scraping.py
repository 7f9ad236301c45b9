"""The scraping benchmark's own parts: what is counted, and how figures become a table and a verdict."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from bench import report as reports
from bench import scraping
from bench.scraping import ROWS, cpu_of, missed, ratio_of, table

WHERE = {"date": "today", "cpus": 2, "cpu": "x", "memory": "1 GiB", "kernel": "6", "containerd": "1", "python": "3"}


def a_report(**own: list[float]) -> dict[str, Any]:
    go = {figure: [2.0, 4.0, 3.0] for figure, *_ in ROWS}
    samples = {"go": go, "pykubelet": {figure: own.get(figure, [1.5, 1.0, 9.0]) for figure in go}}
    return {"commit": "abc", "machine": {**WHERE, "load": 0.1}, "rounds": 3, "samples": samples}


def test_medians_and_their_spread_are_shown() -> None:
    shown = table(a_report())
    assert (
        "| CPU with 57 pods, nobody asks | 300.00 % (200.00 % to 400.00 %) | 150.00 % (100.00 % to 900.00 %) |" in shown
    )
    assert "commit abc" in shown and "missed" not in shown


@pytest.mark.parametrize(("samples", "text"), [([2.0], "0.67 × Go, goal 0.5"), ([], "not measured")])
def test_a_figure_that_is_too_high_or_missing_is_named_and_the_others_stay(samples: list[float], text: str) -> None:
    report = a_report(scraped_cpu=samples)
    assert [line.partition(": ")[2] for line in missed(report)] == [text]
    assert ratio_of(report, "idle_cpu") == 0.5 and table(report).count("missed") == 1


def test_series_and_pods_are_counted() -> None:
    assert scraping._lines(b'# HELP a b\n# TYPE a gauge\na{x="1"} 2\na{x="2"} 3\n\n') == 2
    assert scraping._lines(json.dumps({"node": {}, "pods": [{}, {}, {}]}).encode()) == 3


def test_the_clock_of_a_process_is_its_processor_time() -> None:
    before, own = cpu_of(os.getpid()), time.process_time()
    sum(range(200_000))
    assert cpu_of(os.getpid()) - before == pytest.approx(time.process_time() - own, abs=0.05)


def test_what_is_kept_and_what_is_shown_are_the_same() -> None:
    kept = json.loads(scraping.KEPT.read_text())
    begin, end = scraping.MARKS
    assert reports.DOCUMENT.read_text().partition(begin)[2].partition(end)[0].strip() == table(kept).strip()
