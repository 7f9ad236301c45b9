"""Errors of volumes. Texts are shown to users in events and statuses."""

from __future__ import annotations

from pykubelet.model.errors import PykubeletError


class VolumeProblem(PykubeletError):
    """A volume cannot be had, at least now. The text names what is missing."""

    def __init__(self, text: str, *, missing: str = "") -> None:
        super().__init__(text)
        self.missing = missing
        """The object, or the key in it, that the volume needs and that does not exist."""


class ClaimProblem(VolumeProblem):
    """The persistent volume claim behind a volume cannot be used yet."""


class GrowthProblem(VolumeProblem):
    """The volume is there, but not as big as it should be."""


class VolumesNotReady(VolumeProblem):
    """The wait for a pod's volumes ended before all of them were mounted, or unmounted."""
