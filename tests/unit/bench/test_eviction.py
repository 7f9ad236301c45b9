"""The verdict of the eviction benchmark."""

from __future__ import annotations

from dataclasses import asdict

from bench.eviction import Samples, report, table


def test_the_worst_round_counts() -> None:
    go = Samples(shown=[4.0, 9.0], relieved=[5.0, 10.0])
    good = {"go": go, "pykubelet": Samples(shown=[0.5, 1.9], relieved=[0.6, 2.0])}
    lines, holds = report(good)
    assert holds and "1.90 s" in lines[-1] and "9.00" in lines[1]
    assert not report({"go": go, "pykubelet": Samples(shown=[0.5, 2.1], relieved=[1.0, 1.0])})[1]
    assert not report({"go": go, "pykubelet": Samples(shown=[0.5], relieved=[1.0], innocent=1)})[1]


def test_what_was_kept_is_shown_with_its_spread() -> None:
    where = dict.fromkeys(("date", "cpus", "cpu", "memory", "kernel", "containerd", "load"), "x")
    samples = {"go": Samples(failures=["gave up"]), "pykubelet": Samples(shown=[0.5, 1.9, 0.7], relieved=[1.0])}
    shown = table({"commit": "abc", "machine": where, "samples": {name: asdict(e) for name, e in samples.items()}})
    assert "| crossed → shown as evicted | evicted nobody | 0.70 s (0.50 to 1.90) | 2 s |" in shown
    assert "commit abc" in shown and "3 evictions by each agent" in shown
