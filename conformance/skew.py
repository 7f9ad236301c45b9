"""`python -m conformance.skew`: with which minors of Kubernetes the agent was tried, as docs/skew.md shows it.

`python -m conformance.skew 1.37` runs the cluster tests against an API server of that minor and keeps what they said.
`python -m conformance.skew --fields FOLDER` compares the configuration of the minors, as Go's module cache has it, with
ours. Without arguments the page is made from what was kept; a test compares the committed page with it.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tools.gen_upstream_settings import VERSION, config_fields

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "conformance" / "results" / "skew.json"
PAGE = ROOT / "docs" / "skew.md"
OURS = "1.36"
MINORS = ("1.35", OURS, "1.37", "1.38")
"""One older than ours, and what a kubelet of our minor may meet: API servers up to three minors newer."""
TESTS = (
    "tests/contracts/test_kube_contract.py",
    "tests/contracts/test_kube_cluster.py",
    "tests/cluster/test_node.py",
    "tests/cluster/test_pods.py",
    "tests/cluster/test_bootstrap.py",
    "tests/cluster/test_volumes.py",
    "tests/cluster/test_devices.py",
)
NOT_TRIED = "not tried"
TEXT = f"""# Version skew

pykubelet stands for the kubelet of Kubernetes {OURS}. Kubernetes allows a kubelet to be up to three minors older than
its API server and never newer; the row above ours is there to know what would happen. Made by
`python -m conformance.skew` from `conformance/results/skew.json`.

## API servers
The cluster tests of the agent and of its client, with the API server of that minor (the other programs of the control
plane are of {OURS}):

"""
CONFIGURATION = """
## Configuration
KubeletConfiguration `v1beta1` written for a kubelet of that minor, against the fields known here:

"""
RULE = """
A field that is not known is left out with a warning when the node belongs to a cluster (`--kubeconfig`), in the main
file and in drop-ins: tools write these files for the minor of the cluster. Without a cluster it is an error that names
the field. Unknown flags and feature gates are always errors, as upstream
([decision 4](decisions/004-strict-settings.md)).
"""


def kept() -> dict[str, Any]:
    return dict(json.loads(KEPT.read_text())) if KEPT.exists() else {"api_servers": {}, "configuration": {}}


def keep(part: str, minor: str, found: Mapping[str, object]) -> None:
    """Put one result into the committed file."""
    everything = kept()
    rows = everything[part]
    rows[minor] = found
    everything[part] = {each: rows[each] for each in sorted(rows)}
    KEPT.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def page(found: Mapping[str, Any]) -> str:
    """docs/skew.md."""
    servers, fields = found["api_servers"], found["configuration"]
    first = ["| API server | tests | failed | passed at the second try, alone | commit |", "|---|---|---|---|---|"]
    first += [_server_row(minor, servers.get(minor)) for minor in MINORS]
    second = ["| minor | fields | not known here | only here |", "|---|---|---|---|"]
    second += [_fields_row(minor, fields.get(minor)) for minor in MINORS]
    return TEXT + "\n".join(first) + "\n" + CONFIGURATION + "\n".join(second) + "\n" + RULE


def _server_row(minor: str, run: Mapping[str, Any] | None) -> str:
    if run is None:
        return f"| {minor} | {NOT_TRIED} | | | |"
    failed, again = (
        ", ".join(f"`{name.removeprefix('tests/')}`" for name in run[key]) or "none" for key in ("failed", "second_try")
    )
    return f"| {run['version']} | {run['passed'] + len(run['failed'])} | {failed} | {again} | {run['commit']} |"


def _fields_row(minor: str, compared: Mapping[str, Any] | None) -> str:
    if compared is None:
        return f"| {minor} | {NOT_TRIED} | | |"
    added, gone = (", ".join(f"`{name}`" for name in compared[key]) or "none" for key in ("unknown", "only_here"))
    return f"| {compared['version']} | {compared['fields']} | {added} | {gone} |"


def run_tests(minor: str) -> dict[str, object]:
    """The cluster tests against an API server of this minor; those that fail are run once more, alone."""
    target = "controlplane" if minor == OURS else f"apiserver-{minor}"
    built = subprocess.run([ROOT / "tools" / "build-go.sh", target], stdout=subprocess.PIPE, text=True, check=True)
    program = Path(built.stdout.splitlines()[-1]) / "kube-apiserver"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    environ = dict(os.environ)
    if minor != OURS:
        environ["PYKUBELET_TEST_APISERVER"] = minor
    outcomes = _outcomes(TESTS, environ)
    first = [name for name, passed in outcomes.items() if not passed]
    if first:
        outcomes |= _outcomes(first, environ)
    commit = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {
        "version": said.stdout.split()[-1],
        "commit": commit.stdout.strip(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "passed": sum(outcomes.values()),
        "second_try": sorted(name for name in first if outcomes[name]),
        "failed": sorted(name for name, passed in outcomes.items() if not passed),
    }


def _outcomes(tests: Sequence[str], environ: Mapping[str, str]) -> dict[str, bool]:
    """Test -> whether it passed; what was left out is not there."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run([*pytest, "-m", "node or cluster", *tests], cwd=ROOT, env=environ, check=False)
        cases = [case for case in xml.parse(report).iter("testcase") if case.find("skipped") is None]
    return {_name(case): case.find("failure") is None and case.find("error") is None for case in cases}


def _name(case: xml.Element) -> str:
    """As pytest takes it: the file, and the test in it."""
    return f"{(case.get('classname') or '').replace('.', '/')}.py::{case.get('name')}"


def compare_fields(modules: Path) -> dict[str, dict[str, object]]:
    """How KubeletConfiguration of each minor differs from ours."""
    ours = set(config_fields(modules, VERSION))
    compared: dict[str, dict[str, object]] = {}
    for minor in MINORS:
        version = VERSION if minor == OURS else _version_of(minor)
        if version:
            theirs = set(config_fields(modules, version))
            differ = {"unknown": sorted(theirs - ours), "only_here": sorted(ours - theirs)}
            compared[minor] = {"version": f"v1.{version}", "fields": len(theirs), **differ}
    return compared


def _version_of(minor: str) -> str:
    """The release of this minor that we build, as 37.1; "" for a minor that we do not."""
    module = ROOT / "tests" / f"apiserver-{minor}" / "go.mod"
    found = (
        re.search(r"^require k8s\.io/kubernetes v1\.(\S+)", module.read_text(), re.MULTILINE)
        if module.exists()
        else None
    )
    return found[1] if found else ""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.skew", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("minor", nargs="?", choices=MINORS, help="run the tests against an API server of this minor")
    parser.add_argument("--fields", type=Path, metavar="FOLDER", help="compare the fields; FOLDER is Go's module cache")
    chosen = parser.parse_args(arguments)
    if chosen.minor:
        keep("api_servers", chosen.minor, run_tests(chosen.minor))
    if chosen.fields:
        for minor, compared in compare_fields(chosen.fields).items():
            keep("configuration", minor, compared)
    PAGE.write_text(page(kept()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
