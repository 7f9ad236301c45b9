"""A pull that takes long says so in the log: after ten seconds, then less and less often, at least every minute.

The CRI reports no progress of a pull, so its age is all there is to tell.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Self

logger = logging.getLogger(__name__)

FIRST: Final = 10.0
LONGEST: Final = 60.0


class PullProgress:
    """Speaks for as long as the block lasts; `stage` is what is being waited for."""

    def __init__(self, image: str, pod: str) -> None:
        self.stage = "image waits for other pulls to end"
        self._image = image
        self._pod = pod
        self._waited = 0.0
        self._pause = FIRST
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._speak)

    def _speak(self) -> None:
        self._waited += self._pause
        logger.info(self.stage, extra={"image": self._image, "pod": self._pod, "seconds": round(self._waited)})
        self._pause = min(2 * self._pause, LONGEST)
        self._arm()
