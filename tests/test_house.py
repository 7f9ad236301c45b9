"""The shape of the source: short functions, narrow constructors, Kubernetes' words. `tools/house.py` measures it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tools.house import MOST_LINES, MOST_PARAMETERS, Function, parameters, sources, words_of

ROOT = Path(__file__).parent.parent
BASE = ROOT / "src" / "pykubelet"

PRIVATE = frozenset(("told", "handed", "books", "board", "nobody", "somebody", "anybody", "everybody", "whoever"))
"""Words of an older private language; CONTRIBUTING has a glossary of what is said instead."""
SHOWN = frozenset(
    (
        "explain/container_causes.py",  # texts for people
        "cm/metrics.py",
        "sync/pod_metrics.py",
        "stats/cadvisor.py",
        "settings/gates.py",
        "settings/node_flags.py",
        "standalone/images.py",  # the user of this name
    )
)
"""Files in which such a word stands in a text that is shown, and may."""


@cache
def functions() -> list[tuple[str, Function]]:
    return [
        (f"{path.relative_to(BASE)}:{node.lineno} {node.name}", node)
        for path in sources(ROOT)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, Function)
    ]


def test_functions_are_short() -> None:
    lengths = {place: (node.end_lineno or node.lineno) - node.lineno + 1 for place, node in functions()}
    assert {place: length for place, length in lengths.items() if length > MOST_LINES} == {}


def test_constructors_are_narrow() -> None:
    widths = {place: parameters(node) for place, node in functions() if node.name == "__init__"}
    assert {place: width for place, width in widths.items() if width > MOST_PARAMETERS} == {}


def test_names_and_comments_use_plain_words() -> None:
    found = []
    for path in sources(ROOT):
        if path.relative_to(BASE).as_posix() in SHOWN:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if PRIVATE.intersection(words_of(line)):
                found.append(f"{path.relative_to(BASE)}:{number}: {line.strip()}")
    assert found == []


def test_the_composition_root_is_a_short_list() -> None:
    assert len((BASE / "kubelet.py").read_text().splitlines()) < 100
