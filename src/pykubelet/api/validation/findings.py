"""What validation found: one `FieldError` a problem, gathered by `Findings`.

Covers: the value objects, the collector and the few checks that read the same everywhere
(required, one of, range). Does not cover: any rule of a particular field; those live beside
the part of the pod they belong to.
"""

from collections.abc import Collection, Sized

from msgspec import Struct

SHOWN = 60


class FieldError(Struct, frozen=True, kw_only=True):
    """One problem: `path` names the field as the manifest spells it (empty for the whole document)."""

    path: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.path}: {self.message}" if self.path else self.message)


def show(value: object) -> str:
    """A value as it may appear in a message: one line, quoted when it is text, never long."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        # int() of a huge literal cannot be printed in decimal (Python limits the digits) and is of no help.
        return str(value) if abs(value) < 10**30 else "a huge number"
    if not isinstance(value, str):
        return printable(str(value))
    return f'"{printable(value)}"'


def printable(text: str) -> str:
    """Text without control characters or line breaks, cut to a readable length."""
    if len(text) > SHOWN:
        text = text[: SHOWN - 1] + "…"
    return one_line(text)


def one_line(text: str) -> str:
    """Text that can be printed anywhere: line breaks, control characters and half surrogates escaped."""
    if text.isprintable():
        return text
    return "".join(ch if ch.isprintable() else ch.encode("unicode_escape").decode() for ch in text)


def key_path(path: str, key: str) -> str:
    """The path of one entry of a map: `metadata.labels[app]`."""
    return f"{path}[{printable(key)}]"


class Findings:
    """Gathers every problem of one object; never stops at the first."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[FieldError] = []

    def all(self) -> list[FieldError]:
        return list(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def add(self, path: str, message: str) -> None:
        self._found.append(FieldError(path=path, message=message))

    def check(self, path: str, complaint: str | None) -> None:
        """Report the complaint of a predicate of `names`, if it has one."""
        if complaint is not None:
            self.add(path, complaint)

    def required(self, path: str, value: Sized | int | None) -> bool:
        """True when the value is there; an empty text, list or map counts as missing."""
        if value is None or (isinstance(value, Sized) and not len(value)):
            self.add(path, "required")
            return False
        return True

    def choice(self, path: str, value: str | None, allowed: Collection[str]) -> None:
        """The value, if set, must be one of a few words."""
        if value is not None and value not in allowed:
            self.add(path, f"must be {spoken(allowed)}, not {show(value)}")

    def between(self, path: str, value: int | None, low: int, high: int) -> None:
        if value is not None and not low <= value <= high:
            self.add(path, f"must be {low}..{high}, not {show(value)}")

    def at_least(self, path: str, value: int | None, low: int) -> None:
        if value is not None and value < low:
            self.add(path, f"must be {low} or more, not {show(value)}")


def spoken(words: Collection[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    listed = [word or '""' for word in words]
    if len(listed) < 2:
        return "".join(listed)
    return f"{', '.join(listed[:-1])} or {listed[-1]}"
