"""Structured logging: constant messages, facts as fields, the pod bound once per task.

Two formats, klog-like text and JSON lines, as the kubelet's `logging.format` setting names them. Fields are
given with `extra={...}`; the pod in `current_pod` is added to every line of its task. Values of fields
whose name looks like a secret, and the values of headers and tokens inside texts, never reach a line. The journal of
systemd gets each line's priority, so that `journalctl -p warning` shows what it should.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TextIO

from pykubelet.kit.text import shortened

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


def _clean(text: str, most: int = LONGEST) -> str:
    # Cut twice: a mask may be longer than what it hides, and the end of what is cut off must not be half a secret.
    return shortened(_SECRET_TEXT.sub(r"\1<masked>", text[: 2 * most]), most)


def _quote(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value)
    return json.dumps(_clean(str(value)), ensure_ascii=False)


def _listed(value: object) -> object:
    """Texts cut; lists and maps as they are unless they are long, then as a cut text."""
    if isinstance(value, str):
        return _clean(value)
    text = str(value)
    return value if len(text) <= LONGEST else _clean(text)


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
            line += "\n" + _clean(self.formatException(record.exc_info), LONGEST_TRACEBACK)
        return line


class JsonFormatter(logging.Formatter):
    """One object a line with the keys component-base uses: ts (ms), caller, msg, v, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "ts": round(record.created * 1000, 3),
            "caller": f"{record.filename}:{record.lineno}",
            "msg": _clean(record.getMessage()),
            "level": record.levelname.lower(),
        }
        for key, value in _fields(record).items():
            entry[key] = value if value is None or isinstance(value, bool | int | float) else _listed(value)
        if record.exc_info:
            entry["err"] = _clean(self.formatException(record.exc_info), LONGEST_TRACEBACK)
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


def set_up(*, json_format: bool = False, verbosity: int = 0, stream: TextIO | None = None) -> None:
    """Install one handler on the package's logger; verbosity 4 and up shows each step."""
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    formatter = JsonFormatter() if json_format else TextFormatter()
    handler.setFormatter(JournalFormatter(formatter) if is_journal(target, os.environ) else formatter)
    logger = logging.getLogger("pykubelet")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if verbosity >= 4 else logging.INFO)
