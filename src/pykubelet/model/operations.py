"""What the pod sources tell the sync loop: which pods came, changed, went.

One value per kind of change and source, in the order the loop must handle them. How the changes are
found is in `sources/mux.py`; what they cause is in `sync/loop.py`.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.model.pod import Source


class Operation(enum.Enum):
    ADD = "add"
    """Pods this source did not have before. Empty on the first delivery of a source without pods."""
    UPDATE = "update"
    """Spec, labels, annotations or deletion fields changed."""
    REMOVE = "remove"
    """The source has these pods no more; the pods are as they were last known."""
    DELETE = "delete"
    """Changed, and deletion has been requested (graceful)."""
    RECONCILE = "reconcile"
    """Only the status at the source differs from what was known."""


class PodsChanged(Struct, frozen=True, kw_only=True):
    op: Operation
    pods: tuple[Pod, ...]
    source: Source
