"""Signals between subsystems: frozen values, published where the fact is known and handled as `reactions.py` says.

A signal is a fact, not a request. `publish` calls the subscribers at once, in the order in which they subscribed, so
a handler must be quick and must not wait. Signals carry no state of their own: it is in the pod's record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.kube.port import Change
from pykubelet.model.pod import ProbeKind, ProbeOutcome

logger = logging.getLogger(__name__)

S = TypeVar("S", bound="Signal")


class Signal(Struct, frozen=True):
    """Base of all signals."""


class PodSignal(Signal, frozen=True):
    """Something happened to one pod."""

    uid: str


# --- runtime (PLEG) ---------------------------------------------------------------------------------


class RuntimeSignal(PodSignal, frozen=True, kw_only=True):
    """A container or sandbox is not as it was at the last inspection."""

    container_id: str
    """A sandbox's id when `sandbox` is true."""
    name: str = ""
    """The container's name; empty for sandboxes."""
    sandbox: bool = False
    requested: bool = False
    """Found by an inspection that the pod's worker requested, which therefore has the new status in hand."""


class ContainerStarted(RuntimeSignal, frozen=True, kw_only=True):
    pass


class ContainerDied(RuntimeSignal, frozen=True, kw_only=True):
    pass


class ContainerRemoved(RuntimeSignal, frozen=True, kw_only=True):
    pass


class InspectionRecovered(PodSignal, frozen=True):
    """A pod that could not be inspected was inspected again, and nothing else changed."""


class RuntimeChanged(Signal, frozen=True):
    """The runtime answers again after having been away, or its conditions changed."""


# --- pods --------------------------------------------------------------------------------------------


class PodSetChanged(Signal, frozen=True):
    """A source added, changed or removed pods, or an orphan was found: housekeeping may have something to do."""


class PodUpdated(PodSignal, frozen=True):
    """A source changed the pod, or asked for its end."""


class PodFinished(PodSignal, frozen=True):
    """Nothing of the pod is left to do."""


class PodRestarts(PodSignal, frozen=True):
    """A pod whose life is over gets another one under the same UID."""


class ProbeResultChanged(PodSignal, frozen=True, kw_only=True):
    kind: ProbeKind
    container_id: str
    outcome: ProbeOutcome


class PodStatusChanged(PodSignal, frozen=True):
    """The reported status has changed."""


# --- the API server ---------------------------------------------------------------------------------


class NodeStatusChanged(Signal, frozen=True):
    """Something that the Node's status shows has changed."""


class ObjectChanged(Signal, frozen=True):
    """An object of the API server that pods refer to was first read, came, changed or went."""

    kind: str
    namespace: str
    name: str
    uids: Sequence[str] = ()
    """Pods that refer to it."""


class ApiPodObserved(Signal, frozen=True):
    """The API server showed a pod of this node, possibly a mirror."""

    change: Change[Pod]


class NodeRead(PodSignal, frozen=True):
    """The Node was read anew for a pod that its labels would have kept out."""


class VolumesMounted(PodSignal, frozen=True):
    """The last missing volume of a pod was mounted while no sync waited for it."""


class VolumesUnmounted(PodSignal, frozen=True):
    """Nothing of a pod is mounted any more."""


class CsiDriverRegistered(Signal, frozen=True):
    """A CSI driver registered, for the first time or again."""

    name: str


class DeviceHealthChanged(PodSignal, frozen=True):
    """The health of a device that is allocated to the pod changed."""


class DraDriverRegistered(PodSignal, frozen=True):
    """A DRA driver registered for which claims of the pod may wait."""


class ResizeChanged(PodSignal, frozen=True):
    """The pod's allocated resources changed, or what is reported about its resize."""


class PodPreempted(Signal, frozen=True):
    """The pod must stop so that a critical one gets its resources."""

    pod: Pod
    resource: str
    """What was insufficient."""


class Signals:
    """Delivers each published signal to the subscribers of its class."""

    def __init__(self) -> None:
        self._handlers: dict[type[Signal], list[Callable[[Any], None]]] = {}

    def subscribe(self, kind: type[S], handler: Callable[[S], None]) -> None:
        self._handlers.setdefault(kind, []).append(handler)

    def publish(self, signal: Signal) -> None:
        for handler in self._handlers.get(type(signal), ()):
            try:
                handler(signal)
            except Exception:  # the handler's trouble alone: neither the publisher nor other handlers suffer
                logger.exception("a signal cannot be handled", extra={"signal": repr(signal)})
