"""Tables fit, and only status words get colours."""

from __future__ import annotations

import pytest

from pykubelet.cli import table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table.lines(["NAME", "X"], [["a", "1"], ["longer", "22"]], limit=None) == [
        "NAME     X",
        "a        1",
        "longer   22",
    ]


def test_a_line_is_cut_to_the_terminal_and_the_widest_column_gives() -> None:
    made = table.lines(["NAME", "MESSAGE"], [["web", "m" * 100]], limit=40)
    assert all(len(line) <= 40 for line in made)
    assert made[1] == "web    " + "m" * 32 + "…"


def test_line_breaks_do_not_break_the_table() -> None:
    assert table.lines(["A", "B"], [["x", "one\ntwo"]], limit=None)[1] == "x   one two"


@pytest.mark.parametrize(
    ("word", "colour"),
    [("Running", "green"), ("Completed", "green"), ("Pending", "yellow"), ("Init:0/2", "yellow"), ("Init:Error", "red"),
     ("CrashLoopBackOff", "red"), ("<none>", None)],
)  # fmt: skip
def test_colours(word: str, colour: str | None) -> None:
    assert table.colour_of(word) == colour


def test_a_status_and_an_address_are_cut_last() -> None:
    widths = [len("a-pod-with-a-long-name"), len("ImagePullBackOff"), len("10.203.121.3")]
    assert table.fitted(widths, 46, firm=[1, 2]) == [12, 16, 12]
    assert sum(table.fitted(widths, 36, firm=[1, 2])) + 2 * len(table.GAP) <= 36
    assert table.fitted(widths, 46) == [14, 14, 12]
