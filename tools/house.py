"""Measure the shape of the source: sizes, Protocols, constructors, callbacks, words. Prints a table or JSON.

    .venv/bin/python tools/house.py [--json] [CHECKOUT ...]

With two checkouts the table has a column each. Code lines are lines without blanks, comments and docstrings; generated
files (`wire/`, `api/generated.py`) are left out everywhere.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

MOST_PARAMETERS = 8
MOST_LINES = 60
ROOT_FILES = ("kubelet.py", "app.py")
"""Where the composition root is, newest name first."""
PRIVATE_WORDS = (
    *("told", "tell", "tells", "telling", "seen", "asked", "asks", "handed", "hands", "books", "turns", "board"),
    *("nobody", "somebody", "anybody", "everybody", "whoever", "whatever"),
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(root: Path) -> Iterator[Path]:
    base = root / "src" / "pykubelet"
    for path in sorted(base.rglob("*.py")):
        if path.relative_to(base).parts[0] != "wire" and path.name != "generated.py":
            yield path


def docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Texts that stand alone: docstrings, and the remarks below attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node


def code_lines(text: str, tree: ast.AST) -> int:
    lines: set[int] = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in docstrings(tree):
        lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def parameters(function: Function) -> int:
    args = function.args
    named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    return len([each for each in named if each.arg not in ("self", "cls")])


def is_protocol(node: ast.ClassDef) -> bool:
    names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return any(isinstance(each, ast.Name) and each.id == "Protocol" for each in names)


def is_constructor(function: Function) -> bool:
    return function.name == "__init__"


def set_from_outside(node: ast.AST) -> bool:
    """`thing.on_x = ...`, where thing is not self: a callback that somebody else patches in."""
    if not isinstance(node, ast.Assign):
        return False
    for target in node.targets:
        if isinstance(target, ast.Attribute) and not (isinstance(target.value, ast.Name) and target.value.id == "self"):
            callable_value = isinstance(node.value, ast.Lambda | ast.Attribute | ast.Name)
            if callable_value and (target.attr.startswith("on_") or isinstance(node.value, ast.Lambda)):
                return True
    return False


def same_name_keywords(tree: ast.AST) -> int:
    """`f(clock=clock)`."""
    return sum(
        isinstance(node, ast.keyword) and isinstance(node.value, ast.Name) and node.value.id == node.arg
        for node in ast.walk(tree)
    )


def words_of(text: str) -> list[str]:
    """The words of a text, those inside of identifiers too."""
    return re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).lower())


def private_words(text: str) -> dict[str, int]:
    parts = words_of(text)
    return {word: parts.count(word) for word in PRIVATE_WORDS}


def measure(root: Path) -> dict[str, object]:
    files = list(sources(root))
    base = root / "src" / "pykubelet"
    lines, code, found_words = [], 0, dict.fromkeys(PRIVATE_WORDS, 0)
    protocols = small_protocols = wide = callbacks = keywords = 0
    long: list[tuple[int, str]] = []
    for path in files:
        text = path.read_text()
        tree = ast.parse(text)
        lines.append(len(text.splitlines()))
        code += code_lines(text, tree)
        for word, count in private_words(text).items():
            found_words[word] += count
        keywords += same_name_keywords(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and is_protocol(node):
                protocols += 1
                small_protocols += sum(isinstance(each, Function) for each in node.body) == 1
            elif isinstance(node, Function):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                long.append((length, f"{path.relative_to(base)}:{node.name}"))
                wide += is_constructor(node) and parameters(node) > MOST_PARAMETERS
            callbacks += set_from_outside(node)
    long.sort(reverse=True)
    composition = next(base / name for name in ROOT_FILES if (base / name).exists())
    root_text = composition.read_text()
    return {
        "packages": len({path.relative_to(base).parts[0] for path in files if path.parent != base}),
        "files": len(files),
        "median lines of a file": sorted(lines)[len(lines) // 2],
        "lines": sum(lines),
        "code lines": code,
        "Protocols": protocols,
        "Protocols with one method": small_protocols,
        f"constructors over {MOST_PARAMETERS} parameters": wide,
        f"functions over {MOST_LINES} lines": sum(length > MOST_LINES for length, _ in long),
        "longest function": f"{long[0][0]} ({long[0][1]})",
        "callbacks set from outside": callbacks,
        "x=x keywords": keywords,
        "composition root, lines": len(root_text.splitlines()),
        "x=x keywords in the root": same_name_keywords(ast.parse(root_text)),
        "hits of private words": sum(found_words.values()),
        **{f"  {word}": count for word, count in found_words.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("checkouts", nargs="*", type=Path, default=[Path(__file__).parent.parent])
    args = parser.parse_args()
    results = [measure(root) for root in args.checkouts]
    if args.json:
        json.dump(results, sys.stdout, indent=1)
        print()
        return
    for name in results[0]:
        print(f"{name:36}", *(f"{result[name]!s:>36}" for result in results))


if __name__ == "__main__":
    main()
