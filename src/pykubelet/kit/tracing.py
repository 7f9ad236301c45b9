"""Spans: what work was done, for how long and as a part of what, for tools that show traces.

Off unless the settings ask for it: then every span is the same object, which does nothing. The parent of a span is the
one whose block it begins in, also across tasks begun there; tasks of a `TaskSet` live on by themselves and begin
without one. Does not cover: which spans are sampled, and where they go (clients/otlp).
"""

from __future__ import annotations

import contextvars
import enum
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Protocol

Value = str | int | bool
Pairs = Sequence[tuple[str, str]]


class Kind(enum.Enum):
    INTERNAL = "internal"
    CLIENT = "client"
    SERVER = "server"


class Span(Protocol):
    """Some work. It begins when it is made, and ends with its `with` block or by `end`."""

    @property
    def recorded(self) -> bool:
        """Whether it will be sent; only then is it worth while to collect attributes."""
        ...

    @property
    def carrier(self) -> Pairs:
        """The headers that make the work of another process a part of this."""
        ...

    def set(self, attributes: Mapping[str, Value]) -> None: ...

    def event(self, name: str, attributes: Mapping[str, Value]) -> None: ...

    def fail(self, text: str) -> None: ...

    def end(self) -> None: ...

    def __enter__(self) -> Span:
        """Spans that begin in the block are parts of this one."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """An error that leaves the block is noted."""
        ...


class NoSpan:
    __slots__ = ()
    recorded = False
    carrier: Pairs = ()

    def set(self, attributes: Mapping[str, Value]) -> None:
        return

    def event(self, name: str, attributes: Mapping[str, Value]) -> None:
        return

    def fail(self, text: str) -> None:
        return

    def end(self) -> None:
        return

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return


NO_SPAN: Span = NoSpan()


class Tracer(Protocol):
    def span(self, name: str, kind: Kind, parent: Span) -> Span: ...

    def served(self, name: str, headers: Pairs, *, trusted: bool) -> Span:
        """The work for a request. Whether it is sampled is up to a `trusted` caller, if its headers say so."""
        ...


current: contextvars.ContextVar[Span] = contextvars.ContextVar("span", default=NO_SPAN)
"""The span whose block this is."""
_tracer: Tracer | None = None


def span(name: str, kind: Kind = Kind.INTERNAL, *, parent: Span | None = None) -> Span:
    """A part of the current span, unless another `parent` is given."""
    return NO_SPAN if _tracer is None else _tracer.span(name, kind, parent or current.get())


def served(name: str, headers: Pairs, *, trusted: bool) -> Span:
    return NO_SPAN if _tracer is None else _tracer.served(name, headers, trusted=trusted)


@contextmanager
def traced(tracer: Tracer) -> Iterator[None]:
    """Make spans with this tracer for as long as the block lasts."""
    global _tracer
    before, _tracer = _tracer, tracer
    try:
        yield
    finally:
        _tracer = before


def unrelated() -> contextvars.Context | None:
    """The context of a task that is no part of the span it is begun in; None where there is no span."""
    if current.get() is NO_SPAN:
        return None
    context = contextvars.copy_context()
    context.run(current.set, NO_SPAN)
    return context
