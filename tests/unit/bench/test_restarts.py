"""What the benches of restarts, formats and watching agents make of their figures; documents show what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench import formats, restarts, watched_pods
from bench.report import DOCUMENT
from bench.restarts import Restart, most, spread, summary, table

TIMES = [Restart(10.0, 12.0, 20.0, 0), Restart(30.0, 31.0, 40.0, 2)]


def test_the_worst_second_of_each_restart_is_found() -> None:
    sent = [9.0, 10.1, 12.0, 12.5, 12.9, 13.1, 35.0, 50.0]
    assert most(sent, TIMES) == [3, 1]
    assert most([], TIMES) == [0, 0]


def test_runs_are_put_together_in_one_table() -> None:
    runs = [summary(TIMES, [10.5, 11.0, 31.0], [10.5], 70), summary(TIMES[:1], [], [], 7)]
    text = table({"commit": "abc", "objects": 300, "runs": runs})
    assert "| restarts | 3 |" in text and "| changes meanwhile | 77 |" in text
    assert "| objects not as the server has them | 2 |" in text
    assert "| all current after the server was ready, median / worst | 8 s / 9 s |" in text
    assert spread([1.0, 5.0, 2.0], " s") == "2 s / 5 s"


@pytest.mark.parametrize(
    ("module", "document"),
    [(restarts, DOCUMENT), (watched_pods, DOCUMENT), (formats, formats.DECISION)],
    ids=["restarts", "watched_pods", "formats"],
)
def test_document_shows_what_is_kept(module: Any, document: Path) -> None:
    shown = document.read_text().partition(module.MARKS[0])[2].partition(module.MARKS[1])[0]
    assert shown.strip() == module.table(json.loads(module.RESULTS.read_text()))
