"""The figures about watched objects: their verdict, and the table in the document as they are kept."""

from __future__ import annotations

import json

from bench.report import DOCUMENT
from bench.watches import MARKS, RESULTS, holds, table


def test_memory_and_connections_have_a_budget() -> None:
    good = {"objects": 300, "connections": 4, "kib_per_object": 10.0}
    assert holds({"HTTP/2": good})
    assert not holds({"HTTP/2": {**good, "kib_per_object": 10.1}})
    assert not holds({"HTTP/2": {**good, "connections": 5}})


def test_document_shows_what_is_kept() -> None:
    shown = DOCUMENT.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert shown.strip() == table(json.loads(RESULTS.read_text()))
