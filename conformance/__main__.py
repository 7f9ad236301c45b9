"""`python -m conformance`: run Kubernetes' own node tests against an agent and print what passed.

Exit status 0 when every spec that is ours to pass passed and nothing was left behind, 1 when not, 2 when the bed
could not be had. Needs root and what `tools/setup.sh test` installs and builds. See docs/conformance.md.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest
from conformance import report, suite, watch
from conformance.bed import Bed, running_bed
from conformance.report import GO, OURS, RUNTIMES

from pykubelet.model.errors import PykubeletError


def main() -> int:
    options = parse()
    if options.document:
        report.put_between(report.BEGIN, report.END, report.document())
        return 0
    folder = Path(tempfile.mkdtemp(prefix="pklconf-"))
    keep = options.keep
    try:
        with running_bed(options.agent, options.runtime, folder) as bed:
            outcome = measured(bed, folder, options)
            version = bed.runtime.version
    except (pytest.fail.Exception, PykubeletError, RuntimeError) as error:
        print(f"conformance: {error}; logs are in {folder}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"conformance: interrupted; logs are in {folder}", file=sys.stderr)
        return 2
    whole = not options.focus and not options.skip
    file = report.result_file(options.agent, options.runtime) if whole else report.RESULTS / "latest.json"
    report.write(outcome, file, version)
    print(report.table(outcome))
    print(f"every spec is in {file}")
    if keep or outcome.ours_failed or outcome.faults or not outcome.specs:
        print(f"logs are in {folder}")
    else:
        shutil.rmtree(folder)
    return 0 if outcome.good else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__.splitlines()[0])
    parser.add_argument("--agent", choices=(OURS, GO), default=OURS)
    parser.add_argument("--runtime", choices=RUNTIMES, default="1.6", help="Debian's containerd, 2.x, or CRI-O")
    parser.add_argument("--focus", default="", help="only specs whose names match this pattern")
    parser.add_argument("--skip", default="", help="no specs whose names match this pattern")
    parser.add_argument("--parallel", type=int, default=suite.PARALLEL, help="how many specs at once")
    parser.add_argument("--keep", action="store_true", help="keep the logs when all is well, too")
    parser.add_argument("--document", action="store_true", help="run nothing: write the table in docs/conformance.md")
    return parser.parse_args()


def measured(bed: Bed, folder: Path, options: argparse.Namespace) -> report.Outcome:
    leaks: list[str] = []
    with watch.watching(bed.agent.pid) as watched:
        began = time.monotonic()
        said = suite.run(bed, folder, focus=options.focus, skip=options.skip, parallel=options.parallel)
        seconds = time.monotonic() - began
        if options.agent == OURS:  # what others leave behind is theirs to know
            leaks += watch.settle(bed).sentences()
    footprints = watch.summary(watched, [spec.ended for spec in said.specs])
    if options.agent == OURS:
        leaks += watch.growth(footprints)
    return report.Outcome(
        agent=options.agent,
        runtime=options.runtime,
        focus=options.focus,
        seconds=seconds,
        specs=said.specs,
        footprints={name: watch.shown(each) for name, each in footprints.items()},
        leaks=leaks,
        faults=said.faults(),
        excused=report.failed_by_go(options.runtime),
    )


if __name__ == "__main__":
    sys.exit(main())
