"""A pod's start as a trace: the agent's spans and those of a real containerd, in a real collector."""

from __future__ import annotations

import os
import ssl
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.bed.agent import BedAgent, bed_agent
from tests.bed.cluster import go_programs
from tests.bed.collector import CollectedSpan, Collector, running_collector
from tests.bed.crio import running_crio
from tests.bed.registry import Registry
from tests.bed.runtime import BedContainerd, running_containerd
from tests.node.test_agent import a_manifest, log_of, wait_for

pytestmark = pytest.mark.node

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
RUNTIME, IMAGES = "runtime.v1.RuntimeService", "runtime.v1.ImageService"
PLUGINS = ("io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp")


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    with running_collector(tmp_path) as running:
        yield running


@contextmanager
def traced_containerd(collector: Collector) -> Iterator[BedContainerd]:
    """containerd 2 that sends its own spans: only those that a caller of it has sampled."""
    chosen = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{collector.endpoint}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_SERVICE_NAME": "containerd",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    with running_containerd(go_programs("containerd2"), runc=go_programs("runc") / "runc") as runtime:
        config = runtime.state_dir / "containerd.toml"
        text = config.read_text()
        for plugin in PLUGINS:
            assert f'"{plugin}", ' in text or f', "{plugin}"' in text
            text = text.replace(f'"{plugin}", ', "").replace(f', "{plugin}"', "")
        config.write_text(text)
        before = dict(os.environ)
        os.environ.update(chosen)
        try:
            runtime.restart()
        finally:
            os.environ.clear()
            os.environ.update(before)
        yield runtime


def ask(agent: BedAgent, path: str, **headers: str) -> str:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = urllib.request.Request(f"https://127.0.0.1:{agent.settings['port']}{path}", headers=headers)
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        return str(answer.read().decode())


def shown(spans: list[CollectedSpan], root: CollectedSpan, depth: int = 0) -> list[str]:
    """The tree below a span, as people see it."""
    took = (root.end - root.start) / 1e6
    lines = [f"{'  ' * depth}{root.name} [{root.service}] {took:.1f} ms"]
    for child in sorted((each for each in spans if each.parent == root.id), key=lambda each: each.start):
        lines += shown(spans, child, depth + 1)
    return lines


def test_the_start_of_a_pod_is_one_trace_with_that_of_the_runtime(
    tmp_path: Path, collector: Collector, registry: Registry
) -> None:
    image = registry.push("traced:v1")
    tracing = {"endpoint": collector.endpoint, "samplingRatePerMillion": 1_000_000}
    with traced_containerd(collector) as runtime:
        folder = runtime.registry_dir / registry.host
        folder.mkdir(parents=True)
        (folder / "hosts.toml").write_text(f'server = "http://{registry.host}"\n')
        with bed_agent(tmp_path / "agent", runtime, tracing=tracing) as agent:
            manifest = a_manifest("traced")
            manifest["spec"]["containers"][0]["image"] = image
            manifest["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}]
            manifest["spec"]["containers"][0]["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
            agent.put("traced", manifest)
            wait_for(lambda: "up" in log_of(agent, "traced"), "the pod runs")
            name = f"traced-{agent.node}"
            assert "up" in ask(agent, f"/containerLogs/default/{name}/app", traceparent=f"00-{TRACE}-{'a' * 16}-01")
            agent.drop("traced")
            wait_for(lambda: not list((agent.root / "pods").iterdir()), "the pod is gone")
            began = time.monotonic()
            assert agent.stop() == 0
            assert time.monotonic() - began < 10
            assert "Traceback" not in agent.log() and "spans are dropped" not in agent.log(), agent.log()
    collector.stop()
    spans = collector.spans()
    ours = [span for span in spans if span.service == "kubelet"]
    assert {span.resource["host.name"] for span in ours} == {agent.node}

    syncs = sorted((each for each in ours if each.name == "syncPod"), key=lambda each: each.start)
    start = syncs[0]
    print("\n".join(shown(spans, start)))
    assert start.parent == "" and not start.failed
    assert start.attributes["k8s.pod"] == f"default/{name}"
    assert start.attributes["k8s.pod.update_type"] == "create"

    def below(parent: CollectedSpan, wanted: str, service: str = "kubelet") -> CollectedSpan:
        found = [each for each in spans if (each.parent, each.name, each.service) == (parent.id, wanted, service)]
        assert found, f"no {wanted} of {service} below {parent.name}:\n" + "\n".join(shown(spans, start))
        assert all(each.trace == parent.trace for each in found)
        return found[0]

    pulled = below(below(start, "Images/EnsureImageExists"), f"{IMAGES}/PullImage")
    below(start, "Volumes/WaitForAttachAndMount")
    for method in ("RunPodSandbox", "CreateContainer", "StartContainer"):
        called = below(start, f"{RUNTIME}/{method}")
        assert called.attributes["rpc.system.name"] == "grpc" and called.kind == 3
        assert called.attributes["rpc.response.status_code"] == "OK"
        assert called.attributes["server.address"] == str(runtime.socket)
        # The runtime got the context: its span is a part of ours.
        served = below(called, f"{RUNTIME}/{method}", "containerd")
        assert served.kind == 2
    below(pulled, f"{IMAGES}/PullImage", "containerd")
    (killed,) = (each for each in ours if each.name == "syncTerminatingPod")
    below(below(killed, f"{RUNTIME}/StopContainer"), f"{RUNTIME}/StopContainer", "containerd")
    assert [each.name for each in ours].count("syncTerminatedPod") == 1

    (request,) = (each for each in ours if each.name == "/containerLogs/{namespace}/{pod}/{container}")
    assert (request.trace, request.parent, request.kind) == (TRACE, "a" * 16, 2)
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["server.port"] == agent.settings["port"]


def attribute_names(tmp_path: Path, runtime: BedContainerd, program: Path | None) -> dict[tuple[str, int], set[str]]:
    """Of the spans that a pod's start and end and a request make, by name and kind."""
    tmp_path.mkdir()
    with running_collector(tmp_path) as collector:
        tracing = {"endpoint": collector.endpoint, "samplingRatePerMillion": 1_000_000}
        # What the Go kubelet cannot do on every machine that tests run on.
        limits: dict[str, Any] = {"maxOpenFiles": 10_000, "localStorageCapacityIsolation": False}
        limits["volumePluginDir"] = str(tmp_path / "plugins")
        with bed_agent(tmp_path / "agent", runtime, program=program, tracing=tracing, **limits) as agent:
            agent.put("same", a_manifest("same"))
            wait_for(lambda: "up" in log_of(agent, "same"), "the pod runs")
            wait_for(lambda: f"same-{agent.node}" in ask(agent, "/runningpods/"), "the pod is listed")
            agent.drop("same")
            wait_for(lambda: "syncTerminatedPod" in {span.name for span in collector.spans()}, "the pod's end is seen")
            agent.stop()
        collector.stop()
        spans = collector.spans()
    assert {span.resource["service.name"] for span in spans} == {"kubelet"}
    assert {frozenset(span.resource) for span in spans} == {frozenset(("service.name", "host.name"))}
    found: dict[tuple[str, int], set[str]] = {}
    for span in spans:
        if not span.failed:
            found.setdefault((span.name, span.kind), set()).update(span.attributes)
    return found


def test_names_and_attributes_are_those_of_the_go_kubelet(tmp_path: Path, containerd2: BedContainerd) -> None:
    theirs = attribute_names(tmp_path / "go", containerd2, go_programs("controlplane") / "kubelet")
    ours = attribute_names(tmp_path / "ours", containerd2, None)
    both = ours.keys() & theirs.keys()
    for name in ("syncPod", "syncTerminatingPod", "syncTerminatedPod"):
        assert (name, 1) in both
    for method in ("RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "Version"):
        assert (f"{RUNTIME}/{method}", 3) in both
    assert ("/runningpods/", 2) in both
    differ = {name: (ours[name], theirs[name]) for name in both if ours[name] != theirs[name]}
    assert differ == {}
    print(f"{len(both)} kinds of spans have the same attributes:", *sorted(name for name, _ in both), sep="\n  ")


def test_cri_o_goes_on_with_the_trace(tmp_path: Path, collector: Collector) -> None:
    with running_crio() as runtime:
        with (runtime.state_dir / "crio.conf").open("a") as config:
            config.write(f'[crio.tracing]\nenable_tracing = true\ntracing_endpoint = "{collector.endpoint}"\n')
        runtime.restart()
        tracing = {"endpoint": collector.endpoint, "samplingRatePerMillion": 1_000_000}
        with bed_agent(tmp_path / "agent", runtime, tracing=tracing) as agent:
            agent.put("traced", a_manifest("traced"))
            wait_for(lambda: "up" in log_of(agent, "traced"), "the pod runs")
            assert agent.stop() == 0
            called = f"{RUNTIME}/RunPodSandbox"
            wait_for(lambda: {"kubelet", "crio"} <= {s.service for s in collector.spans() if s.name == called}, "spans")
    spans = collector.spans()
    (ours,) = (span for span in spans if (span.name, span.service) == (called, "kubelet"))
    (theirs,) = (span for span in spans if (span.name, span.service) == (called, "crio"))
    assert (theirs.parent, theirs.trace) == (ours.id, ours.trace)


def test_without_a_rate_only_what_a_caller_sampled_is_sent(
    tmp_path: Path, collector: Collector, containerd2: BedContainerd
) -> None:
    with bed_agent(tmp_path / "agent", containerd2, tracing={"endpoint": collector.endpoint}) as agent:
        agent.put("quiet", a_manifest("quiet"))
        wait_for(lambda: "up" in log_of(agent, "quiet"), "the pod runs")
        ask(agent, "/pods")
        ask(agent, "/runningpods", traceparent=f"00-{TRACE}-{'a' * 16}-01")
        assert agent.stop() == 0
    collector.stop()
    spans = collector.spans()
    assert {span.trace for span in spans} == {TRACE}
    request = next(span for span in spans if span.name == "/runningpods")
    # What the request made the runtime do belongs to it.
    assert f"{RUNTIME}/ListPodSandbox" in {span.name for span in spans if span.parent == request.id}


def test_no_collector_costs_no_pod_and_no_end(tmp_path: Path, containerd2: BedContainerd) -> None:
    tracing = {"endpoint": "127.0.0.1:1", "samplingRatePerMillion": 1_000_000}
    with bed_agent(tmp_path / "agent", containerd2, tracing=tracing) as agent:
        agent.put("alone", a_manifest("alone"))
        wait_for(lambda: "up" in log_of(agent, "alone"), "the pod runs")
        began = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began < 10
        log = agent.log()
    assert log.count("spans are dropped until the collector takes them") == 1
    assert "Traceback" not in log


def test_an_agent_without_the_libraries_says_how_to_get_them(
    tmp_path: Path, containerd2: BedContainerd, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "opentelemetry.py").write_text("raise ModuleNotFoundError('not installed')\n")
    monkeypatch.setenv("PYTHONPATH", f"{hidden}:{os.environ.get('PYTHONPATH', '')}")
    with bed_agent(tmp_path / "agent", containerd2, tracing={}) as agent:
        wait_for(lambda: agent.status is not None, "the agent does not start")
        assert agent.status == 1
    assert "pykubelet: tracing: its libraries are not installed (not installed); " in agent.log()
    assert "pip install 'pykubelet[tracing]'" in agent.log() and "Traceback" not in agent.log()
