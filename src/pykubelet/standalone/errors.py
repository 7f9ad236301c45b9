"""What can go wrong while bringing up the private runtime, in words for the person at the terminal."""

from __future__ import annotations

from pykubelet.model.errors import PykubeletError


class StandaloneError(PykubeletError):
    """The private runtime, its network or its images could not be set up. The text says what to do."""


class MissingProgram(StandaloneError):
    """A program this machine needs is not installed; the text names the packages that bring it."""
