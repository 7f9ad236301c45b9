"""Every metric of a Go kubelet is here, with its kind and labels, or has a reason not to be."""

from __future__ import annotations

from tools.gen_metrics_doc import PAGE, WITHOUT, named, reason, registered, render, upstream


def test_every_metric_of_a_kubelet_is_here_or_has_a_reason() -> None:
    found = named()
    missing = {each.name for each in upstream() if each.name not in found}
    assert sorted(name for name in missing if not reason(name)) == []


def test_no_reason_is_left_over() -> None:
    found = named()
    names = [each.name for each in upstream()]
    assert [name for name in names if name in found and reason(name)] == []
    used = {start for start in WITHOUT for name in names if reason(name) == WITHOUT[start]}
    assert sorted(WITHOUT.keys() - used) == []


def test_kinds_and_labels_are_upstreams() -> None:
    known = {each.name: each for each in upstream()}
    ours = [each for each in registered() if each.name in known]
    assert len(ours) > 80, "the source is not read as it is written"
    differ = [
        each
        for each in ours
        if sorted(each.labels) != sorted(known[each.name].labels) or known[each.name].kind not in (each.kind, "Custom")
    ]
    assert differ == []


def test_the_page_is_what_the_tool_makes() -> None:
    assert PAGE.read_text() == render(), "run tools/gen_metrics_doc.py"
