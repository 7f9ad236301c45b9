"""Running Kubernetes' own specs with ginkgo, and reading what it reports.

The selection is what any kubelet must do: [NodeConformance] without what needs the node for itself, takes long, or
is known to be unsteady. Does not judge: report.py does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from conformance.bed import Bed

LABEL = "NodeConformance"
SKIP = r"\[Serial\]|\[Slow\]|\[Flaky\]|\[Windows\]"
PARALLEL = 6
LONGEST = "90m"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
UNFINISHED = ("interrupted", "aborted")
"""States of specs that were running when the run was stopped: nothing is known of them."""
NO_CHANCE = "an earlier spec in an ordered container failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    name: str
    outcome: str
    seconds: float = 0.0
    ended: float = 0.0
    """Seconds since the epoch."""
    why: str = ""
    """The message of a failure or a skip, cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one run of ginkgo said."""

    status: int
    """Its exit status."""
    selected: int
    """Specs that were to run."""
    specs: Sequence[Spec]
    broken: Sequence[str] = ()
    """Names of set-up steps that failed; then no spec counts."""

    def faults(self) -> list[str]:
        """Why the run as a whole cannot be believed; empty when it can."""
        found = [f"set-up failed: {name}" for name in self.broken]
        if len(self.specs) < self.selected:
            found.append(f"{self.selected} specs were selected, {len(self.specs)} were run")
        if self.status != 0 and not failed(self.specs):
            found.append(f"ginkgo ended with status {self.status}, but no spec failed")
        if self.status == 0 and failed(self.specs):
            found.append("ginkgo ended with status 0, but specs failed")
        return found


def run(bed: Bed, folder: Path, *, focus: str, skip: str = "", parallel: int = PARALLEL) -> Report:
    """Run the part of the selection whose names match `focus`; everything ginkgo says is in folder/ginkgo.log."""
    environment = {**os.environ, "PATH": f"{bed.cluster.programs}:{os.environ.get('PATH', '')}"}
    command = [
        str(bed.programs / "ginkgo"),
        "run",
        f"--procs={parallel}",
        "--no-color",
        "--succinct",
        f"--timeout={LONGEST}",
        f"--output-dir={folder}",
        "--json-report=ginkgo.json",
        *selection(focus, skip),
        str(bed.programs / "e2e.test"),
        "--",
        "--provider=skeleton",
        f"--kubeconfig={bed.cluster.admin_kubeconfig}",
        f"--kubectl-path={bed.cluster.programs / 'kubectl'}",
        "--allowed-not-ready-nodes=0",
        "--node-os-distro=debian",
        "--dump-logs-on-failure=false",
    ]
    with (folder / "ginkgo.log").open("wb") as log:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder, check=False
        )
    return read_report(folder / "ginkgo.json", done.returncode)


def selection(focus: str, skip: str) -> list[str]:
    """The mark as a label, because a focus may match across it in a spec's name."""
    chosen = [f"--label-filter={LABEL}", f"--skip={SKIP}|{skip}" if skip else f"--skip={SKIP}"]
    return [*chosen, f"--focus={focus}"] if focus else chosen


def read_report(file: Path, status: int) -> Report:
    """From ginkgo's JSON; specs that the end of the run interrupted are left out."""
    if not file.exists():
        return Report(status=status, selected=0, specs=(), broken=("ginkgo wrote no report",))
    suites: list[dict[str, Any]] = json.loads(file.read_text())
    said = [each for one in suites for each in one.get("SpecReports") or ()]
    whole = [each for each in said if is_known(each)]
    specs = [spec for each in whole if each.get("LeafNodeType") == "It" and (spec := spec_of(each)) is not None]
    broken = [str(each["LeafNodeType"]) for each in whole if is_broken_setup(each)]
    return Report(
        status=status,
        selected=sum((one.get("PreRunStats") or {}).get("SpecsThatWillRun", 0) for one in suites),
        specs=sorted(specs, key=lambda spec: spec.name),
        broken=broken,
    )


def is_known(said: Mapping[str, Any]) -> bool:
    """Whether the spec had its chance: not where the run was stopped, or where one before it in its group failed."""
    why = (said.get("Failure") or {}).get("Message", "")
    return said.get("State") not in UNFINISHED and not (said.get("State") == SKIPPED and NO_CHANCE in why)


def is_broken_setup(said: Mapping[str, Any]) -> bool:
    return said.get("LeafNodeType") != "It" and said.get("State") not in (PASSED, SKIPPED, "")


def spec_of(said: dict[str, Any]) -> Spec | None:
    """None for specs that were not selected."""
    outcome, why = said.get("State", ""), (said.get("Failure") or {}).get("Message", "")
    name = " ".join([*(said.get("ContainerHierarchyTexts") or ()), said.get("LeafNodeText", "")]).strip()
    if outcome == "pending" or (outcome == SKIPPED and not why):
        return None
    return Spec(
        name=name,
        outcome=outcome if outcome in (PASSED, SKIPPED) else FAILED,
        seconds=round(said.get("RunTime", 0) / 1e9, 1),
        ended=moment(said.get("EndTime", "")),
        why=shortened(why),
    )


def moment(text: str) -> float:
    """Go writes nanoseconds, which Python does not read."""
    try:
        return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.replace("Z", "+00:00"))).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def shortened(text: str, longest: int = 400) -> str:
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def failed(specs: Iterable[Spec]) -> list[Spec]:
    return [spec for spec in specs if spec.outcome == FAILED]
