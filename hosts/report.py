"""`python -m hosts.report`: what checks on guests saw, as docs/hosts.md and docs/parity.md show it.

Rewrites the part of docs/hosts.md between two marks and the column "seen on" of docs/parity.md, from hosts/results and
hosts/seen.py. A test compares the committed pages with what this makes.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hosts.image import ROOT
from hosts.seen import AREAS, KUBEADM, Seen

CHECKS = ROOT / "hosts" / "checks"
RESULTS = ROOT / "hosts" / "results"
HOSTS_PAGE, PARITY_PAGE = ROOT / "docs" / "hosts.md", ROOT / "docs" / "parity.md"
BEGIN, END = "<!-- results: made by `python -m hosts.report` -->", "<!-- end of results -->"
HEADING = "| area | state | seen on |"
STAND_IN = "stand-in only"
CLUSTER = "A cluster made with kubeadm on two guests, from init to reset."
Results = Mapping[str, Mapping[str, Any]]


def results(folder: Path = RESULTS) -> Results:
    """What each check saw, by the name of its file and its own."""
    path = folder / "checks.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def kubeadm(folder: Path = RESULTS) -> Mapping[str, Any]:
    """What the run with kubeadm saw; empty before the first one."""
    path = folder / "kubeadm.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def checks_of(file: Path) -> set[str]:
    """Names of the checks in a file."""
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def is_green(file: Path, seen: Results) -> bool:
    """Whether every check of the file was run, and passed whenever it was last run."""
    if not file.exists():
        return False
    found = of_file(file, seen)
    run = {name.partition("[")[0] for name in found}
    return checks_of(file) <= run and all(each["outcome"] == "passed" for each in found.values())


def of_file(file: Path, seen: Results) -> Results:
    """The results of one file, by the name of the check; those of checks that are no more are left out."""
    prefix, known = f"{file.name}::", checks_of(file)
    mine = {name.removeprefix(prefix): entry for name, entry in seen.items() if name.startswith(prefix)}
    return {name: entry for name, entry in mine.items() if name.partition("[")[0] in known}


# --- docs/parity.md -------------------------------------------------------------------------------------------


def seen_on(area: Seen, checks: Results, cluster: Mapping[str, Any]) -> str:
    """The cell of a row: where it was seen, with the files that saw it."""
    green = [each for each in area.guest if (cluster.get("good") if each == KUBEADM else is_green(ROOT / each, checks))]
    parts = [f"host: {_files(area.host)}"] if area.host else []
    parts += [f"guest: {_files(green)}"] if green else []
    return "; ".join(parts) or f"{STAND_IN}: {_files(area.fakes)}"


def _files(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def parity_page(text: str, checks: Results, cluster: Mapping[str, Any]) -> str:
    """The page with its column made anew; KeyError for a row that hosts/seen.py does not know."""
    head, _, rest = text.partition(HEADING)
    table, gap, tail = rest.partition("\n\n")
    rows = [line for line in table.splitlines() if line and not line.startswith("|---")]
    made = []
    for row in rows:
        area, state = cells(row)[:2]
        made.append(f"| {area} | {state} | {seen_on(AREAS[area], checks, cluster)} |")
    return "\n".join([f"{head}{HEADING}", "|---|---|---|", *made]) + gap + tail


def cells(row: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in row.removeprefix("|").removesuffix("|").split(" | ")]


# --- docs/hosts.md --------------------------------------------------------------------------------------------


def results_table(checks: Results, cluster: Mapping[str, Any]) -> str:
    """How the checks of each file ended when they were last run, and why those did that did not pass."""
    lines = [
        "| file | what | checks | passed | failed | seconds | commit | date |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted(CHECKS.glob("test_*.py")):
        lines.append(_file_row(file, of_file(file, checks)))
    steps = cluster.get("steps", [])
    good = sum("problem" not in step for step in steps)
    lines.append(
        f"| `{KUBEADM}` | {CLUSTER} | {len(steps)} steps | {good} | {len(steps) - good} | {cluster['seconds']} "
        f"| {cluster['commit'][:12]} | {cluster.get('date', '')} |"
        if steps
        else f"| `{KUBEADM}` | {CLUSTER} | | | | | not run yet | |"
    )
    return "\n".join([*lines, *_failures(checks, cluster)])


def _named(file: Path) -> str:
    """Two cells: the file, and the first paragraph of what it says of itself."""
    words = (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n\n")[0]
    return f"`{file.relative_to(ROOT)}` | {' '.join(words.split())}"


def _file_row(file: Path, found: Results) -> str:
    name = _named(file)
    if not found:
        return f"| {name} | | | | | not run yet | |"
    passed = sum(each["outcome"] == "passed" for each in found.values())
    failed = sum(each["outcome"] == "failed" for each in found.values())
    seconds = sum(each["seconds"] for each in found.values())
    commits = ", ".join(sorted({each["commit"] for each in found.values()}))
    dates = ", ".join(sorted({each["date"] for each in found.values()}))
    return f"| {name} | {len(found)} | {passed} | {failed} | {seconds:.0f} | {commits} | {dates} |"


def _failures(checks: Results, cluster: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (name, str(entry.get("why", "")).strip().splitlines()[-1:] or [entry["outcome"]])
        for name, entry in sorted(checks.items())
        if entry["outcome"] != "passed"
    ]
    rows += [
        (f"kubeadm: {step['step']}", step["problem"].splitlines()[:1])
        for step in cluster.get("steps", [])
        if "problem" in step
    ]
    if rows:
        yield from ("", "| not passed | last line |", "|---|---|")
    for name, words in rows:
        text = words[0].replace("|", "\\|")[:300]
        yield f"| {name} | {text} |"


def hosts_page(text: str, checks: Results, cluster: Mapping[str, Any]) -> str:
    """The page with its results made anew."""
    return with_between(text, BEGIN, END, results_table(checks, cluster))


def with_between(text: str, begin: str, end: str, made: str) -> str:
    """The text with something else between two marks."""
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{made}\n{end}{tail}"


def main() -> int:
    checks, cluster = results(), kubeadm()
    HOSTS_PAGE.write_text(hosts_page(HOSTS_PAGE.read_text(), checks, cluster))
    PARITY_PAGE.write_text(parity_page(PARITY_PAGE.read_text(), checks, cluster))
    return 0


if __name__ == "__main__":
    sys.exit(main())
