"""Spans: nothing while tracing is off, parents across tasks, none for tasks that live on."""

from __future__ import annotations

import asyncio

import pytest

from pykubelet.kit import tracing
from pykubelet.kit.tasks import TaskSet, gather_all
from tests.recorded_spans import attributes_of, recorded_spans


async def test_off_every_span_is_one_object_that_does_nothing() -> None:
    with tracing.span("a") as span:
        assert span is tracing.NO_SPAN and not span.recorded and not span.carrier
        span.set({"a": 1})
        span.event("b", {})
        span.fail("c")
        assert tracing.current.get() is tracing.NO_SPAN
        assert tracing.unrelated() is None
    assert tracing.served("x", [("traceparent", f"00-{'1' * 32}-{'2' * 16}-01")], trusted=True) is tracing.NO_SPAN


async def test_spans_of_tasks_are_parts_of_the_span_that_waits_for_them() -> None:
    async def part(name: str) -> None:
        with tracing.span(name):
            await asyncio.sleep(1)

    with recorded_spans() as spans:
        with tracing.span("whole"):
            await gather_all(part("one"), part("two"))
        with tracing.span("next"):
            pass
    assert [(span.name, spans.parent_of(span)) for span in spans] == [
        ("one", "whole"),
        ("two", "whole"),
        ("whole", ""),
        ("next", ""),
    ]


async def test_tasks_that_live_on_are_no_part_of_the_span_that_began_them() -> None:
    async def work() -> None:
        with tracing.span("later"):
            return

    with recorded_spans() as spans:
        async with TaskSet("test") as tasks:
            with tracing.span("beginning"):
                task = tasks.spawn(work(), name="lives on")
            await task
    assert spans.parent_of(spans.one("later")) == ""


async def test_an_error_is_noted_and_the_parent_comes_back() -> None:
    with recorded_spans() as spans, tracing.span("outer") as outer:
        with pytest.raises(ValueError), tracing.span("inner"):
            raise ValueError("no room " + "x" * 5000)
        assert tracing.current.get() is outer
    inner = spans.one("inner")
    assert not inner.status.is_ok and (inner.status.description or "").startswith("no room x")
    assert len(inner.status.description or "") == 2048
    (event,) = inner.events
    assert event.name == "exception" and dict(event.attributes or {})["exception.type"] == "ValueError"
    assert len(str(dict(event.attributes or {})["exception.message"])) == 2048
    assert spans.one("outer").status.is_unset


async def test_another_parent_may_be_given() -> None:
    with recorded_spans() as spans:
        with tracing.span("cause") as cause:
            pass
        with tracing.span("elsewhere"), tracing.span("effect", parent=cause) as effect:
            effect.set({"long": "x" * 5000, "short": 1})
    assert spans.parent_of(spans.one("effect")) == "cause"
    assert {name: len(str(value)) for name, value in attributes_of(spans.one("effect")).items()} == {
        "long": 2048,
        "short": 1,
    }
