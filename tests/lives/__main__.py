"""Random lives by hand: `python -m tests.lives --seeds 100000 --jobs 2`, or one: `--seed 4711`."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

from tests.lives.history import History, make_history, to_text
from tests.lives.life import live
from tests.lives.shrink import shrink

SHM = Path("/dev/shm")
DEEP = 16
"""One life in so many ends with a search through the agent's whole memory."""


def a_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lives-", dir=SHM if SHM.is_dir() else None)


def try_seeds(seeds: range) -> list[tuple[int, list[str]]]:
    found = []
    with a_folder() as folder:
        for seed in seeds:
            if wrong := live(make_history(seed), Path(folder) / "life", deep=seed % DEEP == 0):
                found.append((seed, wrong))
    return found


def kind_of(wrong: list[str]) -> str:
    """What two failures have in common, whatever the names and times."""
    words = [word for word in wrong[0].split() if not any(letter.isdigit() for letter in word)]
    return " ".join(words[:7])


def report(history: History, wrong: list[str]) -> str:
    """The failure with the shortest history that has it, ready to be pasted into a test."""
    with a_folder() as folder:
        where = Path(folder) / "life"

        def fails(events: History) -> bool:
            found = live(events, where)
            return bool(found) and kind_of(found) == kind_of(wrong)

        if not fails(history):
            return f"{wrong[0]}\n(not again when played alone)\n{to_text(history)}"
        short = shrink(history, fails)
        return "\n".join([*live(short, where), "", to_text(short)])


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--seeds", type=int, default=2000, help="how many")
    asked.add_argument("--first", type=int, default=0, help="the first of them")
    asked.add_argument("--seed", type=int, help="only this one")
    asked.add_argument("--jobs", type=int, default=1)
    asked.add_argument("--most", type=int, default=5, help="failures of different kinds after which to stop")
    options = asked.parse_args()
    if options.seed is not None:
        options.first, options.seeds = options.seed, 1
    batch = max(1, min(50, options.seeds // options.jobs))
    last = options.first + options.seeds
    batches = [range(start, min(last, start + batch)) for start in range(options.first, last, batch)]
    began, done, failures = time.monotonic(), 0, 0
    kinds: dict[str, int] = {}
    with multiprocessing.Pool(options.jobs) as pool:
        for found, seeds in zip(pool.imap(try_seeds, batches), batches, strict=True):
            done += len(seeds)
            for seed, wrong in found:
                failures += 1
                kind = kind_of(wrong)
                kinds[kind] = kinds.get(kind, 0) + 1
                if kinds[kind] == 1:
                    print(f"\n--- seed {seed}: {report(make_history(seed), wrong)}\n", flush=True)
            seconds = time.monotonic() - began
            print(
                f"{done} lives, {failures} failures, {seconds:.0f} s, {1000 * seconds / done:.1f} ms a life", flush=True
            )
            if len(kinds) >= options.most:
                pool.terminate()
                break
    for kind, times in sorted(kinds.items(), key=lambda pair: -pair[1]):
        print(f"{times:6} {kind}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
