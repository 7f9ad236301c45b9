"""Counters, gauges and histograms with the Prometheus text exposition.

A registry is made once and passed to its users; there is no global one. Written here because
the usual client library costs 5 MiB and locks on every increment, and this agent runs on one loop
(docs/decisions/003-own-metrics.md). Not covered: exemplars, summaries, push.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Mapping, Sequence

DEFAULT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

LabelValues = tuple[str, ...]


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def render_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def render_labels(names: Sequence[str], values: Sequence[str], extra: str = "") -> str:
    parts = [f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True)]
    if extra:
        parts.append(extra)
    return "{" + ",".join(parts) + "}" if parts else ""


def render_number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


class _Base:
    kind = ""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help_text
        self.labels = tuple(labels)

    def _key(self, values: tuple[str, ...]) -> LabelValues:
        if len(values) != len(self.labels):
            raise ValueError(f"metric {self.name} takes labels {self.labels}, got {values}")
        return values

    def _head(self) -> list[str]:
        return [f"# HELP {self.name} {render_help(self.help)}", f"# TYPE {self.name} {self.kind}"]


class Counter(_Base):
    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help_text, labels)
        self._values: dict[LabelValues, float] = {} if labels else {(): 0.0}

    def inc(self, *labels: str, by: float = 1.0) -> None:
        key = self._key(labels)
        self._values[key] = self._values.get(key, 0.0) + by

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def render(self) -> Iterable[str]:
        yield from self._head()
        for key, value in self._values.items():
            yield f"{self.name}{render_labels(self.labels, key)} {render_number(value)}"


class Gauge(Counter):
    kind = "gauge"

    def set(self, value: float, *labels: str) -> None:
        self._values[self._key(labels)] = value

    def remove(self, *labels: str) -> None:
        self._values.pop(labels, None)

    def replace(self, values: Mapping[LabelValues, float]) -> None:
        """Swap in a whole new set, so that series of things that are gone disappear."""
        self._values = dict(values)


class Histogram(_Base):
    kind = "histogram"

    def __init__(
        self, name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> None:
        super().__init__(name, help_text, labels)
        self.buckets = tuple(buckets)
        self._values: dict[LabelValues, tuple[list[int], list[float]]] = {}

    def observe(self, value: float, *labels: str) -> None:
        key = self._key(labels)
        slot = self._values.get(key)
        if slot is None:
            slot = self._values[key] = ([0] * (len(self.buckets) + 1), [0.0])
        slot[0][bisect.bisect_left(self.buckets, value)] += 1
        slot[1][0] += value

    def count(self, *labels: str) -> int:
        slot = self._values.get(labels)
        return sum(slot[0]) if slot else 0

    def render(self) -> Iterable[str]:
        yield from self._head()
        for key, (counts, total) in self._values.items():
            running = 0
            for bound, count in zip((*self.buckets, float("inf")), counts, strict=True):
                running += count
                le = f'le="{render_number(bound)}"'
                yield f"{self.name}_bucket{render_labels(self.labels, key, le)} {running}"
            yield f"{self.name}_sum{render_labels(self.labels, key)} {render_number(total[0])}"
            yield f"{self.name}_count{render_labels(self.labels, key)} {running}"


class Registry:
    """All instruments of one agent; asking twice for the same name gives the same instrument."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}
        self._collectors: list[Callable[[], None]] = []

    def on_scrape(self, refresh: Callable[[], None]) -> None:
        """Call `refresh` before each exposition, for gauges that mirror state kept elsewhere."""
        self._collectors.append(refresh)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = Counter(name, help_text, labels)
        return _same(found, Counter)

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = Gauge(name, help_text, labels)
        if not isinstance(found, Gauge):
            raise ValueError(f"metric {name} exists with another kind")
        return found

    def histogram(
        self, name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = DEFAULT_BUCKETS
    ) -> Histogram:
        found = self._metrics.get(name)
        if found is None:
            found = self._metrics[name] = Histogram(name, help_text, labels, buckets)
        if not isinstance(found, Histogram):
            raise ValueError(f"metric {name} exists with another kind")
        return found

    def expose(self) -> str:
        for refresh in self._collectors:
            refresh()
        lines = [line for name in sorted(self._metrics) for line in self._metrics[name].render()]
        return "\n".join(lines) + "\n" if lines else ""


def _same(found: Counter | Gauge | Histogram, kind: type[Counter]) -> Counter:
    if type(found) is not kind:
        raise ValueError(f"metric {found.name} exists with another kind")
    return found
