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

from pykubelet.kit.files import write_atomic
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
        self._path = path
        self._started = metrics.gauge(
            "kubelet_graceful_shutdown_start_time_seconds", "When the last orderly shutdown began, in unix seconds."
        )
        self._ended = metrics.gauge(
            "kubelet_graceful_shutdown_end_time_seconds", "When the last orderly shutdown was through, in unix seconds."
        )

    def load(self) -> ShutdownTimes:
        """What an earlier life wrote; shown in the metrics until the next shutdown."""
        try:
            raw = json.loads(self._path.read_bytes())
            times = ShutdownTimes(started=_seconds(raw["startTime"]), ended=_seconds(raw["endTime"]))
        except FileNotFoundError:
            return ShutdownTimes()
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning(
                "the record of the last shutdown cannot be read", extra={"path": str(self._path), "error": str(error)}
            )
            return ShutdownTimes()
        self._show(times)
        return times

    def save(self, times: ShutdownTimes) -> None:
        self._show(times)
        text = json.dumps({"startTime": _text(times.started), "endTime": _text(times.ended)})
        try:
            write_atomic(self._path, text.encode(), mode=0o644)
        except OSError as error:
            logger.warning(
                "the record of this shutdown cannot be written", extra={"path": str(self._path), "error": str(error)}
            )

    def _show(self, times: ShutdownTimes) -> None:
        self._started.set(times.started)
        self._ended.set(times.ended)


def _text(seconds: float) -> str:
    if not seconds:
        return NEVER
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _seconds(text: object) -> float:
    if text == NEVER:
        return 0.0
    # Go writes nanoseconds and the machine's time zone; Python reads microseconds at most.
    return datetime.fromisoformat(TOO_FINE.sub(r"\1", str(text))).timestamp()
