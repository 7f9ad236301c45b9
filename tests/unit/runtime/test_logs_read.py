"""Reading and following logs: selection, rotation under the reader, the end of the container."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api.times import format_nano_time
from pykubelet.kit.clock import LoopClock, SystemClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.runtime.logs import parse_line
from pykubelet.runtime.logs_read import AHEAD, BLOCK, ReadOptions, Selection, later_files, read_logs, waking
from pykubelet.runtime.logs_rotate import compress

BASE = 1_700_000_000 * 1_000_000_000


def stamp(second: int) -> str:
    return format_nano_time(BASE + second * 1_000_000_000, fixed=True)


class Log:
    """A log file as a runtime writes it: open across renames."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "0.log"
        self.second = 0
        self.alive = True
        self._fd = self._open()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)

    def write(self, *texts: str, stream: str = "stdout", tag: str = "F") -> None:
        for text in texts:
            os.write(self._fd, f"{stamp(self.second)} {stream} {tag} {text}\n".encode())
            self.second += 1

    def raw(self, data: bytes) -> None:
        os.write(self._fd, data)

    def rotate(self, name: str, *, packed: bool = False) -> None:
        rotated = self.path.with_name(f"0.log.{name}")
        os.rename(self.path, rotated)
        self.open_anew()
        if packed:
            compress(rotated)

    def open_anew(self) -> None:
        os.close(self._fd)
        self._fd = self._open()

    async def is_running(self) -> bool:
        return self.alive

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    made = Log(tmp_path)
    yield made
    made.close()


async def read(log: Log, **options: Any) -> str:
    pieces = read_logs(log.path, ReadOptions(**options), clock=LoopClock(), is_running=log.is_running)
    return b"".join([piece async for piece in pieces]).decode()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "one\ntwo\nlong line\nerr\n"),
        ({"tail": 1}, "err\n"),
        ({"tail": 3}, "long line\nerr\n"),
        ({"tail": 0}, ""),
        ({"stream": "stderr"}, "err\n"),
        ({"limit_bytes": 5}, "one\nt"),
        ({"limit_bytes": 0}, ""),
        ({"since": BASE + 1_000_000_000}, "two\nlong line\nerr\n"),
        ({"since": BASE + 99_000_000_000}, ""),
        ({"tail": 1, "timestamps": True}, f"{stamp(4)} err\n"),
        ({"tail": 3, "timestamps": True}, f"{stamp(2)} long line\n{stamp(4)} err\n"),
    ],
)
async def test_what_is_asked_for(log: Log, options: dict[str, Any], text: str) -> None:
    log.write("one", "two")
    log.write("long ", tag="P")
    log.write("line")
    log.write("err", stream="stderr")
    log.raw(b"a torn rec")
    assert await read(log, **options) == text


async def test_lines_longer_than_a_block_and_foreign_bytes(log: Log) -> None:
    log.write("x" * 200_000)
    log.raw(b"\x00\xff garbage\n")
    log.write("after")
    assert await read(log) == "x" * 200_000 + "\nafter\n"


RECORDS = st.one_of(
    st.builds(
        lambda second, stream, tag, text: f"{stamp(second)} {stream} {tag} {text}".encode(),
        st.integers(0, 9),
        st.sampled_from(["stdout", "stderr"]),
        st.sampled_from(["F", "F", "F", "P", "F:x", "X"]),
        st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20),
    ),
    st.sampled_from([b"", b"torn", b"a b c d", stamp(1).encode() + b" stdout F", b"\xff stdout F x"]),
)


@given(
    st.lists(RECORDS, max_size=12).map(lambda records: b"".join(record + b"\n" for record in records)),
    st.integers(1, 100),
    st.booleans(),
    st.sampled_from([None, "stdout", "stderr"]),
)
def test_however_the_file_is_cut_the_same_comes_out(
    raw: bytes, size: int, timestamps: bool, stream: str | None
) -> None:
    selection = Selection(ReadOptions(timestamps=timestamps, stream=stream))
    found = b"".join(selection.take(raw[at : at + size]) for at in range(0, len(raw), size))
    wanted, fresh = b"", True
    for line in raw.split(b"\n"):
        record = parse_line(line + b"\n")
        if record is None or stream not in (None, record.stream.decode()):
            continue
        wanted += (record.time + b" " if timestamps and fresh else b"") + record.content
        fresh = not record.partial
    assert found == wanted


async def test_a_big_log_is_read_ahead(log: Log) -> None:
    lines = [f"{n} ".ljust(1000, "x") for n in range((BLOCK + AHEAD + BLOCK // 2) // 1000)]
    log.write(*lines)
    assert await read(log) == "\n".join(lines) + "\n"
    assert await read(log, limit_bytes=BLOCK + 10) == ("\n".join(lines))[: BLOCK + 10]


async def test_no_log_is_an_error(log: Log) -> None:
    log.path.unlink()
    with pytest.raises(FileNotFoundError):
        await read(log)


class Follower:
    def __init__(self, log: Log, **options: Any) -> None:
        self.text = ""
        self.done = False
        self._pieces = read_logs(
            log.path, ReadOptions(follow=True, **options), clock=LoopClock(), is_running=log.is_running
        )

    async def run(self) -> None:
        async for piece in self._pieces:
            self.text += piece.decode()
        self.done = True


async def test_following_shows_what_is_written_and_ends_with_the_container(log: Log) -> None:
    clock = LoopClock()
    log.write("before")
    follower = Follower(log)
    async with TaskSet("followers") as tasks:
        tasks.spawn(follower.run(), name="follower")
        await clock.sleep(1.5)
        assert follower.text == "before\n"
        log.raw(f"{stamp(9)} stdout F in two".encode())
        await clock.sleep(2)
        assert follower.text == "before\n"
        log.raw(b" halves\n")
        await clock.sleep(2)
        assert follower.text == "before\nin two halves\n"
        log.write("last words")
        log.alive = False
        await clock.sleep(2)
        assert (follower.text, follower.done) == ("before\nin two halves\nlast words\n", True)


async def test_following_crosses_rotations_without_losing_a_line(log: Log) -> None:
    clock = LoopClock()
    follower = Follower(log, tail=0)
    log.write("not this")
    async with TaskSet("followers") as tasks:
        await clock.sleep(0)
        follower = Follower(log, tail=0)
        tasks.spawn(follower.run(), name="follower")
        await clock.sleep(0.5)
        log.write("a")
        log.rotate("20240101-000001")
        log.write("b")
        await clock.sleep(3)
        assert follower.text == "a\nb\n"
        # Several rotations between two looks, some compressed already.
        log.write("c")
        log.rotate("20240101-000002", packed=True)
        log.write("d")
        log.rotate("20240101-000003", packed=True)
        log.write("e")
        log.rotate("20240101-000004")
        log.write("f")
        await clock.sleep(5)
        assert follower.text == "a\nb\nc\nd\ne\nf\n"
        log.alive = False
        await clock.sleep(2)
        assert follower.done


async def test_following_goes_on_when_the_log_was_removed_and_made_again(log: Log) -> None:
    clock = LoopClock()
    follower = Follower(log)
    async with TaskSet("followers") as tasks:
        tasks.spawn(follower.run(), name="follower")
        await clock.sleep(0.5)
        log.path.unlink()
        log.open_anew()
        log.write("anew")
        await clock.sleep(3)
    assert follower.text == "anew\n"


async def test_following_ends_at_its_limit_and_survives_the_folder(log: Log, tmp_path: Path) -> None:
    log.write("12345")
    assert await read(log, follow=True, limit_bytes=3) == "123"
    pieces = read_logs(log.path, ReadOptions(follow=True), clock=LoopClock(), is_running=log.is_running)
    async with aclosing(pieces):
        assert await anext(pieces) == b"12345\n"
        log.path.unlink()
        tmp_path.rename(tmp_path.with_name("elsewhere"))
        log.alive = False
        assert [piece async for piece in pieces] == []
    tmp_path.with_name("elsewhere").rename(tmp_path)


def test_which_files_come_later(tmp_path: Path) -> None:
    for name in ("0.log", "0.log.1.gz", "0.log.2", "0.log.2.gz", "0.log.3.gz.tmp", "0.log.3", "1.log.9"):
        (tmp_path / name).touch()
    path = tmp_path / "0.log"
    assert [each.name for each in later_files(path, "0.log.1.gz")] == ["0.log.2", "0.log.3"]
    assert [each.name for each in later_files(path, "0.log.1")] == ["0.log.2", "0.log.3"]
    assert later_files(path, "0.log.3") == []
    assert later_files(path, "0.log") == []


@pytest.mark.real_loop
async def test_inotify_wakes_a_follower_at_once(log: Log) -> None:
    clock = SystemClock()
    with waking(log.path.parent) as waker:
        assert waker is not None
        pieces: AsyncIterator[bytes] = read_logs(
            log.path, ReadOptions(follow=True), clock=clock, is_running=log.is_running, waker=waker
        )
        begun = clock.monotonic()
        for text in ("one", "two"):
            asyncio.get_running_loop().call_later(0.01, log.write, text)
            assert await anext(pieces) == f"{text}\n".encode()
        assert clock.monotonic() - begun < 0.9
        log.alive = False
        assert [piece async for piece in pieces] == []


async def test_without_inotify_there_is_no_waker(tmp_path: Path) -> None:
    with waking(tmp_path / "missing") as waker:
        assert waker is None


@pytest.mark.real_loop
async def test_the_tail_is_searched_beside_the_loop(log: Log) -> None:
    log.write(*("x" * 100 for _ in range(1000)))
    log.alive = False
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async with TaskSet("ticks") as tasks:
        tasks.spawn(tick(), name="tick")
        await asyncio.sleep(0)
        ticks = 0
        options = ReadOptions(tail=10**9)
        async with aclosing(read_logs(log.path, options, clock=SystemClock(), is_running=log.is_running)) as pieces:
            first = await anext(pieces)
        assert len(first) > 10_000
        assert ticks > 0, "others had their turn before the first piece"


async def test_a_follower_looks_as_often_as_its_pace_allows(log: Log) -> None:
    clock, looks = LoopClock(), list[float]()

    async def is_running() -> bool:
        looks.append(clock.monotonic())
        log.write("line")  # as busy as can be
        return len(looks) < 6

    class Awake:
        async def wait(self, at_most: float) -> None:
            return

    pieces = read_logs(
        log.path, ReadOptions(follow=True), clock=clock, is_running=is_running, waker=Awake(), pace=lambda: 3.0
    )
    assert len([piece async for piece in pieces]) == 6
    assert all(later - earlier >= 3.0 for earlier, later in itertools.pairwise(looks[1:]))
