"""`python -m hosts`: run the checks on guests, and keep what was seen as data.

Exit status 0 when every check that was asked for passed, 1 when not. The results go to hosts/results/checks.json, by
the name of the check, each with the commit it was seen at; a run of a part replaces only that part. See docs/hosts.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hosts.image import RELEASE, ROOT

CHECKS = ROOT / "hosts" / "checks"
RESULTS = ROOT / "hosts" / "results" / "checks.json"


class Recorder:
    """A plugin of pytest that writes down how each check ended and the figures it noted by `record_property`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._commit = commit()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        entry: dict[str, Any] = {
            "outcome": report.outcome,
            "seconds": round(report.duration, 1),
            "seen": dict(report.user_properties),
            "commit": self._commit,
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "guest": f"Debian {RELEASE}",
        }
        if report.outcome != "passed":
            entry["why"] = str(report.longrepr)[-2000:]
        name = report.nodeid.removeprefix("hosts/checks/")
        known = read(self._path)
        known[name] = entry
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Results by the name of the check; empty before the first run."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def commit() -> str:
    """The commit of this checkout, with a mark when files differ from it."""
    asked = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m hosts", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", help="names of check files, such as cgroups; all of them otherwise")
    parser.add_argument("--focus", default="", help="only checks whose names match, as pytest -k")
    parser.add_argument("--report", type=Path, default=RESULTS)
    options = parser.parse_args()
    paths = [str(CHECKS / f"test_{name}.py") for name in options.files] or [str(CHECKS)]
    began = time.monotonic()
    asked = ["-v", "--tb=short", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *paths]
    asked += ["-k", options.focus] if options.focus else []
    status = pytest.main(asked, plugins=[Recorder(options.report)])
    print(f"hosts: {time.monotonic() - began:.0f} s; every check is in {options.report}")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
