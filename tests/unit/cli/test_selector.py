"""Label selectors: which labels fit."""

from __future__ import annotations

import click
import pytest

from pykubelet.cli.get import parse_selector

LABELS = {"app": "web", "tier": "front"}


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("app=web", True),
        ("app==web, tier = front", True),
        ("app=web,tier=back", False),
        ("app!=web", False),
        ("track!=new", True),
        ("app", True),
        ("track", False),
        ("!track", True),
        ("! app", False),
        ("app in (web, db),tier", True),
        ("app in (db)", False),
        ("app notin (db,cache)", True),
        ("app notin (web)", False),
        ("track notin (a)", True),
    ],
)
def test_selectors(text: str, fits: bool) -> None:
    assert parse_selector(text)(LABELS) is fits


@pytest.mark.parametrize("text", ["=", "app=web=x", "app in web", "a b", "app in (a"])
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(click.UsageError, match="no label selector"):
        parse_selector(text)
