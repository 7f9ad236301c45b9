"""Our own vocabulary of failures.

Clients translate what their libraries raise into these classes once, at the edge; everything above
decides by class, never by text. Covers runtime, API server and pod errors. Does not cover bad
manifests and bad settings: those carry field paths and live beside their loaders.
"""

from __future__ import annotations

from pykubelet.kit.text import plain


class PykubeletError(Exception):
    """Base of every error this agent raises on purpose. Its text goes into events, statuses, logs and spans."""

    def __init__(self, *args: object) -> None:
        super().__init__(*(plain(each) if isinstance(each, str) else each for each in args))


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


class Exhausted(CriError):
    """The runtime has too much to do at once; later it may have room again."""


class ExecTimedOut(CriError):
    """A command run inside a container did not finish in its time."""


class PluginError(PykubeletError):
    """A plugin refused or failed a call, or could not be reached. `words` are the plugin's own."""

    def __init__(self, words: str, *, code: str, call: str, socket: str) -> None:
        super().__init__(f"{call} at {socket}: {words} ({code})")
        self.words = words
        self.code = code
        """The gRPC code's name, such as DEADLINE_EXCEEDED."""
        self.call = call
        self.socket = socket


class IllegalMove(PykubeletError):
    """A transition that the table of the lifecycle does not have; a bug, shown with its history."""


# The API server. `code` is the HTTP status (0 when no answer came), `reason` the machine-readable word of its Status.


class ApiError(PykubeletError):
    """The API server refused or failed a request. The text is the server's own."""

    def __init__(self, message: str, *, code: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        """Seconds to wait as the server demands; None when it does not."""


class ApiNotFound(NotFound, ApiError):
    """No such object, or no such resource on this server."""


class ApiAlreadyExists(AlreadyExists, ApiError):
    """An object of this name is there already."""


class ApiConflict(Conflict, ApiError):
    """The object has changed since it was read, or its UID is another one."""


class Expired(ApiError):
    """The resource version or continue token is too old: list again."""


class Unauthorized(ApiError):
    """The server does not know who we are."""


class Forbidden(ApiError):
    """The server knows us and says no."""


class Invalid(ApiError):
    """The request or the object in it is wrong; asking again will not help."""


class TooManyRequests(ApiError):
    """The server is busy, see `retry_after`."""


class ApiServerError(ApiError):
    """The server failed by itself (5xx); asking again may help."""


class ApiDown(ApiError):
    """The server cannot be reached or did not answer in time. Nothing is known about what it did."""
