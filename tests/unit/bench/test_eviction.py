"""The verdict of the eviction benchmark."""

from __future__ import annotations

from bench.eviction import Samples, report


def test_the_worst_round_counts() -> None:
    go = Samples(shown=[4.0, 9.0], relieved=[5.0, 10.0])
    good = {"go": go, "pykubelet": Samples(shown=[0.5, 1.9], relieved=[0.6, 2.0])}
    lines, holds = report(good)
    assert holds and "1.90 s" in lines[-1] and "9.00" in lines[1]
    assert not report({"go": go, "pykubelet": Samples(shown=[0.5, 2.1], relieved=[1.0, 1.0])})[1]
    assert not report({"go": go, "pykubelet": Samples(shown=[0.5], relieved=[1.0], innocent=1)})[1]
