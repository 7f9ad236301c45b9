"""What `up` shows while it runs: a live table on a terminal, plain lines elsewhere; and what containers write.

Looks at the node, never touches it. Lines are for logs and pipes: one for each change of a pod, one for each line a
container writes. The live view repaints a few lines at the bottom of the terminal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct, field

from pykubelet.api.types import Pod
from pykubelet.cli import table
from pykubelet.cli.pods import age_text, ready_text, restarts, short_name, status_text
from pykubelet.kubelet import Kubelet
from pykubelet.model.pod import namespace_of, uid_of
from pykubelet.runtime.logs import LogFiles, open_log, parse_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

FIRST_LINES = 10
"""Of a log that exists already at the start."""
READ_AT_ONCE = 64 * 1024
TIMES = re.compile(r"\b[\d.]+ (ms|s|min|h|d)\b")


class Row(Struct, frozen=True, kw_only=True):
    """One pod as the view shows it."""

    uid: str
    name: str
    ready: str
    status: str
    restarts: str
    age: str
    note: str

    @property
    def line(self) -> str:
        """Without what changes by itself."""
        text = f"{self.name}: {self.status}, {self.ready} ready"
        return f"{text}: {self.note}" if self.note else text


class View(Protocol):
    def say(self, text: str) -> None: ...

    def show(self, rows: list[Row], lines: list[str]) -> None: ...

    def close(self) -> None: ...


def rows_of(node: Kubelet) -> list[Row]:
    now = datetime.now(UTC)
    rows = []
    for pod in sorted(node.explainer.pods(), key=lambda each: (namespace_of(each), short_name(each))):
        status = node.table.reported_status(uid_of(pod))
        if status is not None:
            pod = msgspec.structs.replace(pod, status=status)
        found = node.explainer.explain(pod)
        count, _ = restarts(pod)
        ending = found.state == "ending"
        rows.append(
            Row(
                uid=uid_of(pod),
                name=_named(pod),
                ready=ready_text(pod),
                status="Terminating" if ending else status_text(pod),
                restarts=str(count),
                age=age_text(pod.status.start_time, now) if pod.status.start_time else "",
                note="" if found.healthy else found.summary,
            )
        )
    return rows


def _named(pod: Pod) -> str:
    name = short_name(pod)
    return name if namespace_of(pod) == "default" else f"{namespace_of(pod)}/{name}"


class LogTails(Struct):
    """New lines of all containers' logs since the last call; blocking for the length of a short read."""

    offsets: dict[Path, int] = field(default_factory=dict)

    def fresh(self, node: Kubelet) -> list[str]:
        found = []
        for pod in node.table.pods():
            status = node.table.runtime_status(uid_of(pod))
            for container in pod.spec.containers:
                run = status.container(container.name)
                if run is not None and run.log_path:
                    label = _named(pod) if len(pod.spec.containers) == 1 else f"{_named(pod)}/{container.name}"
                    found += [f"{label} | {line}" for line in self._read(Path(run.log_path))]
        return found

    def _read(self, path: Path) -> Iterator[str]:
        try:
            with open_log(path) as file:
                size = os.fstat(file.fileno()).st_size
                if path not in self.offsets:
                    text = LogFiles().tail(path, lines=FIRST_LINES, limit_bytes=READ_AT_ONCE)
                    self.offsets[path] = size
                    yield from text.splitlines()
                    return
                at = self.offsets[path] if self.offsets[path] <= size else 0  # rotated: a new file begins
                if at == size:
                    return
                file.seek(at)
                raw = file.read(READ_AT_ONCE)
        except OSError:
            return
        whole = raw.rfind(b"\n") + 1
        self.offsets[path] = at + whole
        for line in raw[:whole].split(b"\n"):
            parsed = parse_line(line + b"\n")
            if parsed is not None:
                yield parsed.content.decode(errors="replace").rstrip("\r\n")


def essence(line: str) -> str:
    """The line without times, which change by themselves."""
    return TIMES.sub("", line)


class PlainView:
    """One line for each change."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._shown: dict[str, str] = {}

    def say(self, text: str) -> None:
        self._write(text)

    def show(self, rows: list[Row], lines: list[str]) -> None:
        for row in rows:
            if essence(self._shown.get(row.uid, "")) != essence(row.line):
                self._write(row.line)
            self._shown[row.uid] = row.line
        here = {row.uid for row in rows}
        for uid in [uid for uid in self._shown if uid not in here]:
            self._write(f"{self._shown.pop(uid).partition(':')[0]}: gone")
        for line in lines:
            self._write(line)

    def close(self) -> None:
        return


class LiveView:
    """A table that stays in its place, with messages and container logs scrolling above it."""

    def __init__(self, console: Console, title: str) -> None:
        from rich.live import Live

        self._title = title
        self._shown: list[Row] | None = None
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def say(self, text: str) -> None:
        self._live.console.print(text, highlight=False, markup=False)

    def show(self, rows: list[Row], lines: list[str]) -> None:
        for line in lines:
            self._live.console.print(line, highlight=False, markup=False, style="dim")
        if rows != self._shown:
            self._shown = rows
            self._live.update(self._table(rows), refresh=True)

    def _table(self, rows: list[Row]) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        made = Table(box=None, padding=(0, 3, 0, 0))
        for head in ("NAME", "READY", "STATUS", "RESTARTS", "AGE"):
            made.add_column(head, no_wrap=True)
        made.add_column("", ratio=1)
        for row in rows:
            status = Text(row.status, style=table.colour_of(row.status) or "")
            made.add_row(row.name, row.ready, status, row.restarts, row.age, Text(row.note, style="yellow"))
        title = Text(self._title, style="bold", no_wrap=True, overflow="ellipsis")
        return Group("", title, made if rows else Text("no pods yet"))

    def close(self) -> None:
        self._live.stop()
