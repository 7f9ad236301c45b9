"""The tables of docs/hollow.md are made of the committed figures."""

from __future__ import annotations

import json

import pytest
from bench.hollow import DOCUMENT, MARKS, SECTIONS, busiest, tables
from bench.hollow_stage import RESULTS


@pytest.mark.parametrize("section", SECTIONS)
def test_the_document_shows_what_was_measured(section: str) -> None:
    begin, end = MARKS[section]
    shown = DOCUMENT.read_text().partition(begin)[2].partition(end)[0].strip()
    assert shown == tables(json.loads(RESULTS.read_text())).get(section, "")


def test_the_busiest_second_is_a_mean_of_ten() -> None:
    assert busiest([float(second) for second in range(100)]) == 1.0
    assert busiest([5.0] * 40 + [100.0]) == 4.0
    assert busiest([0.0] * 10 + [9.0] * 10 + [10.0] * 5) == 2.0
