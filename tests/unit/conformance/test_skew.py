"""The table of version skew is what was kept, and configuration of other minors is read as it says."""

from __future__ import annotations

from typing import Any

import pytest
from conformance.skew import MINORS, NOT_TRIED, OURS, PAGE, kept, page

from tests.unit.settings.loading import MAIN, load, problems_of

CONFIGURATION: dict[str, Any] = kept()["configuration"]


def test_the_page_shows_what_was_kept() -> None:
    assert PAGE.read_text() == page(kept()), "run python -m conformance.skew"


def test_a_minor_without_a_run_is_not_tried() -> None:
    rows = page({"api_servers": {}, "configuration": {}}).splitlines()
    expected = [f"| {minor} | {NOT_TRIED} | | | |" for minor in MINORS] + [
        f"| {minor} | {NOT_TRIED} | | |" for minor in MINORS
    ]
    assert [row for row in rows if NOT_TRIED in row] == expected


def test_failures_are_named() -> None:
    run = {"version": "v1.37.1", "commit": "0123", "passed": 3}
    run |= {"failed": ["tests/cluster/test_pods.py::test_x"], "second_try": []}
    shown = page({"api_servers": {"1.37": run}, "configuration": {}})
    assert "| v1.37.1 | 4 | `cluster/test_pods.py::test_x` | none | 0123 |" in shown


def test_our_own_minor_has_no_difference() -> None:
    assert (CONFIGURATION[OURS]["unknown"], CONFIGURATION[OURS]["only_here"]) == ([], [])


@pytest.mark.parametrize("minor", sorted(CONFIGURATION))
def test_new_fields_of_a_minor_are_warned_about_in_a_cluster_and_refused_without(minor: str) -> None:
    unknown: list[str] = CONFIGURATION[minor]["unknown"]
    nested = [name for name in unknown if "." in name or "[" in name]
    assert not nested, "write the file below for nested fields, too"
    file = "maxPods: 20\n" + "".join(f"{name}: 1\n" for name in unknown)
    loaded = load("--kubeconfig=k", main=file)
    assert loaded.settings.config.cgroups.max_pods == 20
    assert all(any(name in warning for warning in loaded.warnings) for name in unknown)
    if unknown:
        refused = problems_of(main=file)
        assert sorted(text.partition(": unknown field")[0] for text in refused) == [
            f"{MAIN}: {name}" for name in unknown
        ]
