"""What every subsystem works with, as one value: settings, clock, events, the life recorder, metrics and signals."""

from __future__ import annotations

from msgspec import Struct, field

from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.events import EventRecorder
from pykubelet.recorder import LifeRecorder
from pykubelet.settings.settings import Settings
from pykubelet.signals import Signals


class Context(Struct, frozen=True):
    settings: Settings
    node_name: str
    clock: Clock
    events: EventRecorder
    recorder: LifeRecorder
    metrics: Registry
    started: float = 0.0
    """When the agent started, in unix seconds."""
    signals: Signals = field(default_factory=Signals)
