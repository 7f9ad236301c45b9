"""Which signal causes what: every connection between subsystems that is not a plain call, in one place."""

from __future__ import annotations

from pykubelet.signals import CsiDriverRegistered, Signals, VolumesMounted, VolumesUnmounted
from pykubelet.sync.housekeeping import Housekeeping
from pykubelet.sync.worker import PodWorkers
from pykubelet.volumes.manager import VolumeManager


def connect(signals: Signals, *, workers: PodWorkers, volumes: VolumeManager, housekeeping: Housekeeping) -> None:
    signals.subscribe(VolumesMounted, lambda signal: workers.sync_now(signal.uid))
    signals.subscribe(VolumesUnmounted, lambda signal: housekeeping.soon())
    signals.subscribe(CsiDriverRegistered, lambda signal: volumes.driver_registered(signal.name))
