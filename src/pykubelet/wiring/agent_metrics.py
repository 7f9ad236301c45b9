"""Metrics about pods and the agent itself: its process, its version, its feature gates.

Counted when somebody asks, or heard from the recorder and the runtime; nothing runs for it.
"""

from __future__ import annotations

import platform

from pykubelet.clients.host.process import process_stats
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.metrics import Registry
from pykubelet.settings.gates import known_gates
from pykubelet.settings.settings import Settings

HELP = {
    "cpu_seconds_total": "Total user and system CPU time spent in seconds.",
    "resident_memory_bytes": "Resident memory size in bytes.",
    "virtual_memory_bytes": "Virtual memory size in bytes.",
    "start_time_seconds": "Start time of the process since unix epoch in seconds.",
    "open_fds": "Number of open file descriptors.",
    "max_fds": "Maximum number of open file descriptors.",
}
STAGES = {"Alpha": "ALPHA", "Beta": "BETA", "GA": "", "Deprecated": "DEPRECATED"}


def add_agent_metrics(metrics: Registry, settings: Settings) -> None:
    version = settings.kubernetes_version
    major, minor = version.lstrip("v").split(".")[:2]
    labels = ("major", "minor", "git_version", "platform", "python_version")
    machine = f"linux/{platform.machine()}"
    build = metrics.gauge("kubernetes_build_info", "What this agent was built as; always 1.", labels)
    build.set(1, major, minor, version, machine, platform.python_version())
    host_calls.measure(metrics)
    gates = metrics.gauge("kubernetes_feature_enabled", "Feature gates, 1 for on.", ("name", "stage"))
    for gate in known_gates().values():
        if gate.kubelet:
            gates.set(float(settings.gates.enabled(gate.name)), gate.name, STAGES.get(gate.stage, gate.stage.upper()))
    total = metrics.counter("process_cpu_seconds_total", HELP["cpu_seconds_total"])
    gauges = {
        name: metrics.gauge(f"process_{name}", text) for name, text in HELP.items() if name != "cpu_seconds_total"
    }

    def refresh() -> None:
        found = process_stats()
        total.inc(by=found["cpu_seconds_total"] - total.value())
        for name, gauge in gauges.items():
            gauge.set(found[name])

    metrics.on_scrape(refresh)
