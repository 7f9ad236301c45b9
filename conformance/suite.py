"""Running Kubernetes' own specs with ginkgo, and reading what it reports.

The selection is what any kubelet must do: [NodeConformance] without what needs the node for itself, takes long, or
is known to be unsteady. Does not judge: report.py does.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    name: str
    outcome: str
    seconds: float = 0.0
    ended: float = 0.0
    """Seconds since the epoch."""
    why: str = ""
    """The message of a failure or a skip, cut short."""


def run(bed: Bed, folder: Path, *, focus: str, skip: str = "", parallel: int = PARALLEL) -> list[Spec]:
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
        subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=folder, check=False
        )
    return read(folder / "ginkgo.json")


def selection(focus: str, skip: str) -> list[str]:
    """The mark as a label, because a focus may match across it in a spec's name."""
    chosen = [f"--label-filter={LABEL}", f"--skip={SKIP}|{skip}" if skip else f"--skip={SKIP}"]
    return [*chosen, f"--focus={focus}"] if focus else chosen


def read(file: Path) -> list[Spec]:
    """What ginkgo's JSON report says of the specs that were selected."""
    if not file.exists():
        return []
    suites: list[dict[str, Any]] = json.loads(file.read_text())
    found = [spec_of(each) for suite in suites for each in suite.get("SpecReports") or ()]
    return sorted((spec for spec in found if spec is not None), key=lambda spec: spec.name)


def spec_of(said: dict[str, Any]) -> Spec | None:
    """None for set-up nodes that went well, and for specs that were not selected."""
    outcome, why = said.get("State", ""), (said.get("Failure") or {}).get("Message", "")
    name = " ".join([*(said.get("ContainerHierarchyTexts") or ()), said.get("LeafNodeText", "")]).strip()
    if said.get("LeafNodeType") != "It":
        if outcome in (PASSED, SKIPPED, ""):
            return None
        name = name or said.get("LeafNodeType", "set-up")
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
