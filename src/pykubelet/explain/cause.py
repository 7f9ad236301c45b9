"""What a row of the table of causes looks like. The rows are in table_pod.py and table_container.py."""

from __future__ import annotations

import enum

from msgspec import Struct

from pykubelet.explain.findings import Finder


class State(enum.Enum):
    """What it means for the pod; the first of these that applies is the pod's state."""

    ENDING = "ending"
    FAILED = "failed"
    STUCK = "stuck"
    RESTARTING = "restarting"
    NOT_READY = "not ready"
    STARTING = "starting"
    NOTE = "note"
    """Worth knowing; the pod is well all the same."""


class Cause(Struct, frozen=True, kw_only=True):
    id: str
    title: str
    state: State
    find: Finder
    chain: tuple[str, ...]
    """What is wrong, symptom first; each line is explained by the next."""
    next: str
    advice: tuple[str, ...]
    shown: str
    """What `get pods` shows for it."""
    brief: str = ""
    """One sentence for conditions and events. Without one it is made of the lines of the chain that stay the same from
    one look to the next."""
    final: bool = False
    """Nothing after it in the table matters once it is found."""
