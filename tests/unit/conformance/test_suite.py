"""What is read out of ginkgo's report, and how a narrower focus joins the selection."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conformance.suite import FAILED, PASSED, SKIPPED, Spec, moment, read_report, selection, shortened


def said(state: str, *, kind: str = "It", message: str = "", **more: Any) -> dict[str, Any]:
    base = {
        "ContainerHierarchyTexts": ["[sig-node] Pods"],
        "LeafNodeText": "should run [NodeConformance]",
        "LeafNodeType": kind,
        "State": state,
        "RunTime": 2_340_000_000,
        "EndTime": "2026-01-02T03:04:05.123456789Z",
        "Failure": {"Message": message},
    }
    return base | more


def written(folder: Path, *specs: dict[str, Any]) -> Sequence[Spec]:
    file = folder / "ginkgo.json"
    file.write_text(json.dumps([{"SpecReports": specs}]))
    return read_report(file, 0).specs


def test_a_spec_that_passed(tmp_path: Path) -> None:
    (spec,) = written(tmp_path, said("passed"))
    assert (spec.name, spec.outcome, spec.seconds) == ("[sig-node] Pods should run [NodeConformance]", PASSED, 2.3)
    assert spec.ended == pytest.approx(1767323045.123456)


@pytest.mark.parametrize("state", ["failed", "panicked", "timedout"])
def test_every_bad_end_is_a_failure(state: str, tmp_path: Path) -> None:
    (spec,) = written(tmp_path, said(state, message="no\n  such thing"))
    assert (spec.outcome, spec.why) == (FAILED, "no such thing")


def test_what_was_not_selected_does_not_count_but_what_skipped_itself_does(tmp_path: Path) -> None:
    specs = written(tmp_path, said("skipped"), said("pending"), said("skipped", message="needs two nodes"))
    assert [(spec.outcome, spec.why) for spec in specs] == [(SKIPPED, "needs two nodes")]


def test_focus_and_skip_narrow_the_selection() -> None:
    whole = selection("", "")
    assert whole == ["--label-filter=NodeConformance", r"--skip=\[Serial\]|\[Slow\]|\[Flaky\]|\[Windows\]"]
    assert selection("Pods", "") == [*whole, "--focus=Pods"]
    assert selection("", "Probing") == [whole[0], f"{whole[1]}|Probing"]


def test_times_that_are_none() -> None:
    assert moment("") == 0.0 and moment("soon") == 0.0


def test_long_messages_are_cut() -> None:
    assert len(shortened("x" * 1000)) == 400
