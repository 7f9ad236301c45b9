"""`python -m bench`: measure the bare runtime, the Go kubelet and pykubelet in one go and judge by the budgets.

Exit status 0 when every budget holds, 1 when one does not, 2 when something could not be measured.
Needs root and what `tools/setup.sh test` installs and builds. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable

from bench import decode, report
from bench.measure import TookTooLong
from bench.pods import Shape
from bench.scenario import QUICK, Figures, Run, Sizes
from bench.stage import Stage, open_stage
from bench.subjects import WIDTHS, Agent, Floor, Subject, go_kubelet, pykubelet

from pykubelet.model.errors import PykubeletError
from pykubelet.standalone import programs

SUBJECTS: dict[str, Callable[[Stage, Shape], Subject]] = {"floor": Floor, "go": go_kubelet, "pykubelet": pykubelet}
DECODE = "decode"


def main() -> int:
    options = parse()
    where = report.machine(report.containerd_version(programs.find_runtime().containerd))
    where["volumes"] = "one hostPath volume each" if options.volume else "no volumes"
    chosen = options.only or [*SUBJECTS, DECODE]
    began, sizes = time.monotonic(), QUICK if options.quick else Sizes()
    try:
        results, faults = asyncio.run(measure(chosen, sizes, volume=options.volume))
    except PykubeletError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if DECODE in chosen:
        results.setdefault("pykubelet", Figures()).add("decode", decode.measure()["ratio"])
    where["rounds"], where["commit"] = sizes.rounds, report.commit()
    if "floor" in results:
        widths = [str(width) for width in WIDTHS]
        where["floor"] = {figure: results["floor"].keep_best(figure, widths) for figure in ("burst", "delete")}
    rows = report.judge(results)
    report.write_json(results, where, rows)
    if options.markdown:
        report.update_document(report.markdown(rows, where))
    print(report.text_table(rows))
    for fault in faults:
        print(f"bench: {fault}", file=sys.stderr)
    print(f"{time.monotonic() - began:.0f} s, every sample in {report.RESULTS.relative_to(report.HERE.parent)}")
    return 2 if faults else 1 if any(row.verdict is False for row in rows) else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    choices = [*SUBJECTS, DECODE]
    parser.add_argument("--only", action="append", choices=choices, help="measure this alone; may be repeated")
    parser.add_argument("--quick", action="store_true", help="few samples, for trying the benchmark itself")
    parser.add_argument("--no-volume", dest="volume", action="store_false", help="pods without any volume")
    parser.add_argument("--markdown", action="store_true", help="put the table into docs/performance.md")
    return parser.parse_args()


async def measure(chosen: list[str], sizes: Sizes, *, volume: bool) -> tuple[dict[str, Figures], list[str]]:
    """What could be measured, and a sentence for each subject that failed on the way."""
    results: dict[str, Figures] = {}
    faults: list[str] = []
    subjects = [name for name in SUBJECTS if name in chosen]
    if not subjects:
        return results, faults
    async with open_stage() as stage:
        host_folder = stage.folder / "data"
        host_folder.mkdir()
        shape = Shape(host_folder if volume else None)
        runs = {name: Run(SUBJECTS[name](stage, shape), stage, sizes) for name in subjects}
        for number in range(sizes.rounds):
            shift = number % len(subjects)
            for name in subjects[shift:] + subjects[:shift]:
                print(f"bench: round {number + 1}, {name} ...", file=sys.stderr, flush=True)
                results[name] = runs[name].figures
                try:
                    await runs[name].round(number)
                except (TookTooLong, PykubeletError) as error:
                    faults.append(f"{name}, round {number + 1}: {error}")
                    if isinstance(agent := runs[name].subject, Agent):
                        faults.append(f"the end of its log:\n{agent.last_lines()}")
                await stage.clean()
    return results, faults


if __name__ == "__main__":
    sys.exit(main())
