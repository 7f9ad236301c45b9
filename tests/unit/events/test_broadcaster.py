"""Events kept on the node: what pods put into them has a bound."""

from __future__ import annotations

import logging

import pytest

from pykubelet.events.broadcaster import EVENTS_KEPT, LONGEST_MESSAGE, EventBroadcaster
from pykubelet.kit.clock import LoopClock
from tests.builders import a_pod


async def test_long_texts_are_cut_in_memory_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    events = EventBroadcaster(clock=LoopClock(), node_name="node1")
    with caplog.at_level(logging.WARNING):
        for number in range(EVENTS_KEPT + 5):
            events.pod_event(a_pod(), "Warning", "Unhealthy", f"{number} " + "x" * 100_000)
        events.node_event("Warning", "Odd", "y" * 100_000)
    kept = events.all()
    assert len(kept) == EVENTS_KEPT
    assert max(len(event.message) for event in kept) < LONGEST_MESSAGE + 40
    assert kept[-1].message.endswith("more characters)")
    assert max(len(getattr(record, "message_text", "")) for record in caplog.records) < LONGEST_MESSAGE + 40
