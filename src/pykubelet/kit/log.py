"""Structured logging: constant messages, facts as fields, the pod bound once per task.

Two formats, klog-like text and JSON lines, as the kubelet's `logging.format` setting names them. Fields are
given with `extra={...}`; the pod in `current_pod` is added to every line of its task. Values of fields
whose name looks like a secret, and the values of headers and tokens inside texts, never reach a line. The journal of
systemd gets each line's priority, so that `journalctl -p warning` shows what it should. Errors and information may go
to different streams, and single modules may say more than others.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from pykubelet.kit.text import plain, shortened

current_pod: ContextVar[str] = ContextVar("current_pod", default="")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "pod", "taskName"}
_SECRET_NAME = re.compile(r"token|password|secret_data|authorization|bearer|private_?key|credential", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"(?i)(bearer\s+|authorization:\s*\w+\s+|password[=:]\s*)[^\s\",]+")
LONGEST = 4096
"""Characters of one value; what pods and servers say may be in it."""
LONGEST_TRACEBACK = 32 * 1024
_PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 2}
"""Of syslog, which the journal uses."""
_LETTER = {"DEBUG": "I", "INFO": "I", "WARNING": "W", "ERROR": "E", "CRITICAL": "F"}


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = {}
    if pod := getattr(record, "pod", "") or current_pod.get():
        fields["pod"] = pod
    for key, value in vars(record).items():
        if key not in _STANDARD and not key.startswith("_"):
            fields[key] = "<masked>" if _SECRET_NAME.search(key) else value
    return fields


def clean(text: str, most: int = LONGEST) -> str:
    """The text without secrets and without what is no character, cut."""
    # Cut twice: a mask may be longer than what it hides, and the end of what is cut off must not be half a secret.
    return shortened(_SECRET_TEXT.sub(r"\1<masked>", plain(text[: 2 * most])), most)


def _quote(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value)
    return json.dumps(clean(str(value)), ensure_ascii=False)


def _listed(value: object) -> object:
    """Texts cut; lists and maps as they are unless they are long, then as a cut text."""
    if isinstance(value, str):
        return clean(value)
    text = str(value)
    return value if len(text) <= LONGEST else clean(text)


class TextFormatter(logging.Formatter):
    """`I1115 09:31:45.123456   4242 worker.py:77] "pod worker started" pod="default/web" uid="…"`"""

    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        micros = int(record.created % 1 * 1_000_000)
        head = f"{_LETTER.get(record.levelname, 'I')}{stamp}.{micros:06d} {os.getpid():7d}"
        line = f"{head} {record.filename}:{record.lineno}] {_quote(record.getMessage())}"
        for key, value in _fields(record).items():
            line += f" {key}={_quote(value)}"
        if record.exc_info:
            line += "\n" + clean(self.formatException(record.exc_info), LONGEST_TRACEBACK)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line with the keys component-base uses: ts (ms), caller, msg, v or err, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": round(record.created * 1000, 3),
            "caller": f"{record.filename}:{record.lineno}",
            "msg": clean(record.getMessage()),
            "level": record.levelname.lower(),
        }
        if record.levelno < logging.ERROR:
            entry["v"] = DEBUG_FROM if record.levelno <= logging.DEBUG else 0
        for key, value in _fields(record).items():
            entry[key] = value if value is None or isinstance(value, bool | int | float) else _listed(value)
        if record.exc_info:
            entry["err"] = clean(self.formatException(record.exc_info), LONGEST_TRACEBACK)
        return json.dumps(entry, ensure_ascii=False, default=str)


class JournalFormatter(logging.Formatter):
    """Each line of another format with its priority before it, which the journal takes off again (sd-daemon(3))."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        mark = f"<{_PRIORITY.get(record.levelname, 6)}>"
        return "\n".join(mark + line for line in self._inner.format(record).split("\n"))


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the stream is the one that systemd connected with its journal: JOURNAL_STREAM has device and inode."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # closed, or no file at all
        return False
    return environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


LARGEST_BUFFER = 2**31
TOLERATED = 60.0
"""Seconds by which lines may be late before logging counts as blocked."""


class BufferedHandler(logging.StreamHandler[TextIO]):
    """Holds lines back until the next one does not fit, at most for some seconds."""

    def __init__(self, stream: TextIO, *, size: int, every: float) -> None:
        """`size` in bytes, `every` in seconds."""
        super().__init__(stream)
        self._size = min(size, LARGEST_BUFFER)
        self._every = every
        self._held: list[str] = []
        self._length = 0
        self._held_since = 0.0
        self._writing = False
        self._flusher: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + self.terminator
            length = len(line.encode("utf-8", "replace"))
            if self._length + length > self._size:
                self.flush()
            if not self._held:
                self._held_since = time.monotonic()
            self._held.append(line)
            self._length += length
            if length > self._size:
                self.flush()
            elif self._flusher is None:
                self._flusher = threading.Thread(target=self._flush_often, name="log flush", daemon=True)
                self._flusher.start()
        except Exception:  # as every handler: a line that cannot be written must not stop the agent
            self.handleError(record)

    def flush(self) -> None:
        """Write what is held back; also called at the end of the process."""
        self.acquire()
        try:
            held, self._held, self._length = self._held, [], 0
            if held:
                self._writing = True
                try:
                    self.stream.write("".join(held))
                    self.stream.flush()
                finally:
                    self._writing = False
        finally:
            self.release()

    def is_late(self) -> bool:
        """Whether a line waits for much longer than it should."""
        return (bool(self._held) or self._writing) and time.monotonic() - self._held_since > self._every + TOLERATED

    def _flush_often(self) -> None:
        while True:
            time.sleep(self._every)
            with suppress(OSError, ValueError):  # a closed stream; the next line complains about it
                self.flush()


class Output(Struct, frozen=True, kw_only=True):
    """Where lines go and how."""

    json_format: bool = False
    split: bool = False
    """Lines of errors to standard error, those of information to standard output."""
    buffer_bytes: int = 0
    """How much information is held back while streams are split."""
    flush_every: float = 5.0
    """Seconds that a line is held back at most."""

    def handlers(self, errors: TextIO, infos: TextIO) -> list[logging.Handler]:
        if not self.split:
            return [self._formatted(logging.StreamHandler(errors), errors)]
        # As upstream: a warning is no information in text, and no error in JSON.
        first = logging.ERROR if self.json_format else logging.WARNING
        low: logging.Handler = logging.StreamHandler(infos)
        if self.buffer_bytes > 0:
            low = BufferedHandler(infos, size=self.buffer_bytes, every=self.flush_every)
        low.addFilter(lambda record: record.levelno < first)
        high = logging.StreamHandler(errors)
        high.setLevel(first)
        return [self._formatted(high, errors), self._formatted(low, infos)]

    def _formatted(self, handler: logging.Handler, stream: TextIO) -> logging.Handler:
        formatter = JsonFormatter() if self.json_format else TextFormatter()
        handler.setFormatter(JournalFormatter(formatter) if is_journal(stream, os.environ) else formatter)
        return handler


def problem() -> str:
    """Why lines that are held back are not written; empty when they are."""
    held = [each for each in logging.getLogger(PACKAGE).handlers if isinstance(each, BufferedHandler)]
    return "logging blocked" if any(each.is_late() for each in held) else ""


DEBUG_FROM = 4
"""The verbosity from which each step is shown."""
PACKAGE = "pykubelet"


def set_verbosity(verbosity: int) -> None:
    logging.getLogger(PACKAGE).setLevel(_level(verbosity))


def _level(verbosity: int) -> int:
    return logging.DEBUG if verbosity >= DEBUG_FROM else logging.INFO


def set_module_verbosity(patterns: Sequence[tuple[str, int]]) -> None:
    """Show more of the modules whose file matches: by its name, `worker`, or its path below the package, `sync/w*`.

    The first pattern that matches a module counts. None makes a module say less than the verbosity of all.
    """
    root = Path(__file__).parent.parent
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            continue  # a package's level would be that of everything below it
        found = next((level for pattern, level in patterns if _matches(pattern, parts)), 0)
        level = _level(found) if found >= DEBUG_FROM else logging.NOTSET
        logging.getLogger(".".join((PACKAGE, *parts))).setLevel(level)


def _matches(pattern: str, parts: Sequence[str]) -> bool:
    return fnmatchcase("/".join(parts) if "/" in pattern else parts[-1], pattern)


def set_up(
    output: Output | None = None,
    *,
    verbosity: int = 0,
    vmodule: Sequence[tuple[str, int]] = (),
    stream: TextIO | None = None,
) -> None:
    """Log to `stream`, or to the standard streams. `vmodule` has patterns of modules with a verbosity of their own."""
    logger = logging.getLogger(PACKAGE)
    chosen = output or Output()
    logger.handlers[:] = chosen.handlers(stream or sys.stderr, stream or sys.stdout)
    logger.propagate = False
    set_verbosity(verbosity)
    if vmodule:
        set_module_verbosity(vmodule)
