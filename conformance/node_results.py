"""Results of the node suite: kept as data a part and agent, newer entries over older ones, and the table made of them.

A failure of ours is excused only where the Go kubelet's committed result of the same part failed the same spec.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.node_parts import PARTS
from conformance.report import GO, HERE, OURS, RESULTS, TITLES, put_between
from conformance.suite import FAILED, PASSED, SKIPPED, Spec
from tests.bed.cluster import VERSION
from tests.bed.parts import REPO

FOLDER = RESULTS / "node-suite"
BEGIN, END = "<!-- node suite: made by `python -m conformance.node_suite --document` -->", "<!-- end of node suite -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of one spec with one agent."""

    spec: Spec
    commit: str
    seen: Mapping[str, int]
    """How often each outcome was seen in all runs so far."""


@dataclass(slots=True, kw_only=True)
class Results:
    """All that is known of one part with one agent."""

    agent: str
    part: str
    runtime: str = ""
    machine: str = ""
    entries: dict[str, Entry] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return FOLDER / f"{self.part}-{self.agent}.json"

    def merge(self, specs: Iterable[Spec], commit: str) -> None:
        for spec in specs:
            before = self.entries[spec.name].seen if spec.name in self.entries else {}
            seen = {**before, spec.outcome: before.get(spec.outcome, 0) + 1}
            self.entries[spec.name] = Entry(spec=spec, commit=commit, seen=seen)

    def names(self, outcome: str) -> set[str]:
        return {name for name, entry in self.entries.items() if entry.spec.outcome == outcome}

    def seconds(self) -> float:
        return sum(entry.spec.seconds for entry in self.entries.values())

    def commits(self) -> list[str]:
        return sorted({entry.commit for entry in self.entries.values()})


def load(part: str, agent: str) -> Results:
    empty = Results(agent=agent, part=part)
    if not empty.file.exists():
        return empty
    said = json.loads(empty.file.read_text())
    entries = {}
    for each in said["specs"]:
        commit, seen = each.pop("commit"), each.pop("seen")
        entries[each["name"]] = Entry(spec=Spec(**each), commit=commit, seen=seen)
    return Results(agent=agent, part=part, runtime=said["runtime"], machine=said["machine"], entries=entries)


def save(results: Results) -> None:
    """One line a spec, so that a change of one is a change of one line."""
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}"
    head = {
        "agent": results.agent,
        "part": results.part,
        "kubernetes": VERSION,
        "runtime": results.runtime,
        "machine": f"emulated guest on {machine}" if PARTS[results.part].guest else machine,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": {each: len(results.names(each)) for each in (PASSED, FAILED, SKIPPED)},
    }
    lines = [json.dumps(shown(entry), ensure_ascii=False) for _, entry in sorted(results.entries.items())]
    text = json.dumps(head, indent=1)[:-2] + ',\n "specs": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    results.file.parent.mkdir(parents=True, exist_ok=True)
    results.file.write_text(text)


def shown(entry: Entry) -> dict[str, Any]:
    spec = {key: value for key, value in asdict(entry.spec).items() if value != ""}
    return {**spec, "commit": entry.commit, "seen": dict(entry.seen)}


def commit() -> str:
    """Of the checkout; with a mark where the agent's source differs from it."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(HERE), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", str(REPO / "src"))
    return git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One part, both agents: names of specs."""

    ours_alone: Sequence[str]
    """We fail, the Go kubelet passes or skips."""
    both: Sequence[str]
    go_alone: Sequence[str]
    not_compared: Sequence[str]
    """We fail, and there is no result of the Go kubelet: counts against us."""
    missing: Sequence[str]
    """The Go kubelet passes, and there is no result of ours, or we skip it."""


def compare(ours: Results, go: Results) -> Comparison:
    failed, passed = ours.names(FAILED), go.names(PASSED)
    excused = failed & go.names(FAILED)
    return Comparison(
        ours_alone=sorted(failed & go.entries.keys() - excused),
        both=sorted(excused),
        go_alone=sorted(go.names(FAILED) & ours.names(PASSED)),
        not_compared=sorted(failed - go.entries.keys()),
        missing=sorted(passed - ours.names(PASSED) - failed),
    )


def document(reasons: Mapping[str, str]) -> str:
    """The text between the marks in docs/conformance.md."""
    lines = [
        "| part | agent | passed | failed | skipped | run by the other agent alone | seconds, summed | commits |",
        "|---|---|---|---|---|---|---|---|",
    ]
    notes: list[str] = []
    for name, part in PARTS.items():
        ours, go = load(name, OURS), load(name, GO)
        lines += [row(part.what, mine, other) for mine, other in ((ours, go), (go, ours)) if mine.entries]
        notes += differences(name, ours, go, reasons)
    heading = ["", "| part | spec | pykubelet | Go kubelet | why |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *(heading + notes if notes else [])])


def row(what: str, mine: Results, other: Results) -> str:
    counts = " | ".join(str(len(mine.names(each))) for each in (PASSED, FAILED, SKIPPED))
    alone = len(other.entries.keys() - mine.entries.keys())
    taken = ", ".join(mine.commits())
    return f"| {what} | {TITLES[mine.agent]} | {counts} | {alone} | {mine.seconds():.0f} | {taken} |"


def differences(part: str, ours: Results, go: Results, reasons: Mapping[str, str]) -> list[str]:
    found = compare(ours, go)
    rows = [(name, "failed", go.entries[name].spec.outcome) for name in found.ours_alone]
    rows += [(name, "failed", "not run") for name in found.not_compared]
    rows += [(name, "skipped" if name in ours.entries else "not run", "passed") for name in found.missing]
    rows += [(name, "passed", "failed") for name in found.go_alone]
    rows += [(name, "failed", "failed") for name in found.both]
    return [f"| {part} | {cell(name)} | {a} | {b} | {cell(reason(name, reasons))} |" for name, a, b in rows]


def reason(name: str, reasons: Mapping[str, str]) -> str:
    return next((why for piece, why in reasons.items() if piece in name), "")


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_document(reasons: Mapping[str, str]) -> None:
    put_between(BEGIN, END, document(reasons))
