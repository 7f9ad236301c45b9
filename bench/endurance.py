"""Rounds of chaos on a real agent, runtime and API server, each followed by a look at everything that must hold.

    python -m bench.endurance --seed 1 --rounds 100 [--continue] [--first N] [--no-cluster] [--containerd2]
        [--within SECONDS]
    python -m bench.endurance --table

What a round does is made from the seed and its number (tests/bed/chaos/plan.py): pods come and go while the agent or
containerd is killed or frozen, the disk is full, the network silent, the clock set, one or several at once. Every
round is noted as a line of bench/endurance.jsonl; `--continue` goes on after the last one of the seed. A round with
violations leaves what is known about it in build/endurance/SEED-ROUND, and the next one begins on a new node;
`--first N --rounds 1` plays round N again, on a node with the pods that were wanted then. `--table` writes the table of
docs/endurance.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.report import HERE, commit, update_document
from tests.bed.chaos.node import Chaos, chaos_node
from tests.bed.chaos.plan import ALONE, CLUSTER, Round, plan_round, wanted_before
from tests.bed.cluster import Cluster, go_programs, running_cluster
from tests.bed.runtime import running_containerd

LINES = HERE / "endurance.jsonl"
EVIDENCE = HERE.parent / "build" / "endurance"
DOCUMENT = HERE.parent / "docs" / "endurance.md"
MARKS = ("<!-- endurance:begin -->", "<!-- endurance:end -->")
BED_LASTS = 60
"""Rounds after which a new runtime and agent are made: what containerd forgot when it was killed would add up."""
NODE_SILENCE = 60.0
LONG = 15.0
"""Seconds until all is at rest from which on it is noted what that took so long."""
Line = dict[str, Any]


def read_lines(path: Path = LINES) -> list[Line]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_round(lines: Sequence[Line], seed: int) -> int:
    return max((line["round"] + 1 for line in lines if line["seed"] == seed), default=0)


@contextmanager
def fresh_node(cluster: Cluster | None, wanted: dict[str, str], *, newer: bool) -> Iterator[Chaos]:
    """A node on which `wanted` runs; with `newer` on containerd 2."""
    programs = go_programs("containerd2") if newer else None
    runc = go_programs("runc") / "runc" if newer else None
    with running_containerd(programs, runc=runc) as containerd, chaos_node(containerd, cluster) as chaos:
        chaos.want(wanted)
        if found := chaos.settled():
            raise AssertionError(f"the node does not come up: {found}\n{chaos.agent.tail()}")
        yield chaos


class Endurance:
    def __init__(self, seed: int, *, cluster: Cluster | None, newer: bool, lines: Path) -> None:
        self._seed = seed
        self._cluster = cluster
        self._newer = newer
        self._lines = lines
        self._commit = commit()
        self.violated = 0

    def run(self, first: int, count: int, until: float) -> int:
        """Play the rounds from `first` on, until that time at most; how many were played."""
        number = first
        while number < first + count and time.monotonic() < until:
            number = self._run_on_one_node(number, min(first + count, number + BED_LASTS), until)
        return number - first

    def _run_on_one_node(self, number: int, end: int, until: float) -> int:
        troubles = _troubles(self._cluster)
        wanted = wanted_before(self._seed, number, troubles)
        with fresh_node(self._cluster, wanted, newer=self._newer) as chaos:
            while number < end and time.monotonic() < until:
                round = plan_round(self._seed, number, chaos.wanted, troubles)
                violated = self._play(chaos, round)
                number += 1
                if violated:
                    break
        return number

    def _play(self, chaos: Chaos, round: Round) -> bool:
        began, seen, refused = time.monotonic(), len(chaos.agent.log()), chaos.refused
        found = chaos.play(round)
        played = time.monotonic()
        found += chaos.settled()
        line: Line = {
            "seed": round.seed,
            "round": round.number,
            "kinds": list(round.kinds),
            "pods": len(chaos.wanted),
            "played": round_seconds(played - began),
            "settled": round_seconds(time.monotonic() - played),
            "violations": found,
            "refused": chaos.refused - refused,
            "cluster": self._cluster is not None,
            "containerd": "2" if self._newer else "1.6",
            "commit": self._commit,
        }
        if line["settled"] > LONG:
            line["awaited"] = chaos.awaited
        with self._lines.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            f"{round.seed}/{round.number} {', '.join(round.kinds)}: played {line['played']} s, "
            f"at rest after {line['settled']} s",
            *[f"\n  - {text}" for text in (*found, *line.get("awaited", ()))],
            flush=True,
        )
        self.violated += bool(found)
        if found or "awaited" in line:
            keep_evidence(chaos, round, line, seen)
        return bool(found)


def round_seconds(value: float) -> float:
    return round(value, 2)


def _troubles(cluster: Cluster | None) -> Sequence[str]:
    return ALONE if cluster is None else (*ALONE, *CLUSTER)


def keep_evidence(chaos: Chaos, round: Round, line: Line, seen: int) -> None:
    """What there is to know about a round that went wrong."""
    folder = EVIDENCE / f"{round.seed}-{round.number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "round.json").write_text(json.dumps({"line": line, "plan": asdict(round)}, indent=1))
    (folder / "agent.log").write_text(chaos.agent.log()[seen:])
    (folder / "containerd.log").write_text(chaos.containerd.log[-1_000_000:])
    if chaos.agent.status is None:
        (folder / "snapshot.txt").write_text(snapshot_text(chaos))


def snapshot_text(chaos: Chaos) -> str:
    try:
        world = chaos.look()
    except Exception as error:  # whatever is wrong with it is part of the evidence
        return f"nothing can be read: {error!r}"
    return "\n\n".join(f"{name}: {json.dumps(value, indent=1, default=str)}" for name, value in asdict(world).items())


# --- the table -----------------------------------------------------------------------------------------------------


def table(lines: Sequence[Line]) -> str:
    """Rounds by kind of trouble; a round with two kinds is in both rows."""
    rows = [("all", list(lines))]
    kinds = Counter(kind for line in lines for kind in line["kinds"])
    rows += [(kind, [line for line in lines if kind in line["kinds"]]) for kind in sorted(kinds)]
    rows.append(("two or three at once", [line for line in lines if len(line["kinds"]) > 1]))
    rows.append(("all, with the last commit", [line for line in lines if line["commit"] == lines[-1]["commit"]]))
    text = [
        "| trouble | rounds | at rest after, median | p99 | most | rounds with violations |",
        "|---|---|---|---|---|---|",
    ]
    for name, chosen in rows:
        rest = sorted(line["settled"] for line in chosen)
        bad = sum(bool(line["violations"]) for line in chosen)
        high = rest[min(len(rest) - 1, int(len(rest) * 0.99))]
        text.append(
            f"| {name} | {len(chosen)} | {statistics.median(rest):.1f} s | {high:.1f} s | {rest[-1]:.1f} s | {bad} |"
        )
    seeds = Counter(line["seed"] for line in lines)
    commits = Counter(line["commit"] for line in lines)
    text += [
        "",
        f"Seeds (rounds): {', '.join(f'{seed} ({count})' for seed, count in sorted(seeds.items()))}. "
        f"Commits (rounds): {', '.join(f'{name} ({count})' for name, count in commits.items())}. "
        f"With an API server: {sum(line['cluster'] for line in lines)} rounds; "
        f"with containerd 2: {sum(line['containerd'] == '2' for line in lines)}, the others with 1.6. "
        f"Time: {sum(line['played'] + line['settled'] for line in lines) / 60:.0f} min. "
        f"Ended containers that containerd refused to remove until it was restarted: "
        f"{sum(line['refused'] for line in lines)}.",
    ]
    bad = [line for line in lines if line["violations"]]
    text += ["", *(f"- {_where(line)}: {'; '.join(line['violations'])}" for line in bad)] if bad else []
    return "\n".join(text)


def _where(line: Line) -> str:
    return f"seed {line['seed']}, round {line['round']} ({', '.join(line['kinds'])}), commit {line['commit']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--continue", dest="go_on", action="store_true")
    parser.add_argument("--no-cluster", action="store_true")
    parser.add_argument("--containerd2", action="store_true", help="instead of Debian's")
    parser.add_argument("--within", type=float, default=24 * 3600.0, help="begin no round after so many seconds")
    parser.add_argument("--lines", type=Path, default=LINES)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        update_document(table(read_lines(options.lines)), DOCUMENT, MARKS)
        return 0
    until = time.monotonic() + options.within
    first = next_round(read_lines(options.lines), options.seed) if options.go_on else options.first
    with ExitStack() as stack:
        cluster = None if options.no_cluster else stack.enter_context(running_cluster(node_silence=NODE_SILENCE))
        run = Endurance(options.seed, cluster=cluster, newer=options.containerd2, lines=options.lines)
        played = run.run(first, options.rounds, until)
    print(f"{played} rounds, {run.violated} with violations")
    return 1 if run.violated else 0


if __name__ == "__main__":
    sys.exit(main())
