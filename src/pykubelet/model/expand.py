"""`$(VAR)` expansion as the API defines it: `$$` is a dollar, unknown names and open brackets stay as written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import AnyContainer

MOST_EXPANDED: Final = 6 << 20
"""No program starts with more variables and arguments than this, in letters (Linux: three quarters of 8 MiB)."""


class ExpansionTooLong(PykubeletError):
    """What variables were to be filled into grew beyond every use."""


def expand(text: str, lookup: Callable[[str], str | None], *, limit: int = MOST_EXPANDED) -> str:
    """Raises ExpansionTooLong beyond `limit` letters: values that name one another twice double with every step."""
    start = text.find("$")
    if start < 0:
        return text
    out: list[str] = []
    position = size = 0
    # Once no bracket closes, none will further on: text made of "$(" alone must not cost its length squared.
    closable = True
    while 0 <= start < len(text) - 1:
        out.append(text[position:start])
        following = text[start + 1]
        end = text.find(")", start + 2) if following == "(" and closable else -1
        if end >= 0:
            name = text[start + 2 : end]
            value = lookup(name)
            out.append(f"$({name})" if value is None else value)
            size += len(out[-1])
            if size > limit:
                raise ExpansionTooLong(f"longer than {limit} letters once its variables are filled in")
            position = end + 1
        else:
            closable = closable and following != "("
            out.append("$" if following == "$" else f"${following}")
            position = start + 2
        start = text.find("$", position)
    out.append(text[position:])
    return "".join(out)


def expand_strict(text: str, lookup: Callable[[str], str | None], *, limit: int) -> tuple[str, list[str]]:
    """The expansion and the names that had no value, for paths that must not contain holes."""
    absent: list[str] = []

    def find(name: str) -> str | None:
        value = lookup(name)
        if not value:
            absent.append(name)
        return value

    return expand(text, find, limit=limit), absent


def literal_env(container: AnyContainer) -> dict[str, str]:
    """Only values written out in the spec, which is all that exec probes may expand."""
    return {variable.name: variable.value or "" for variable in container.env if variable.value_from is None}


def expand_command(container: AnyContainer, command: Sequence[str]) -> Sequence[str]:
    """A probe's command with `$(VAR)` filled in; probes see only the values written out in the spec."""
    return expand_words(command, literal_env(container))


def expand_words(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Raises ExpansionTooLong when all words together become longer than any program can be started with."""
    found: list[str] = []
    left = MOST_EXPANDED
    for word in words:
        found.append(expand(word, values.get, limit=left))
        left -= len(found[-1])
    return found
