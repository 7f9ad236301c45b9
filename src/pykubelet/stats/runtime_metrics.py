"""/metrics/cadvisor with the gate PodAndContainerStatsFromCRI: the series that the runtime itself keeps of its pods.

The runtime says once which series it has, and at each scrape their values. A series that it did not name before, whose
labels do not fit or whose name no scraper would read is left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence

from pykubelet.clients.cri.port import CriSandboxes
from pykubelet.kit.metrics import render_help, render_labels
from pykubelet.model.errors import CriError
from pykubelet.wire import cri_pb2 as pb

logger = logging.getLogger(__name__)

NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
KINDS = {pb.COUNTER: "counter", pb.GAUGE: "gauge"}
UNTYPED = "untyped"
"""Of a kind that is newer than this agent."""


class RuntimeMetrics:
    def __init__(self, cri: CriSandboxes) -> None:
        self._cri = cri
        self._known: Mapping[str, pb.MetricDescriptor] = {}
        self._problem = ""
        """The error that was logged last."""

    async def text(self) -> str:
        """All series; empty while the runtime does not answer, or has none."""
        try:
            if not self._known:
                self._known = {each.name: each for each in await self._cri.list_metric_descriptors() if _is_sound(each)}
            pods = await self._cri.list_pod_sandbox_metrics()
        except CriError as error:
            if str(error) != self._problem:
                logger.error("no metrics from the runtime", extra={"error": str(error)})
            self._problem = str(error)
            return ""
        self._problem = ""
        return render(self._known, pods)


def _is_sound(descriptor: pb.MetricDescriptor) -> bool:
    return bool(NAME.fullmatch(descriptor.name)) and all(LABEL.fullmatch(key) for key in descriptor.label_keys)


def render(known: Mapping[str, pb.MetricDescriptor], pods: Sequence[pb.PodSandboxMetrics]) -> str:
    """Family by family, in the order of their names."""
    families: dict[str, list[pb.Metric]] = {}
    for metric in _all_of(pods):
        descriptor = known.get(metric.name)
        if descriptor is not None and len(metric.label_values) == len(descriptor.label_keys):
            families.setdefault(metric.name, []).append(metric)
    lines: list[str] = []
    for name, metrics in sorted(families.items()):
        kind = KINDS.get(metrics[0].metric_type, UNTYPED)
        lines += [f"# HELP {name} {render_help(known[name].help)}", f"# TYPE {name} {kind}"]
        # One of each: a scraper refuses everything for two series of the same labels.
        lines += {tuple(metric.label_values): _line(known[name], metric) for metric in metrics}.values()
    return "".join(f"{line}\n" for line in lines)


def _all_of(pods: Iterable[pb.PodSandboxMetrics]) -> Iterable[pb.Metric]:
    for pod in pods:
        yield from pod.metrics
        for container in pod.container_metrics:
            yield from container.metrics


def _line(descriptor: pb.MetricDescriptor, metric: pb.Metric) -> str:
    at = f" {metric.timestamp // 1_000_000}" if metric.timestamp else ""  # 0: measured when it was asked for
    return f"{metric.name}{render_labels(descriptor.label_keys, metric.label_values)} {metric.value.value}{at}"
