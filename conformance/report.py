"""The table to read and the JSON to keep.

Judging: a spec is ours to pass unless the Go kubelet's committed result in the same bed (results/go-*.json) failed it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conformance.suite import FAILED, PASSED, SKIPPED, Spec
from tests.bed.cluster import VERSION

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
KNOWN = {
    "PrivilegedPod": "adds a network link of type dummy, which not every kernel has; fails with the Go kubelet as well",
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

    def count(self, outcome: str) -> int:
        return sum(1 for spec in self.specs if spec.outcome == outcome)

    @property
    def ours_failed(self) -> list[Spec]:
        return [spec for spec in self.specs if spec.outcome == FAILED and not reason(spec)]

    @property
    def good(self) -> bool:
        return bool(self.count(PASSED)) and not self.ours_failed and not self.leaks


def reason(spec: Spec) -> str:
    """Why a spec is not ours to pass; empty when it is."""
    if spec.name not in failed_by_go():
        return ""
    return next((why for part, why in KNOWN.items() if part in spec.name), "fails with the Go kubelet as well")


def failed_by_go() -> set[str]:
    """Names of the specs that failed in the committed runs of the Go kubelet."""
    runs = [json.loads(file.read_text()) for file in RESULTS.glob("go-*.json")]
    return {spec["name"] for run in runs for spec in run["specs"] if spec["outcome"] == FAILED}


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
            lines.append(f"failed: {spec.name}\n  {reason(spec) or spec.why}")
        elif spec.outcome == SKIPPED:
            lines.append(f"skipped: {spec.name}\n  {spec.why}")
    lines += [f"left behind: {sentence}" for sentence in outcome.leaks]
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
        "specs": [{key: value for key, value in asdict(spec).items() if value != ""} for spec in outcome.specs],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")


def _commit() -> str:
    said = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return said.stdout.strip()
