"""What the bench of restarts makes of its times."""

from __future__ import annotations

from bench.restarts import most, spread, summary, table

TIMES = [(10.0, 12.0, 20.0), (30.0, 31.0, 40.0)]


def test_the_worst_second_of_each_restart_is_found() -> None:
    sent = [9.0, 10.1, 12.0, 12.5, 12.9, 13.1, 35.0, 50.0]
    assert most(sent, TIMES) == [3, 1]
    assert most([], TIMES) == [0, 0]


def test_runs_are_put_together_in_one_table() -> None:
    runs = [summary(TIMES, [10.5, 11.0, 31.0], [10.5], 70), summary(TIMES[:1], [], [], 7)]
    text = table({"commit": "abc", "objects": 300, "runs": runs})
    assert "| restarts | 3 |" in text and "| changes meanwhile | 77 |" in text
    assert "| all current after the server was ready, median / worst | 8 s / 9 s |" in text
    assert spread([1.0, 5.0, 2.0], " s") == "2 s / 5 s"
