"""How human commands fail: one line for the person, one exit status for scripts.

0 is good; 1: the object does not exist, the request was refused or failed; 2: the command was used wrongly; 3: no agent
answers; 4: `explain` found trouble. `exec` ends with the status of the command it ran.
"""

from __future__ import annotations

from pykubelet.model.errors import PykubeletError

FAILED, USAGE, NO_AGENT, TROUBLE = 1, 2, 3, 4


class CommandFailed(PykubeletError):
    """Ends the command with this text and status."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.status = status


def known_failure(group: BaseExceptionGroup[BaseException]) -> CommandFailed | None:
    """The failure behind a group of tasks that ended together; None when one of them is a bug."""
    known, unknown = group.split(PykubeletError)
    if known is None or unknown is not None:
        return None
    error: BaseException = known
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, CommandFailed) else CommandFailed(str(error))
