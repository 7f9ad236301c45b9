"""Why a container could not be started, in the words its status shows."""

from __future__ import annotations

from pykubelet.model.errors import PykubeletError


class ConfigProblem(PykubeletError):
    """The container's config cannot be built from the spec and what it refers to."""


class StartProblem(PykubeletError):
    """A container could not be started; `reason` is what its waiting state shows."""

    def __init__(self, container: str, reason: str, message: str, *, retry_in: float | None = None) -> None:
        super().__init__(message)
        self.container = container
        self.reason = reason
        self.retry_in = retry_in
        """Seconds until trying again makes sense; None = the ordinary retry."""
