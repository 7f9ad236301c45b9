"""The CRI log format, and the end of a log as the container wrote it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pykubelet.runtime.logs import BLOCK, LogFiles, LogLine, open_log, parse_line, tail_offset

T = b"2024-01-02T03:04:05.000000006Z"


def record(text: str, *, stream: str = "stdout", tag: str = "F") -> str:
    return f"{T.decode()} {stream} {tag} {text}\n"


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (T + b" stdout F hello there\n", LogLine(T, b"stdout", False, b"hello there\n")),
        (T + b" stderr P part\n", LogLine(T, b"stderr", True, b"part")),
        (T + b" stdout F:x \n", LogLine(T, b"stdout", False, b"\n")),
        (T + b" stdout F  two\n", LogLine(T, b"stdout", False, b" two\n")),
        (T + b" stdout F\n", LogLine(T, b"stdout", False, b"\n")),
        (T + b" stdout X y\n", None),
        (T + b" other F y\n", None),
        (b"nonsense\n", None),
        (b"\n", None),
    ],
)
def test_one_record(raw: bytes, line: LogLine | None) -> None:
    assert parse_line(raw) == line


@pytest.mark.parametrize(
    ("text", "lines", "limit", "tail"),
    [
        (record("a") + record("b") + record("c"), 2, 100, "b\nc\n"),
        (record("a") + record("b"), 80, 100, "a\nb\n"),
        (record("a") + record("b"), 0, 100, ""),
        ("", 80, 100, ""),
        (record("par", tag="P") + record("tial"), 80, 100, "partial\n"),
        (record("out") + record("err", stream="stderr"), 80, 100, "out\nerr\n"),
        (record("12345678"), 80, 4, "678\n"),
        (record("a") + "torn line without its end", 80, 100, "a\n"),
        (record("a\rb"), 80, 100, "a\rb\n"),
        (record("ü"), 80, 2, "\ufffd\n"),
    ],
)
def test_tail(tmp_path: Path, text: str, lines: int, limit: int, tail: str) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(text.encode())
    assert LogFiles().tail(path, lines=lines, limit_bytes=limit) == tail


def test_tail_of_a_long_log_reads_its_end_only(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_text("".join(record(f"line {n} " + "x" * (n % 300)) for n in range(3000)))
    tail = LogFiles().tail(path, lines=80, limit_bytes=1_000_000)
    assert [line.split(" ")[1] for line in tail.splitlines()] == [str(n) for n in range(2920, 3000)]
    with open_log(path) as file:
        assert tail_offset(file, 80) > os.stat(path).st_size - 80 * 400 - BLOCK


def test_no_log_no_tail(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        assert LogFiles().tail(tmp_path / name, lines=5, limit_bytes=5) == ""


def test_where_any_number_of_records_begins(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    lines = [record("x" * (n * 37 % 900)).encode() for n in range(200)]
    path.write_bytes(b"".join(lines))
    with open_log(path) as file:
        for count in (1, 2, 50, 199, 200, 201, 10**9):
            assert tail_offset(file, count) == sum(map(len, lines[:-count] if count < 200 else []))


def test_a_log_is_closed_while_a_read_of_it_hangs(tmp_path: Path) -> None:
    """Whoever gives up on a disk that does not answer must not wait for it at the end after all."""
    path = tmp_path / "0.log"
    path.write_text(record("hello"))
    file = open_log(path)
    silent, speaker = os.pipe()
    os.dup2(silent, file.fileno())
    reader = threading.Thread(target=file.read, args=(1,), daemon=True)
    closer = threading.Thread(target=file.close, daemon=True)
    reader.start()
    while Path(f"/proc/self/task/{reader.native_id}/syscall").read_text().split()[0] == "running":
        pass  # it hangs once it sleeps in its read
    closer.start()
    closer.join(2)
    stuck = closer.is_alive()
    os.write(speaker, b"x")
    reader.join(5)
    closer.join(5)
    os.close(speaker)
    os.close(silent)
    assert not stuck
