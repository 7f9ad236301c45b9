"""Metrics about the agent itself are those of this process, and grow with it."""

from __future__ import annotations

import os
import time

from prometheus_client.parser import text_string_to_metric_families

from pykubelet.kit.metrics import Registry
from pykubelet.server.metrics import add_agent_metrics
from pykubelet.settings.load import LoadedSettings, load_settings


def values(metrics: Registry) -> dict[str, float]:
    families = text_string_to_metric_families(metrics.expose())
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


def test_the_process_is_shown() -> None:
    metrics = Registry()
    loaded = load_settings([], environ={})
    assert isinstance(loaded, LoadedSettings)
    add_agent_metrics(metrics, loaded.settings)
    first = values(metrics)
    assert abs(first["process_start_time_seconds"] - time.time()) < 86400 * 30
    assert 10e6 < first["process_resident_memory_bytes"] < first["process_virtual_memory_bytes"]
    assert 3 <= first["process_open_fds"] < first["process_max_fds"]
    before = time.process_time()
    while time.process_time() - before < 0.05:
        os.getpid()
    assert values(metrics)["process_cpu_seconds_total"] > first["process_cpu_seconds_total"]
