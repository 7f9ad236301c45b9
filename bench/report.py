"""The budgets, the verdicts and how they are shown: as a table to read, as JSON, as a part of docs/performance.md.

Budgets are ratios of figures measured in the same run, because machines differ; a few are absolute. A figure or its
yardstick that was not measured gives no verdict, which is not a pass.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.scenario import BURST, FULL, RESIDENTS, Figures

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "agents.json"
DOCUMENT = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
MEASURED = "pykubelet"
HELD = RESIDENTS + BURST


@dataclass(frozen=True, slots=True)
class Limit:
    factor: float
    of: str = ""
    """The subject it is a multiple of; empty for an absolute limit."""
    least: bool = False

    def holds(self, value: float, yardstick: float) -> bool:
        bound = self.factor * yardstick
        return value >= bound if self.least else value <= bound


@dataclass(frozen=True, slots=True)
class Budget:
    figure: str
    title: str
    show: Callable[[float], str]
    limits: tuple[Limit, ...] = ()
    either: bool = False
    """One of the limits is enough."""


def seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def percent(value: float) -> str:
    return f"{value * 100:.2f} %"


def mebibytes(value: float) -> str:
    return f"{value / 2**20:.1f} MiB"


def kibibytes(value: float) -> str:
    return f"{value / 2**10:.0f} KiB"


def plain(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{value:.2f}"


BUDGETS = (
    Budget("single", "one pod, manifest → process, p50", seconds, (Limit(0.35, "go"), Limit(1.25, "floor"))),
    Budget("burst_first", f"{BURST} pods at once, the first runs", seconds, (Limit(0.6),)),
    Budget("burst_median", f"{BURST} pods at once, p50", seconds, (Limit(0.55, "go"),)),
    Budget("burst_p99", f"{BURST} pods at once, p99", seconds),
    Budget("burst", f"{BURST} pods at once, all run", seconds, (Limit(0.8, "go"), Limit(1.2, "floor"))),
    Budget("burst_busy", f"CPU of the whole machine for {BURST} pods", seconds, (Limit(0.8, "go"),)),
    Budget("burst_cpu", f"own CPU for {BURST} pods", seconds, (Limit(1.0, "go"),)),
    Budget("crash", "crash → restarted, p50", seconds, (Limit(0.4, "go"),)),
    Budget("idle_cpu", f"idle CPU with {HELD} pods", percent, (Limit(0.5, "go"),)),
    Budget("memory", f"memory (PSS) with {HELD} pods", mebibytes, (Limit(0.8, "go"),)),
    Budget("delete", f"delete {BURST} pods, grace 1 s", seconds, (Limit(1.1, "go"),)),
    Budget("adopt", f"restart with {HELD} pods → next pod runs", seconds),
    Budget("full", f"from {HELD} to {FULL} pods, all run", seconds),
    Budget("full_held", f"of {FULL} pods, still run", plain, (Limit(FULL, least=True),)),
    Budget("full_memory_per_pod", f"memory for each pod, {HELD} → {FULL}", kibibytes, (Limit(100 * 1024),)),
    Budget("full_idle_cpu", f"idle CPU with {FULL} pods", percent),
    Budget("audit_cpu", f"own CPU of a relist, {FULL} pods", seconds, (Limit(0.05),)),
    Budget("decode", "decode 500 pods, against json.loads", plain, (Limit(1.5),)),
)
SUBJECTS = ("floor", "go", MEASURED)


@dataclass(frozen=True, slots=True)
class Row:
    budget: Budget
    shown: Mapping[str, str]
    rules: str
    verdict: bool | None
    spread: str = ""
    """Least and most of what was measured of pykubelet."""

    @property
    def word(self) -> str:
        return {True: "pass", False: "FAIL", None: "–"}[self.verdict]


def judge(results: Mapping[str, Figures], budgets: Sequence[Budget] = BUDGETS) -> list[Row]:
    """One row for each figure that somebody has."""
    rows = []
    for budget in budgets:
        values = {name: f.values[budget.figure] for name, f in results.items() if budget.figure in f.values}
        if values:
            own = results.get(MEASURED)
            samples = own.samples.get(budget.figure, []) if own is not None else []
            spread = f"{budget.show(min(samples))} – {budget.show(max(samples))}" if len(samples) > 1 else ""
            rows.append(replace(_row(budget, values), spread=spread))
    return rows


def _row(budget: Budget, values: Mapping[str, float]) -> Row:
    own, rules, verdicts = values.get(MEASURED), [], []
    for limit in budget.limits:
        yardstick = 1.0 if not limit.of else values.get(limit.of)
        sign = "≥" if limit.least else "≤"
        if limit.of:
            ratio = f"{own / yardstick:.2f}" if own is not None and yardstick else "?"
            rules.append(f"{ratio} {sign} {limit.factor:g} × {limit.of}")
        else:
            rules.append(f"{sign} {budget.show(limit.factor)}")
        if own is not None and yardstick is not None:
            verdicts.append(limit.holds(own, yardstick))
    complete = bool(verdicts) and len(verdicts) == len(budget.limits)
    if budget.either:
        verdict = True if True in verdicts else False if complete else None
    else:
        verdict = False if False in verdicts else True if complete else None
    joint = " or " if budget.either else ", "
    return Row(budget, {name: budget.show(value) for name, value in values.items()}, joint.join(rules), verdict)


def text_table(rows: list[Row]) -> str:
    head = ["figure", *SUBJECTS, "budget", ""]
    lines = [[r.budget.title, *[r.shown.get(name, "–") for name in SUBJECTS], r.rules, r.word] for r in rows]
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [head, ["-" * width for width in widths], *lines]
    )


def machine(containerd: str) -> dict[str, Any]:
    """What the figures depend on."""
    model = next((line for line in _read("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    memory = next(line for line in _read("/proc/meminfo") if line.startswith("MemTotal"))
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpus": os.cpu_count(),
        "cpu": model.partition(":")[2].strip() or platform.machine(),
        "memory": f"{int(memory.split()[1]) / 2**20:.0f} GiB",
        "kernel": platform.release(),
        "containerd": containerd,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def described(where: Mapping[str, Any]) -> str:
    """The machine, for the line above a table."""
    return (
        f"{where['cpus']} × {where['cpu']}, {where['memory']}, Linux {where['kernel']}, "
        f"containerd {where['containerd']}"
    )


def commit(checkout: Path | None = None) -> str:
    """The checkout that is measured, this one unless it is given, and whether it has changes."""
    git = ["git", "-C", str(checkout or HERE)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True).stdout
    dirty = subprocess.run([*git, "status", "--porcelain", ":/src"], capture_output=True, text=True, check=True).stdout
    return head.strip() + ("+changes" if dirty else "")


def containerd_version(program: Path) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return next((word for word in said.split() if word[:1].isdigit() or word[:2] in ("v1", "v2")), said.strip())


def write_json(results: Mapping[str, Figures], where: Mapping[str, Any], rows: list[Row], path: Path = RESULTS) -> None:
    path.parent.mkdir(exist_ok=True)
    content = {
        "machine": where,
        "subjects": {name: figures.as_json() for name, figures in results.items()},
        "verdicts": {row.budget.figure: row.verdict for row in rows},
    }
    path.write_text(json.dumps(content, indent=2) + "\n")


def markdown(rows: list[Row], where: Mapping[str, Any]) -> str:
    lines = [
        f"{where['date']}: {described(where)}, Python {where['python']}, load before the run {where['load']}, "
        f"pods with {where['volumes']}, {where['rounds']} rounds; bare CRI with {_widths(where.get('floor'))}. "
        f"Commit {where['commit']}.",
        "",
        "| figure | bare CRI | Go kubelet 1.36.4 | pykubelet | least – most | budget | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [row.budget.title, *[row.shown.get(name, "–") for name in SUBJECTS], row.spread, row.rules, row.word]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _widths(floor: Mapping[str, str] | None) -> str:
    if floor is None:
        return "no width: not measured"
    return f"{floor['burst']} pods at a time, its deletions {floor['delete']} at a time"


def update_document(text: str, path: Path = DOCUMENT, marks: tuple[str, str] = (BEGIN, END)) -> None:
    """Put the table between the marks of docs/performance.md."""
    begin, end = marks
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _read(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
