"""How human commands fail: one line for the person, one exit status for scripts.

0 is good; 1: what was asked for is not there, was refused or went wrong; 2: the command was used wrongly; 3: no agent
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
