"""Errors of volumes. Texts are shown to users in events and statuses."""

from __future__ import annotations

from pykubelet.model.errors import PykubeletError


class VolumeProblem(PykubeletError):
    """An operation on a volume failed. The text names what is missing."""

    def __init__(self, text: str, *, missing: str = "") -> None:
        super().__init__(text)
        self.missing = missing
        """The object, or the key in it, that the volume needs and that does not exist."""


class ClaimProblem(VolumeProblem):
    """The persistent volume claim of a volume cannot be used yet."""


class GrowthProblem(VolumeProblem):
    """The volume could not be expanded."""


class VolumesNotReady(VolumeProblem):
    """The wait for a pod's volumes ended before all of them were mounted, or unmounted."""


class NodeIsFull(VolumesNotReady):
    """No more volumes can be attached to this node, so the pod cannot run here."""
