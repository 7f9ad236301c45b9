"""`$(VAR)` expansion: what is replaced, what stays, and that hostile text costs no more than its length."""

from __future__ import annotations

import pytest

from pykubelet.model.expand import ExpansionTooLong, expand, expand_strict

VALUES = {"A": "1", "B": "$(A)", "EMPTY": "", "with space": "x", "$(A": "odd"}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(A)z", "x1y1z"),
        ("$(B)", "$(A)"),  # values are not expanded again
        ("$(EMPTY)!", "!"),
        ("$(NOPE)", "$(NOPE)"),
        ("$()", "$()"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        ("$", "$"),
        ("cost: 5$", "cost: 5$"),
        ("$A", "$A"),
        ("$é", "$é"),
        ("$(A", "$(A"),
        ("$(A$$", "$(A$"),
        ("$($(A)", "odd"),
        ("$(A))", "1)"),
        ("$(with space)", "x"),
        (")$(A)(", ")1("),
        ("$(A)$", "1$"),
    ],
)
def test_expand(text: str, wanted: str) -> None:
    assert expand(text, VALUES.get) == wanted


def test_a_megabyte_of_open_brackets_is_quick() -> None:
    text = "$(" * 500_000
    assert expand(text, VALUES.get) == text


@pytest.mark.parametrize(
    ("text", "absent"), [("$(A)", []), ("$(NOPE)/$(A)/$(EMPTY)", ["NOPE", "EMPTY"]), ("plain", [])]
)
def test_strict_names_what_has_no_value(text: str, absent: list[str]) -> None:
    assert expand_strict(text, VALUES.get, limit=100)[1] == absent


def test_what_grows_beyond_its_limit_is_refused_before_it_is_made() -> None:
    asked = 0

    def value(name: str) -> str:
        nonlocal asked
        asked += 1
        return "x" * 1000

    with pytest.raises(ExpansionTooLong, match="longer than 5000 letters"):
        expand("$(A)" * 100_000, value, limit=5000)
    assert asked == 6
