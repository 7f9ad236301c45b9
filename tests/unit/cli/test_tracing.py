"""Tracing costs nothing where it is not configured, and says what is missing where it is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from pykubelet.cli.tracing import spans_sent
from pykubelet.kit import tracing
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.metrics import Registry
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.settings import Settings

IMPORT_ALL = """
import sys
import pykubelet.cli.agent_edges, pykubelet.cli.cluster_edges, pykubelet.kubelet, pykubelet.server.http
print([name for name in sys.modules if name.startswith(("opentelemetry", "pykubelet.clients.otlp"))])
"""


def settings_with(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "config.yaml"
    file.write_text(f"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n{text}\n")
    loaded = load_settings([f"--config={file}"], environ={})
    assert isinstance(loaded, LoadedSettings)
    return loaded.settings


def test_nothing_of_it_is_imported_by_an_agent_that_sends_no_spans() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_without_the_setting_nothing_is_made(tmp_path: Path) -> None:
    metrics = Registry()
    async with spans_sent(settings_with(tmp_path, ""), clock=SystemClock(), metrics=metrics):
        assert tracing.span("a") is tracing.NO_SPAN
    assert "spans" not in metrics.expose()


async def test_without_the_libraries_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("pykubelet.clients.otlp")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError) as refused:
        async with spans_sent(settings_with(tmp_path, "tracing: {}"), clock=SystemClock(), metrics=Registry()):
            pass
    (problem,) = refused.value.problems
    assert problem.startswith("tracing: its libraries are not installed (")
    assert "pip install 'pykubelet[tracing]'" in problem


@pytest.mark.real_loop
async def test_with_the_setting_spans_are_made_by_its_rate(tmp_path: Path) -> None:
    chosen = settings_with(tmp_path, "tracing: {endpoint: 'unix:///nowhere', samplingRatePerMillion: 1000000}")
    metrics = Registry()
    async with spans_sent(chosen, clock=SystemClock(), metrics=metrics):
        with tracing.span("a") as span:
            assert span.recorded
            await asyncio.sleep(0)
    assert tracing.span("a") is tracing.NO_SPAN
    assert metrics.counter("pykubelet_spans_dropped_total", "").value() == 1
    async with spans_sent(settings_with(tmp_path, "tracing: {}"), clock=SystemClock(), metrics=Registry()):
        assert not tracing.span("a").recorded and tracing.span("a").carrier
