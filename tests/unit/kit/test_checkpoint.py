"""The checkpoint of every manager: what is saved is loaded, the rule for damage, and writing off the loop."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykubelet.kit import files
from pykubelet.kit.files import Checkpoint, CheckpointDamaged, Envelope, remove_unfinished, write_atomic


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: raw.replace(b"web", b"wob"),
        lambda raw: b"\x00\xff" * 20,
        lambda raw: b'{"data": 5, "checksum": ""}',
        lambda raw: b"[]",
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_counts_as_absent(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    envelope = Envelope(lambda data: zlib.crc32(json.dumps(data).encode()))
    checkpoint = Checkpoint(tmp_path / "state", encode=envelope.seal, decode=envelope.open)
    checkpoint.save_now({"pods": ["web"]})
    assert checkpoint.load() == {"pods": ["web"]}
    raw = checkpoint.path.read_bytes()
    checkpoint.path.write_bytes(damage(raw))  # type: ignore[operator]
    assert checkpoint.load() is None
    assert (tmp_path / "state.damaged").read_bytes() == damage(raw)  # type: ignore[operator]
    assert checkpoint.load() is None
    assert len(caplog.records) == 1, "logged once"
    checkpoint.save_now({"pods": []})
    assert checkpoint.load() == {"pods": []}


def test_an_owner_that_must_not_start_without_its_checkpoint_leaves_the_file_where_it_is(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "state", encode=json.dumps, decode=json.loads)  # type: ignore[arg-type]
    assert checkpoint.read() is None
    checkpoint.path.write_bytes(b"{torn")
    with pytest.raises(CheckpointDamaged):
        checkpoint.read()
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_what_is_no_file_at_all_counts_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    checkpoint = Checkpoint(tmp_path / "state", encode=bytes, decode=bytes)
    assert checkpoint.load() is None
    checkpoint.save_now(b"new")
    assert checkpoint.load() == b"new"
    assert (tmp_path / "state.damaged").is_dir()


# --- written off the loop -------------------------------------------------------------------------------------


class SlowDisk:
    """Writes wait until the test lets them."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.written: list[bytes] = []
        self.fails = False
        self.on_loop = False
        self._loop_thread = threading.get_ident()

    def write(self, path: Path, data: bytes, **options: Any) -> None:
        self.on_loop = self.on_loop or threading.get_ident() == self._loop_thread
        self.begun.release()
        assert self.gate.wait(30)
        if self.fails:
            raise OSError(28, "No space left on device")
        self.written.append(data)
        write_atomic(path, data, **options)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    made = SlowDisk()
    monkeypatch.setattr(files, "write_atomic", made.write)
    yield made
    made.gate.set()


@pytest.mark.real_loop
async def test_the_loop_goes_on_and_the_newest_content_is_last(tmp_path: Path, disk: SlowDisk) -> None:
    file = Checkpoint(tmp_path / "state", encode=bytes, decode=bytes)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        file.put(b"1")
        first = group.create_task(file.flush())
        while not disk.begun.acquire(blocking=False):  # noqa: ASYNC110 - the loop is free meanwhile
            await asyncio.sleep(0.005)
        file.put(b"2")
        second = group.create_task(file.flush())
        file.put(b"3")
        third = group.create_task(file.flush())
        await asyncio.sleep(0.02)
        assert not first.done() and not second.done() and not third.done(), "nobody acts on what is not on disk"
        disk.gate.set()
    assert disk.written == [b"1", b"3"] and file.path.read_bytes() == b"3" and not disk.on_loop
    await file.flush()
    assert len(disk.written) == 2


@pytest.mark.real_loop
async def test_a_cancelled_writer_lets_nobody_pass(tmp_path: Path, disk: SlowDisk) -> None:
    file = Checkpoint(tmp_path / "state", encode=bytes, decode=bytes)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        file.put(b"1")
        first = group.create_task(file.flush())
        while not disk.begun.acquire(blocking=False):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        file.put(b"2")
        second = group.create_task(file.flush())
        first.cancel()
        await asyncio.sleep(0.02)
        assert not first.done() and not disk.begun.acquire(blocking=False), "one write at a time"
        disk.gate.set()
        await second
    assert first.cancelled() and disk.written == [b"1", b"2"]


@pytest.mark.real_loop
async def test_a_refused_write_is_told_and_tried_again(tmp_path: Path, disk: SlowDisk) -> None:
    file = Checkpoint(tmp_path / "state", encode=bytes, decode=bytes)
    disk.gate.set()
    disk.fails = True
    file.put(b"1")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            await file.flush()
    disk.fails = False
    await file.flush()
    assert file.path.read_bytes() == b"1"


def test_what_a_killed_writer_left_is_removed_and_what_another_is_writing_is_not(tmp_path: Path) -> None:
    write = (
        "import os, sys; from pathlib import Path; from pykubelet.kit import files\n"
        "os.replace = lambda *paths: os.kill(os.getpid(), 9)\n"
        "files.write_atomic(Path(sys.argv[1]), b'new')"
    )
    state = tmp_path / "state"
    state.write_bytes(b"old")
    subprocess.run([sys.executable, "-c", write, str(state)], check=False)
    (left,) = tmp_path.glob(".*")
    mine, others = tmp_path / f".state.{os.getpid()}.tmp", tmp_path / f".state.{os.getppid()}.tmp"
    for path in (mine, others, tmp_path / ".hidden", tmp_path / ".name.tmp"):
        path.touch()
    remove_unfinished(tmp_path)
    assert not left.exists() and not mine.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"state", others.name, ".hidden", ".name.tmp"}
    assert state.read_bytes() == b"old"
