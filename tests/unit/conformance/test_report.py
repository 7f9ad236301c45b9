"""The table, the verdict, the areas, and what of a program's libraries goes into an image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conformance import report
from conformance.images import needed
from conformance.report import GO, OURS, Outcome, area, failed_by_go, result_file, table, write
from conformance.suite import FAILED, PASSED, SKIPPED, Spec
from conformance.watch import POD_TASK, Footprint, Watch, growth, shown, summary

PRIVILEGED = "[sig-node] PrivilegedPod [NodeConformance] should enable privileged commands [LinuxOnly]"


def an_outcome(*specs: Spec, **more: Any) -> Outcome:
    return Outcome(agent="pykubelet", runtime="1.6", focus="", seconds=61.2, specs=specs, **more)


def test_areas() -> None:
    names = {
        "[sig-node] Pods should be updated [NodeConformance]": "Pods",
        "[sig-storage] EmptyDir volumes when FSGroup is specified [LinuxOnly]": "EmptyDir volumes",
        "[sig-node] InitContainer [NodeConformance] should not": "InitContainer",
        "[sig-node] [NodeConformance] [FeatureGate:SidecarContainers] Probing restartable init container should": (
            "Probing restartable init container"
        ),
    }
    assert {name: area(Spec(name=name, outcome=PASSED)) for name in names} == names


def test_only_what_the_go_kubelet_failed_too_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    passed, failed = Spec(name="[sig-node] Pods should run", outcome=PASSED), Spec(name=PRIVILEGED, outcome=FAILED)
    assert not an_outcome(passed, failed).good
    for file in ("pykubelet-containerd-1.6.json", "go-containerd-2.json", "go-latest.json"):
        write(an_outcome(passed, failed), tmp_path / file, "containerd 1.6.20")
    assert failed_by_go("1.6") == set(), "neither our own failure nor one on another runtime excuses"
    write(an_outcome(passed, failed), tmp_path / "go-containerd-1.6.json", "containerd 1.6.20")
    assert failed_by_go("1.6") == {PRIVILEGED}
    assert an_outcome(passed, failed, excused={PRIVILEGED}).good


def test_a_run_is_good_only_when_all_of_it_is() -> None:
    passed = Spec(name="[sig-node] Pods should run", outcome=PASSED)
    assert an_outcome(passed).good
    assert not an_outcome(passed, Spec(name="[sig-node] Pods should stop", outcome=FAILED), excused={PRIVILEGED}).good
    assert not an_outcome(passed, leaks=("mounts: /x",)).good
    assert not an_outcome(passed, faults=("3 specs were selected, 1 were run",)).good
    assert not an_outcome().good, "nothing run is nothing shown"


def test_the_table_of_the_document_is_made_from_the_results() -> None:
    assert f"{report.BEGIN}\n{report.document()}\n{report.END}" in report.DOCUMENT.read_text()


def test_the_document_shows_both_agents_and_every_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    ran, hopped = "[sig-node] Pods should run", "[sig-node] Pods should hop"
    ours = an_outcome(Spec(name=ran, outcome=PASSED), Spec(name=hopped, outcome=FAILED))
    write(ours, result_file(OURS, "2"), "containerd 2.3.4")
    write(an_outcome(Spec(name=ran, outcome=PASSED)), result_file(GO, "2"), "containerd 2.3.4")
    lines = report.document().splitlines()
    assert [line.split(" | ")[1:5] for line in lines[2:4]] == [
        ["pykubelet", "1", "1", "0"],
        ["Go kubelet", "1", "0", "0"],
    ]
    assert lines[-1] == f"| containerd 2.3.4 | {hopped} | failed | not run |  |"


def test_the_table_counts_and_gives_reasons() -> None:
    shown = table(
        an_outcome(
            Spec(name="[sig-node] Pods should run", outcome=PASSED, seconds=3),
            Spec(name="[sig-node] Pods should stop", outcome=FAILED, seconds=4, why="it did not"),
            Spec(name="[sig-node] Pods should hop", outcome=SKIPPED, why="one leg"),
        )
    )
    lines = [line.split() for line in shown.splitlines()]
    assert ["Pods", "1", "1", "1", "7"] in lines
    assert "  it did not" in shown and "  one leg" in shown and shown.count("61") == 1


def test_the_report_as_json(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "report.json"
    write(an_outcome(Spec(name="[sig-node] Pods should run", outcome=PASSED)), file, "containerd 1.6.20")
    read = json.loads(file.read_text())
    assert read["counts"] == {"passed": 1, "failed": 0, "skipped": 0} and read["runtime"] == "containerd 1.6.20"


def test_footprints_after_the_first_specs_and_at_the_end() -> None:
    watch = Watch()
    watch.samples += [Footprint(at=float(at), pss=at * 2**20, files=at, threads=2) for at in range(50)]
    found = summary(watch, [float(end) for end in range(10, 40)])
    assert {name: shown(each) for name, each in found.items()} == {
        "after 20 specs": "29.0 MiB, 29 files, 2 threads",
        "at the end": "49.0 MiB, 49 files, 2 threads",
    }
    assert list(summary(watch, [1.0])) == ["at the end"]
    (sentence,) = growth(found)
    assert "29.0 MiB" in sentence and "49.0 MiB" in sentence
    assert growth(summary(watch, [float(end) for end in range(21, 50)])) == []


def test_only_tasks_of_single_pods_count_as_left() -> None:
    of_pods = ["pod default/web", "volume 0a1b-2c/scratch", "status of 0a1b-2c", "inspect 0a1b-2c", "settle-0a1b2c"]
    assert all(POD_TASK.match(name) for name in of_pods)
    assert not any(POD_TASK.match(name) for name in ("pod-workers", "volume stats", "oom watcher", "status-sender"))


def test_libraries_in_what_ldd_prints() -> None:
    listing = (
        "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n"
        "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibgone.so => not found\n"
    )
    assert needed(listing) == {"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}
