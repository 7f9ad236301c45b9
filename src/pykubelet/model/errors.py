"""Our own vocabulary of failures.

Clients translate what their libraries raise into these classes once, at the edge; everything above
decides by class, never by text. Covers runtime, API server and pod errors. Does not cover bad
manifests and bad settings: those carry field paths and live beside their loaders.
"""

from __future__ import annotations


class PykubeletError(Exception):
    """Base of every error this agent raises on purpose."""


class CriError(PykubeletError):
    """The container runtime refused or failed a call. The text is the runtime's own."""


class NotFound(PykubeletError):
    """The object is not there. For clean-up verbs this means success."""


class AlreadyExists(PykubeletError):
    """The object is there already."""


class Conflict(PykubeletError):
    """The object changed under us, or a precondition did not hold."""


class CriNotFound(NotFound, CriError):
    """The runtime does not know this sandbox, container or image."""


class CriAlreadyExists(AlreadyExists, CriError):
    """The runtime has an object of this name already."""


class RuntimeDown(CriError):
    """The runtime cannot be reached; every pod waits, none is to blame."""


class CallTimedOut(CriError):
    """The runtime did not answer before the call's deadline."""


class Unimplemented(CriError):
    """The runtime does not offer this call."""


class InvalidArgument(CriError):
    """The runtime says that the request itself is wrong."""


class ExecTimedOut(CriError):
    """A command run inside a container did not finish in its time."""


class IllegalMove(PykubeletError):
    """A lifecycle was asked for a transition its table does not have; a bug, shown with its story."""
