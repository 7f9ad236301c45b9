"""When the last orderly shutdown began and ended: a small file that survives the reboot, and two metrics.

The file has upstream's name and form, so that either program shows what the other did.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from pykubelet.kit.files import Checkpoint
from pykubelet.kit.metrics import Registry

logger = logging.getLogger(__name__)

FILE = "graceful_node_shutdown_state"
TOO_FINE = re.compile(r"(\.\d{6})\d+")
NEVER = "0001-01-01T00:00:00Z"


class ShutdownTimes(Struct, frozen=True, kw_only=True):
    """Unix seconds; 0 = not yet."""

    started: float = 0.0
    ended: float = 0.0


class ShutdownRecord:
    def __init__(self, path: Path, *, metrics: Registry) -> None:
        self._checkpoint = Checkpoint(path, encode=_encode, decode=_decode, mode=0o644)
        self._started = metrics.gauge(
            "kubelet_graceful_shutdown_start_time_seconds", "When the last orderly shutdown began, in unix seconds."
        )
        self._ended = metrics.gauge(
            "kubelet_graceful_shutdown_end_time_seconds", "When the last orderly shutdown was through, in unix seconds."
        )

    def load(self) -> ShutdownTimes:
        """What an earlier life wrote; shown in the metrics until the next shutdown."""
        times = self._checkpoint.load()
        if times is None:
            return ShutdownTimes()
        self._show(times)
        return times

    def save(self, times: ShutdownTimes) -> None:
        self._show(times)
        try:
            self._checkpoint.save_now(times)
        except OSError as error:
            extra = {"path": str(self._checkpoint.path), "error": str(error)}
            logger.warning("the record of this shutdown cannot be written", extra=extra)

    def _show(self, times: ShutdownTimes) -> None:
        self._started.set(times.started)
        self._ended.set(times.ended)


def _encode(times: ShutdownTimes) -> bytes:
    return json.dumps({"startTime": _text(times.started), "endTime": _text(times.ended)}).encode()


def _decode(raw: bytes) -> ShutdownTimes:
    found = json.loads(raw)
    return ShutdownTimes(started=_seconds(found["startTime"]), ended=_seconds(found["endTime"]))


def _text(seconds: float) -> str:
    if not seconds:
        return NEVER
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _seconds(text: object) -> float:
    if text == NEVER:
        return 0.0
    # Go writes nanoseconds and the machine's time zone; Python reads microseconds at most.
    return datetime.fromisoformat(TOO_FINE.sub(r"\1", str(text))).timestamp()
