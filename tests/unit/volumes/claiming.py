"""Claims bound to persistent volumes, for tests."""

from __future__ import annotations

from typing import Any

from pykubelet.api.types import (
    ObjectMeta,
    ObjectReference,
    PersistentVolume,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    PersistentVolumeSpec,
    Volume,
)
from tests.unit.volumes.making import Objects


def bound(objects: Objects, name: str, *, read_only: bool = False, **source: Any) -> Volume:
    """A volume by claim `name`, bound to the persistent volume `pv-<name>` of this source."""
    objects.claims["default", name] = PersistentVolumeClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"),
        spec=PersistentVolumeClaimSpec(volume_name=f"pv-{name}"),
        status=PersistentVolumeClaimStatus(phase="Bound"),
    )
    spec = PersistentVolumeSpec(claim_ref=ObjectReference(uid=f"uid-{name}"), **source)
    objects.volumes[f"pv-{name}"] = PersistentVolume(metadata=ObjectMeta(name=f"pv-{name}"), spec=spec)
    claim = PersistentVolumeClaimVolumeSource(claim_name=name, read_only=read_only)
    return Volume(name=name, persistent_volume_claim=claim)
