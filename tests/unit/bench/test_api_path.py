"""The way of a pod through the API: what is read from logs and metrics, and the verdicts."""

from __future__ import annotations

import json
from typing import Any

from bench.api_path import (
    COUNTED,
    FIGURES,
    MARKS,
    RESULTS,
    SHAPES,
    STEPS,
    counted,
    runtime_calls,
    sample,
    table,
    verdicts,
)
from bench.report import DOCUMENT

LOG = r"""
time="2026-11-16T12:31:52.100000000Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:other,Uid:u,Attempt:0,}"
time="2026-11-16T12:31:52.200000000Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:web,Uid:u,Attempt:0,}"
time="2026-11-16T12:31:52.300000000Z" level=info msg="loading plugin" runtime=io.containerd.runc.v2
time="2026-11-16T12:31:52.350000000Z" level=info msg="RunPodSandbox for &PodSandboxMetadata{Name:web,Uid:u,Attempt:0,} returns sandbox id \"b\""
time="2026-11-16T12:31:52.360000000Z" level=info msg="CreateContainer within sandbox \"b\" for container &ContainerMetadata{Name:app,Attempt:0,}"
time="2026-11-16T12:31:52.370000000Z" level=info msg="CreateContainer within sandbox \"b\" for &ContainerMetadata{Name:app,Attempt:0,} returns container id \"c\""
time="2026-11-16T12:31:52.372000000Z" level=info msg="StartContainer for \"c\""
time="2026-11-16T12:31:52.430000000Z" level=info msg="StartContainer for \"c\" returns successfully"
time="2026-11-16T12:31:53.000000000Z" level=info msg="StopContainer for \"c\" with timeout 2 (s)"
"""  # noqa: E501
METRICS = """
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",resource="pods",scope="resource",subresource="status",verb="PATCH"} 7
apiserver_request_total{code="409",component="apiserver",resource="pods",scope="resource",subresource="status",verb="PATCH"} 3
apiserver_request_total{code="200",component="apiserver",resource="pods",scope="resource",subresource="",verb="PATCH"} 2
apiserver_request_total{code="201",component="apiserver",resource="events",scope="resource",subresource="",verb="POST"} 4
"""  # noqa: E501


def test_calls_of_one_pod_are_read_from_the_runtimes_log() -> None:
    calls = runtime_calls(LOG.splitlines(), "web")
    second = 1_000_000_000
    begin = calls["sandbox"] // second * second
    shown = {name: (at - begin) // 1_000_000 for name, at in calls.items()}
    assert shown == {
        "sandbox": 200,
        "sandbox done": 350,
        "create": 360,
        "create done": 370,
        "start": 372,
        "start done": 430,
    }
    found = sample(begin + 190_000_000, begin + 425_000_000, begin + 450_000_000, calls)
    assert [found[step] for step in STEPS] == [10, 150, 10, 10, 2, 58, 20]
    assert [found[figure] for figure in FIGURES] == [235, 25, 260]


def test_only_good_answers_of_the_named_kind_count() -> None:
    found = counted(METRICS.splitlines())
    assert found == {**dict.fromkeys(COUNTED, 0.0), "PATCH pods/status": 7.0, "POST events": 4.0}


def test_every_shape_and_the_number_of_patches_are_judged() -> None:
    def report(own: dict[str, float], patches: float) -> dict[str, Any]:
        samples = {"go": {shape: [{"total": 100.0}] for shape in SHAPES}}
        samples["pykubelet"] = {shape: [{"total": own[shape]}] for shape in SHAPES}
        requests = {"go": {"PATCH pods/status": 5.0}, "pykubelet": {"PATCH pods/status": patches}}
        return {"samples": samples, "requests": requests}

    assert list(verdicts(report({"plain": 99.0, "volumes": 50.0}, 5.0)).values()) == [True, True, True]
    assert list(verdicts(report({"plain": 100.0, "volumes": 50.0}, 5.1)).values()) == [False, True, False]


def test_document_shows_what_is_kept_and_the_budgets_hold() -> None:
    report = json.loads(RESULTS.read_text())
    shown = DOCUMENT.read_text().partition(MARKS[0])[2].partition(MARKS[1])[0]
    assert shown.strip() == table(report)
    assert all(verdicts(report).values())
