"""The store of probe outcomes."""

from __future__ import annotations

from pykubelet.model.results import ProbeKind, ProbeOutcome, ProbeResults


def test_listeners_hear_of_changes_only() -> None:
    results = ProbeResults()
    heard: list[tuple[str, str, str, str]] = []
    results.listen(lambda kind, cid, uid, outcome: heard.append((kind.value, cid, uid, outcome.value)))
    results.set(ProbeKind.READINESS, "c", "u", ProbeOutcome.FAILURE)
    results.set(ProbeKind.READINESS, "c", "u", ProbeOutcome.FAILURE)
    results.set(ProbeKind.READINESS, "c", "u", ProbeOutcome.SUCCESS)
    results.set(ProbeKind.LIVENESS, "c", "u", ProbeOutcome.SUCCESS)
    assert heard == [
        ("readiness", "c", "u", "failure"),
        ("readiness", "c", "u", "success"),
        ("liveness", "c", "u", "success"),
    ]


def test_outcomes_are_forgotten_by_kind_or_altogether() -> None:
    results = ProbeResults()
    for kind in ProbeKind:
        results.set(kind, "c", "u", ProbeOutcome.SUCCESS)
    results.remove("c", ProbeKind.STARTUP)
    assert results.get(ProbeKind.STARTUP, "c") is None
    assert results.get(ProbeKind.LIVENESS, "c") is ProbeOutcome.SUCCESS
    results.remove("c")
    results.remove("c")
    assert len(results) == 0
    assert ProbeKind.READINESS.title == "Readiness"
