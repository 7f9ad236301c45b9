"""systemd and logind as the agent sees them, over D-Bus.

Covers the few calls a node agent needs: slices for cgroups, and the delay of a shutdown. Implementations are beside
this file; tests run them against a private bus.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from pykubelet.model.errors import PykubeletError


class BusDown(PykubeletError):
    """The system bus, or the service on it, cannot be reached or stopped answering."""


class BusRefused(PykubeletError):
    """The service answered with an error; `name` is its D-Bus name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{text} ({name})")
        self.name = name


class UnitExists(BusRefused):
    """systemd knows a unit of this name already."""


Property = bool | int | str | list[str]
"""Whole numbers are unsigned 64 bit, as all of systemd's resource settings are."""


class Systemd(Protocol):
    """Units made at run time. Every call waits until systemd is done with it. Raises BusDown, BusRefused."""

    async def start_unit(self, name: str, properties: Mapping[str, Property]) -> None:
        """Make and start a transient unit. UnitExists when there is one of that name."""
        ...

    async def stop_unit(self, name: str) -> None:
        """Stop a unit; one that is not there is success."""
        ...

    async def set_properties(self, name: str, properties: Mapping[str, Property]) -> None:
        """Change a running unit until the next boot."""
        ...


class Notice(enum.Enum):
    SHUTDOWN = "shutdown"
    CANCELLED = "cancelled"
    """A shutdown that was announced does not happen."""
    REPLACED = "replaced"
    """Another logind took over. systemd's finds the locks that are held, as they are files; others need not."""


class DelayLock(Protocol):
    def release(self) -> None:
        """Let the shutdown go on. Safe to repeat."""
        ...


class LogindSession(Protocol):
    """One connection. Every call may raise BusDown (then the session is over) or BusRefused."""

    async def max_delay(self) -> float:
        """Seconds for which logind lets a process delay a shutdown."""
        ...

    async def raise_max_delay(self, seconds: float) -> None:
        """Write the wanted delay into logind's settings and reload them. OSError when the file cannot be written."""
        ...

    async def is_shutting_down(self) -> bool:
        """Whether a shutdown is being held up right now, perhaps announced before we listened."""
        ...

    async def delay_shutdown(self) -> DelayLock: ...

    async def next_notice(self) -> Notice: ...


class Logind(Protocol):
    def session(self) -> AbstractAsyncContextManager[LogindSession]:
        """Connect; entering raises BusDown when there is no bus. Without a logind on it the first call does."""
        ...
