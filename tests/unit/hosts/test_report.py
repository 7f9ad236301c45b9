"""What documents say about guests is what the results say, and no test is named that is not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hosts import report
from hosts.report import STAND_IN, checks_of, hosts_page, is_green, parity_page, seen_on
from hosts.seen import AREAS, KUBEADM, Seen

ROOT = Path(__file__).parents[3]


def test_the_committed_pages_are_up_to_date() -> None:
    checks, cluster = report.results(), report.kubeadm()
    for page, make in ((report.HOSTS_PAGE, hosts_page), (report.PARITY_PAGE, parity_page)):
        text = page.read_text()
        assert make(text, checks, cluster) == text, f"{page.name}: run make docs"


def test_every_row_of_parity_has_its_place_and_every_place_its_row() -> None:
    text = report.PARITY_PAGE.read_text()
    table = text.partition(report.HEADING)[2].partition("\n\n")[0]
    rows = [report.cells(line)[0] for line in table.splitlines() if line and not line.startswith("|---")]
    assert sorted(rows) == sorted(AREAS)


@pytest.mark.parametrize("area", AREAS)
def test_what_a_row_names_is_there_and_real_where_it_says_so(area: str) -> None:
    seen = AREAS[area]
    for name in (*seen.host, *seen.fakes):
        assert (ROOT / name).exists(), name
    for name in seen.host:
        text = (ROOT / name).read_text()
        assert "pytest.mark.node" in text or "pytest.mark.cluster" in text, f"{name} runs nothing real"
    assert seen.host or seen.fakes, "a guest may have no result yet"


def a_result(outcome: str = "passed") -> dict[str, Any]:
    return {"outcome": outcome, "seconds": 1.5, "commit": "abc", "date": "2026-11-16", "why": "E\nlast words"}


def test_a_guest_counts_when_all_its_checks_have_passed(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text("def test_a(): ...\ndef test_b(): ...\n")
    assert checks_of(file) == {"test_a", "test_b"}
    assert not is_green(file, {})
    assert not is_green(file, {"test_x.py::test_a": a_result()}), "one was not run"
    both = {"test_x.py::test_a[1]": a_result(), "test_x.py::test_b": a_result()}
    assert is_green(file, both)
    assert is_green(file, both | {"test_x.py::test_old": a_result("failed")}), "it is no more"
    assert not is_green(file, both | {"test_x.py::test_a[2]": a_result("failed")})
    assert not is_green(file, both | {"test_x.py::test_a[2]": a_result("skipped")})
    assert not is_green(tmp_path / "test_none.py", both)


def test_a_cell_says_host_guest_or_stand_in() -> None:
    assert seen_on(Seen(host=("a.py",), fakes=("f.py",)), {}, {}) == "host: `a.py`"
    assert seen_on(Seen(guest=("hosts/checks/test_none.py",), fakes=("f.py",)), {}, {}) == f"{STAND_IN}: `f.py`"
    assert seen_on(Seen(host=("a.py",), guest=(KUBEADM,)), {}, {"good": True}) == f"host: `a.py`; guest: `{KUBEADM}`"
    assert seen_on(Seen(guest=(KUBEADM,), fakes=("f.py",)), {}, {"good": False}) == f"{STAND_IN}: `f.py`"


def test_what_did_not_pass_is_in_the_table() -> None:
    file = sorted(report.CHECKS.glob("test_*.py"))[0]
    name = min(checks_of(file))
    steps = [{"step": "init"}, {"step": "join", "problem": "no | node"}]
    table = report.results_table(
        {f"{file.name}::{name}": a_result("failed")},
        {"steps": steps, "seconds": 7, "commit": "0123456789abcdef", "good": False},
    )
    row = next(line for line in table.splitlines() if line.startswith(f"| `hosts/checks/{file.name}` | "))
    assert row.endswith(" | 1 | 0 | 1 | 2 | abc | 2026-11-16 |")
    assert f"| {file.name}::{name} | last words |" in table
    assert " | 2 steps | 1 | 1 | 7 | 0123456789ab |  |" in table
    assert "| kubeadm: join | no \\| node |" in table
