"""The node suite: what a run adds to its results, what excuses a failure, which runs are not believed, stand-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance import node_results, report
from conformance.node_bed import STAND_INS
from conformance.node_inside import children
from conformance.node_parts import PARTS, exactly, ginkgo_options
from conformance.node_results import Results, compare, load, save
from conformance.node_suite import REASONS, unexcused
from conformance.report import GO, OURS
from conformance.suite import FAILED, PASSED, SKIPPED, Report, Spec, read_report


def results(agent: str, **outcomes: str) -> Results:
    found = Results(agent=agent, part="parallel")
    found.merge([Spec(name=name, outcome=outcome) for name, outcome in outcomes.items()], "abc")
    return found


def test_only_a_failure_of_the_go_kubelet_excuses_one_of_ours() -> None:
    ours = results(OURS, a=FAILED, b=FAILED, c=FAILED, d=FAILED, e=PASSED, f=PASSED, h=SKIPPED)
    go = results(GO, a=PASSED, b=FAILED, c=SKIPPED, e=FAILED, f=PASSED, g=PASSED, h=PASSED)
    found = compare(ours, go)
    assert (list(found.ours_alone), list(found.both)) == (["a", "c"], ["b"])
    assert (list(found.go_alone), list(found.not_compared), list(found.missing)) == (["e"], ["d"], ["g", "h"])


def test_the_verdict_is_about_this_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_results, "FOLDER", tmp_path)
    ours = results(OURS, a=FAILED, b=FAILED)
    assert unexcused(ours, OURS, {"a"}) == ["failed, and not with the Go kubelet: a"]
    save(results(GO, a=FAILED))
    assert unexcused(ours, OURS, {"a"}) == []
    assert unexcused(results(GO, a=FAILED), GO, {"a"}) == []


def test_newer_results_replace_older_ones_and_all_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_results, "FOLDER", tmp_path)
    found = results(OURS, a=FAILED, b=PASSED)
    found.merge([Spec(name="a", outcome=PASSED, seconds=2.5, why='said "no"')], "def")
    save(found)
    again = load("parallel", OURS)
    assert again.entries == found.entries
    assert (again.entries["a"].commit, again.entries["a"].seen) == ("def", {FAILED: 1, PASSED: 1})
    assert again.entries["b"].commit == "abc"
    assert json.loads(again.file.read_text())["counts"] == {PASSED: 2, FAILED: 0, SKIPPED: 0}


def a_report(tmp_path: Path, selected: int, **states: str) -> Path:
    said: list[dict[str, Any]] = [
        {"LeafNodeType": "It", "LeafNodeText": name, "State": state, "Failure": {"Message": "why"}}
        for name, state in states.items()
    ]
    said.append({"LeafNodeType": "SynchronizedBeforeSuite", "State": states.get("setup", PASSED)})
    file = tmp_path / "ginkgo.json"
    file.write_text(json.dumps([{"PreRunStats": {"SpecsThatWillRun": selected}, "SpecReports": said}]))
    return file


def test_a_whole_run_is_believed(tmp_path: Path) -> None:
    seen = read_report(a_report(tmp_path, 3, a=PASSED, b=FAILED, c=SKIPPED), 1)
    assert [(spec.name, spec.outcome) for spec in seen.specs] == [("a", PASSED), ("b", FAILED), ("c", SKIPPED)]
    assert seen.faults() == []


def test_a_stopped_run_keeps_what_was_over_and_is_not_called_good(tmp_path: Path) -> None:
    seen = read_report(a_report(tmp_path, 3, a=PASSED, b="interrupted"), 1)
    assert [spec.name for spec in seen.specs] == ["a"]
    assert seen.faults()[0] == "3 specs were selected, 1 were run"


def test_a_spec_that_had_no_chance_is_not_called_skipped(tmp_path: Path) -> None:
    file = a_report(tmp_path, 2, a=FAILED, b=SKIPPED)
    file.write_text(
        file.read_text().replace("why", "Spec skipped because an earlier spec in an ordered container failed")
    )
    seen = read_report(file, 1)
    assert [spec.name for spec in seen.specs] == ["a"]
    assert seen.faults() == ["2 specs were selected, 1 were run"]


def test_a_run_without_report_or_without_set_up_is_not_believed(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none.json", 0).faults()
    assert read_report(a_report(tmp_path, 1, a=PASSED, setup="failed"), 1).broken
    assert Report(status=1, selected=1, specs=[Spec(name="a", outcome=PASSED)]).faults()
    assert Report(status=0, selected=1, specs=[Spec(name="a", outcome=FAILED)]).faults()


def test_a_selection_narrows_its_part() -> None:
    words = ginkgo_options(PARTS["serial"], focus="Restart", skip="Slow", labels="x", processes=0, longest="1h")
    assert "--label-filter=(Serial) && (x)" in words
    assert "--focus=Restart" in words
    (skip,) = [word for word in words if word.startswith("--skip=")]
    assert {r"\[Feature:.+\]", "Slow", "PidEviction"} <= set(skip.removeprefix("--skip=").split("|"))
    assert "--procs=1" in words


def test_a_part_that_is_chosen_by_names_may_be_narrowed() -> None:
    def focus(words: list[str]) -> list[str]:
        return [word for word in words if word.startswith("--focus=")]

    def chosen(name: str) -> list[str]:
        return focus(ginkgo_options(PARTS["guest"], focus=name, skip="", labels="", processes=0, longest="1h"))

    assert chosen("") == [f"--focus={PARTS['guest'].focus}"]
    assert chosen("Swap") == ["--focus=Swap"]


def test_specs_are_found_by_their_whole_names() -> None:
    pattern = exactly({"[sig-node] Pods *not* (now)", "a+b", "c.d"})
    assert pattern == r"\[sig-node\] Pods \*not\* \(now\)|a\+b|c\.d"
    assert re.fullmatch(pattern, "[sig-node] Pods *not* (now)")


def test_the_table_says_how_much_of_the_other_agents_run_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_results, "FOLDER", tmp_path)
    save(results(OURS, a=PASSED, b=PASSED, c=SKIPPED))
    save(results(GO, a=PASSED, d=FAILED))
    rows = [line.split(" | ") for line in node_results.document({}).splitlines() if "default selection" in line]
    assert [row[1:6] for row in rows] == [["pykubelet", "2", "0", "1", "1"], ["Go kubelet", "1", "1", "0", "2"]]


def test_the_table_in_the_document_is_the_one_that_the_results_make() -> None:
    text = report.DOCUMENT.read_text()
    made = text.partition(node_results.BEGIN)[2].partition(node_results.END)[0].strip()
    assert made == node_results.document(REASONS).strip(), "run: python -m conformance.node_suite --document"


@pytest.fixture
def run_stand_in(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = {**os.environ, "UNITS": str(tmp_path / "units")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = [str(STAND_INS / words[0]), *words[1:]]
        return subprocess.run(program, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_stand_ins_start_find_restart_and_stop_a_unit(
    run_stand_in: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    unit = ["--unit=kubelet-1.service", "--slice=runtime.slice", "--remain-after-exit"]
    script = 'echo "at $0 100%%"; exec sleep 300'
    started = run_stand_in("systemd-run", "-p", f"StandardError=append:{log}", *unit, "sh", "-c", script, "$$")
    assert started.returncode == 0, started.stderr
    pid_file = tmp_path / "units" / "kubelet-1.service" / "pid"
    first = pid_file.read_text()

    def printed(times: int) -> None:
        """Wait until it ran so far: a program that is killed sooner has printed nothing."""
        deadline = time.monotonic() + 10
        while log.read_text().count("at $ 100%") < times and time.monotonic() < deadline:
            time.sleep(0.05)

    try:
        printed(1)
        assert "kubelet-1.service" in run_stand_in("systemctl", "list-units", "*kubelet*", "--state=running").stdout
        assert run_stand_in("systemctl", "restart", "kubelet-1").returncode == 0
        assert pid_file.read_text() != first
        printed(2)
        assert run_stand_in("systemctl", "stop", "kubelet-1").returncode == 0
        assert run_stand_in("systemctl", "list-units", "*kubelet*", "--state=running").stdout == ""
        assert "exited" in run_stand_in("systemctl", "list-units", "*kubelet*").stdout
        assert run_stand_in("systemctl", "stop", "other").returncode == 5
    finally:
        run_stand_in("systemctl", "kill", "-s", "KILL", "kubelet-1")
    assert log.read_text() == "at $ 100%\nat $ 100%\n"


def test_children_of_all_threads_are_told_to_stop() -> None:
    found: list[int] = []

    def work() -> None:
        with subprocess.Popen(["sleep", "60"]) as process:
            found.extend(pid for pid in children(os.getpid()) if pid == process.pid)
            process.kill()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == 1
