"""`$(VAR)` expansion as the API defines it: `$$` is a dollar, unknown names and open brackets stay as written."""

from __future__ import annotations

from collections.abc import Callable


def expand(text: str, lookup: Callable[[str], str | None]) -> str:
    if "$" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        following = text[position + 1] if position + 1 < len(text) else ""
        if char != "$" or not following:
            out.append(char)
            position += 1
        elif following == "$":
            out.append("$")
            position += 2
        elif following == "(":
            end = text.find(")", position + 2)
            if end < 0:
                out.append("$(")
                position += 2
                continue
            name = text[position + 2 : end]
            value = lookup(name)
            out.append(f"$({name})" if value is None else value)
            position = end + 1
        else:
            out.append(char + following)
            position += 2
    return "".join(out)


def expand_strict(text: str, lookup: Callable[[str], str | None]) -> tuple[str, list[str]]:
    """The expansion and the names that had no value, for paths that must not contain holes."""
    absent: list[str] = []

    def find(name: str) -> str | None:
        value = lookup(name)
        if not value:
            absent.append(name)
        return value

    return expand(text, find), absent
