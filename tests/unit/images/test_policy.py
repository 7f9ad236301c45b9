"""Pull policies as tables."""

from __future__ import annotations

import pytest

from pykubelet.images.pull import Choice, choose, effective_policy, looks_first
from pykubelet.images.reference import parse

SHA = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("policy", "usable", "waiting", "expected"),
    [
        ("Always", False, False, Choice.PULL),
        ("Always", True, False, Choice.PULL),
        ("Always", True, True, Choice.WAIT),
        ("Always", False, True, Choice.WAIT),
        ("IfNotPresent", True, False, Choice.USE),
        ("IfNotPresent", True, True, Choice.USE),
        ("IfNotPresent", False, False, Choice.PULL),
        ("IfNotPresent", False, True, Choice.WAIT),
        ("Never", True, False, Choice.USE),
        ("Never", True, True, Choice.USE),
        ("Never", False, False, Choice.REFUSE),
        ("Never", False, True, Choice.REFUSE),
    ],
)
def test_choice(policy: str, usable: bool, waiting: bool, expected: Choice) -> None:
    assert choose(policy, usable=usable, waiting=waiting) is expected


@pytest.mark.parametrize(
    ("policy", "image", "expected"),
    [
        (None, "busybox", "Always"),
        ("", "busybox:latest", "Always"),
        (None, "busybox:1", "IfNotPresent"),
        (None, f"busybox@{SHA}", "IfNotPresent"),
        (None, f"busybox:latest@{SHA}", "IfNotPresent"),
        ("Never", "busybox", "Never"),
    ],
)
def test_default_policy(policy: str | None, image: str, expected: str) -> None:
    assert effective_policy(policy, parse(image)) == expected


def test_only_always_does_not_look() -> None:
    assert [looks_first(p) for p in ("Always", "IfNotPresent", "Never")] == [False, True, True]
