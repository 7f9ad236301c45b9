"""The errors of this package: a container's config cannot be made, or it cannot be started."""

from __future__ import annotations

from pykubelet.model.errors import PykubeletError
from pykubelet.model.problems import ContainerProblem, ProblemError


class ConfigProblem(PykubeletError):
    """The container's config cannot be built from the spec and what it refers to."""

    def __init__(self, message: str, *, missing: str = "") -> None:
        super().__init__(message)
        self.missing = missing
        """The object, or the key in it, that does not exist."""


class StartError(ProblemError):
    """A container, or the sandbox for it, could not be started."""

    def __init__(self, problem: ContainerProblem) -> None:
        super().__init__(problem)
        self.problem: ContainerProblem = problem
