"""A real OpenTelemetry collector on loopback: it takes OTLP over gRPC and writes what it took into a file."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.bed.cluster import go_programs
from tests.bed.parts import free_port
from tests.bed.services import Service


class CollectedSpan(Struct, frozen=True, kw_only=True):
    service: str
    name: str
    trace: str
    id: str
    parent: str
    """Empty for the first of a trace."""
    kind: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    links: list[str]
    """Traces that it names."""
    start: int
    end: int
    failed: bool


class Collector:
    """Every method blocks."""

    def __init__(self, folder: Path) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self._file = folder / "spans.jsonl"
        config = folder / "collector.json"  # JSON is YAML
        config.write_text(json.dumps(self._config()))
        self._service = Service("otelcol", [go_programs("otelcol") / "otelcol", "--config", f"file:{config}"], folder)

    def _config(self) -> dict[str, Any]:
        return {
            "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": self.endpoint}}}},
            "exporters": {"file": {"path": str(self._file), "flush_interval": "100ms"}},
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        }

    def start(self) -> None:
        self._service.start()
        self._service.wait_for("answer", self._listens)

    def stop(self) -> None:
        """Also writes what it has not yet written."""
        self._service.stop()

    def _listens(self) -> bool:
        host, _, port = self.endpoint.partition(":")
        with socket.socket() as attempt:
            return attempt.connect_ex((host, int(port))) == 0

    def spans(self) -> list[CollectedSpan]:
        """All that were taken so far."""
        lines = self._file.read_text().splitlines(keepends=True) if self._file.exists() else []
        groups = [group for line in lines if line.endswith("\n") for group in json.loads(line)["resourceSpans"]]
        return [
            _span(_pairs(group["resource"].get("attributes", [])), span)
            for group in groups
            for scope in group["scopeSpans"]
            for span in scope["spans"]
        ]


def _span(resource: dict[str, Any], span: dict[str, Any]) -> CollectedSpan:
    return CollectedSpan(
        service=resource.get("service.name", ""),
        name=span["name"],
        trace=span["traceId"],
        id=span["spanId"],
        parent=span.get("parentSpanId", ""),
        kind=span["kind"],
        attributes=_pairs(span.get("attributes", [])),
        resource=resource,
        links=[link["traceId"] for link in span.get("links", [])],
        start=int(span["startTimeUnixNano"]),
        end=int(span["endTimeUnixNano"]),
        failed=span.get("status", {}).get("code") == 2,
    )


def _pairs(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    """Names and values; numbers come as text."""
    found: dict[str, Any] = {}
    for pair in attributes:
        ((kind, value),) = pair["value"].items()
        found[pair["key"]] = int(value) if kind == "intValue" else value
    return found


@contextmanager
def running_collector(folder: Path) -> Iterator[Collector]:
    collector = Collector(folder)
    collector.start()
    try:
        yield collector
    finally:
        collector.stop()
