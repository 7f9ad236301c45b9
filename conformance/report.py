"""The table to read, the JSON to keep, and the table of docs/conformance.md, made of what was kept.

Judging: a spec is ours to pass unless the Go kubelet's committed result on the same runtime failed it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.suite import FAILED, PASSED, SKIPPED, Spec
from hosts.report import with_between
from tests.bed.cluster import VERSION

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCUMENT = HERE.parent / "docs" / "conformance.md"
BEGIN, END = "<!-- conformance: made by `python -m conformance --document` -->", "<!-- end of conformance -->"
OURS, GO = "pykubelet", "go"
TITLES = {OURS: "pykubelet", GO: "Go kubelet"}
RUNTIMES = {"1.6": "containerd-1.6", "2": "containerd-2", "crio": "crio"}
"""As on the command line -> as in the names of the files of results."""
KNOWN = {
    "PrivilegedPod": "adds a network link of type dummy, which this kernel does not have",
}
"""Part of a spec's name -> why it fails; excuses nothing by itself."""
BEHAVIOUR = re.compile(
    r":| (?:should|when|updates|optional|binary|volume on|pod should|the kubelet|a pod|will|blackbox|with)\b"
    r"|(?i: when creating)"
)
"""Where the name of an area ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run."""

    agent: str
    runtime: str
    focus: str
    seconds: float
    specs: Sequence[Spec]
    footprints: Mapping[str, Any] = field(default_factory=dict)
    leaks: Sequence[str] = ()
    faults: Sequence[str] = ()
    """Why the run as a whole cannot be believed."""
    excused: Set[str] = frozenset()
    """Names of the specs that the Go kubelet failed in the same bed: not ours to pass."""

    def count(self, outcome: str) -> int:
        return sum(1 for spec in self.specs if spec.outcome == outcome)

    @property
    def ours_failed(self) -> list[Spec]:
        return [spec for spec in self.specs if spec.outcome == FAILED and spec.name not in self.excused]

    @property
    def good(self) -> bool:
        return bool(self.count(PASSED)) and not self.ours_failed and not self.leaks and not self.faults


def reason(spec: Spec, excused: Set[str]) -> str:
    """Why a spec failed."""
    return why(spec.name) or "fails with the Go kubelet as well" if spec.name in excused else spec.why


def why(name: str) -> str:
    return next((each for part, each in KNOWN.items() if part in name), "")


def failed_by_go(runtime: str) -> set[str]:
    """Names of the specs that failed in the committed run of the Go kubelet."""
    file = result_file(GO, runtime)
    run = json.loads(file.read_text()) if file.exists() else {"specs": []}
    return {spec["name"] for spec in run["specs"] if spec["outcome"] == FAILED}


def result_file(agent: str, runtime: str) -> Path:
    """Where a run of the whole selection is kept; runs of a part go to latest.json."""
    return RESULTS / f"{agent}-{RUNTIMES[runtime]}.json"


def area(spec: Spec) -> str:
    """The feature area: a spec's name without its marks, up to where it says what should happen."""
    words = " ".join(re.sub(r"\[[^]]*\]", " ", spec.name).split())
    return BEHAVIOUR.split(words)[0].strip()[:46]


def table(outcome: Outcome) -> str:
    areas: dict[str, list[Spec]] = defaultdict(list)
    for spec in outcome.specs:
        areas[area(spec)].append(spec)
    lines = [f"{'area':46} {PASSED:>7} {FAILED:>7} {SKIPPED:>7} {'seconds':>8}"]
    for name, specs in sorted(areas.items()):
        lines.append(_row(name, specs, sum(spec.seconds for spec in specs)))
    lines.append(_row("all (seconds: wall time)", outcome.specs, outcome.seconds))
    for spec in outcome.specs:
        if spec.outcome == FAILED:
            lines.append(f"failed: {spec.name}\n  {reason(spec, outcome.excused)}")
        elif spec.outcome == SKIPPED:
            lines.append(f"skipped: {spec.name}\n  {spec.why}")
    lines += [f"left behind: {sentence}" for sentence in outcome.leaks]
    lines += [f"not to be believed: {sentence}" for sentence in outcome.faults]
    lines += [f"{key}: {value}" for key, value in outcome.footprints.items()]
    return "\n".join(lines)


def _row(name: str, specs: Sequence[Spec], seconds: float) -> str:
    counts = [sum(1 for spec in specs if spec.outcome == each) for each in (PASSED, FAILED, SKIPPED)]
    return f"{name:46} " + " ".join(f"{count:7}" for count in counts) + f" {seconds:8.0f}"


def write(outcome: Outcome, file: Path, runtime_version: str) -> None:
    document = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "agent": outcome.agent,
        "kubernetes": VERSION,
        "runtime": runtime_version,
        "machine": f"{os.cpu_count()} cores, Linux {platform.release()}",
        "commit": _commit(),
        "focus": outcome.focus,
        "seconds": round(outcome.seconds, 1),
        "counts": {each: outcome.count(each) for each in (PASSED, FAILED, SKIPPED)},
        "footprints": dict(outcome.footprints),
        "leaks": list(outcome.leaks),
        "faults": list(outcome.faults),
        "specs": [{key: value for key, value in asdict(spec).items() if value != ""} for spec in outcome.specs],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")


def _commit() -> str:
    said = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip()


def document() -> str:
    """The text between the marks in docs/conformance.md: both agents on every runtime, and each spec that failed."""
    runs = {
        (runtime, agent): json.loads(file.read_text())
        for runtime in RUNTIMES
        for agent in TITLES
        if (file := result_file(agent, runtime)).exists()
    }
    lines = [
        "| runtime | agent | passed | failed | skipped | time | memory (PSS) at the end | left behind | date, commit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for (_, agent), run in runs.items():
        title = f"{TITLES[agent]}, only `{run['focus']}`".replace("|", "\\|") if run["focus"] else TITLES[agent]
        counts = " | ".join(str(run["counts"][each]) for each in (PASSED, FAILED, SKIPPED))
        memory = run["footprints"].get("at the end", "").partition(",")[0]
        left = "not looked at" if agent == GO else "; ".join(run["leaks"]) or "nothing"
        taken = f"{run['when'][:10]}, {run['commit']}"
        lines.append(
            f"| {run['runtime']} | {title} | {counts} | {run['seconds']:.0f} s | {memory} | {left} | {taken} |"
        )
    lines += ["", "| runtime | spec | pykubelet | Go kubelet | why |", "|---|---|---|---|---|"]
    for runtime in RUNTIMES:
        of_both = [runs[runtime, agent] for agent in TITLES if (runtime, agent) in runs]
        ours, go = (_outcomes(runs.get((runtime, agent))) for agent in (OURS, GO))
        names = sorted(name for name in ours | go if {ours.get(name, PASSED), go.get(name, PASSED)} != {PASSED})
        for name in names:
            ends = f"{ours.get(name, 'not run')} | {go.get(name, 'not run')}"
            lines.append(f"| {of_both[0]['runtime']} | {name} | {ends} | {why(name)} |")
    return "\n".join(lines)


def _outcomes(run: Mapping[str, Any] | None) -> dict[str, str]:
    return {spec["name"]: spec["outcome"] for spec in run["specs"]} if run else {}


def put_between(begin: str, end: str, text: str) -> None:
    """Replace what is between two marks in docs/conformance.md."""
    DOCUMENT.write_text(with_between(DOCUMENT.read_text(), begin, end, text))
