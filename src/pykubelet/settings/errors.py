"""The error that bad flags or bad configuration files raise, and the spelling hint both use.

One SettingsError carries every problem found, each a sentence that names the flag, file or field.
Does not cover what the rules are (validate.py) nor printing (the entry point does that).
"""

from __future__ import annotations

from collections.abc import Iterable

from pykubelet.model.errors import PykubeletError


class SettingsError(PykubeletError):
    """The agent cannot start with these settings. `problems` holds one sentence for each fault."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(printable(problem) for problem in problems)
        super().__init__("\n".join(self.problems))


def printable(text: str) -> str:
    """The text fit for one line of any terminal: names on a command line may hold anything."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def hint(wrong: str, known: Iterable[str]) -> str:
    """` (did you mean X?)` when a known name is close to the wrong one, else nothing."""
    # Imported here: only a start that fails needs it.
    from difflib import get_close_matches

    if len(wrong) > 100:
        return ""
    close = get_close_matches(wrong, list(known), n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""
