"""The kit: structured tasks, signals, back-off, log, metrics, checkpoints."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.kit import log
from pykubelet.kit.backoff import Backoff, BackoffTable
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.files import write_atomic
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Chore, ServiceStopped, TaskSet, Wakeup, both, finish, gather_all, running


class _Service:
    def __init__(self, name: str, work: asyncio.Event | None = None) -> None:
        self.name = name
        self._work = work
        self.stopped = False

    async def run(self) -> None:
        if self._work is None:
            return
        try:
            await self._work.wait()
        finally:
            self.stopped = True


async def test_services_live_as_long_as_the_block() -> None:
    service = _Service("s", asyncio.Event())
    async with running(service):
        await asyncio.sleep(1)
        assert not service.stopped
    assert service.stopped


async def test_a_service_that_returns_is_an_error() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        async with running(_Service("short")):
            await asyncio.sleep(10)
    assert isinstance(caught.value.exceptions[0], ServiceStopped)
    assert "short" in str(caught.value.exceptions[0])


async def test_cleanup_finishes_although_cancelled_and_the_cancel_goes_through() -> None:
    done = []

    async def cleanup() -> None:
        await asyncio.sleep(2)
        done.append(True)

    async def work() -> None:
        await finish(cleanup(), within=5)

    async with TaskSet("t") as tasks:
        task = tasks.spawn(work(), name="work")
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait({task})
        assert done == [True]
        assert task.cancelled()


async def test_cleanup_has_a_deadline() -> None:
    with pytest.raises(TimeoutError):
        await finish(asyncio.sleep(100), within=3)


async def test_gather_all_runs_siblings_to_their_end_before_it_raises() -> None:
    done = []

    async def slow() -> None:
        await asyncio.sleep(5)
        done.append("slow")

    async def broken() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await gather_all(slow(), broken())
    assert done == ["slow"]


async def test_both_gives_two_results_and_waits_for_the_second_when_the_first_fails() -> None:
    ended = []

    async def number() -> int:
        return 1

    async def word() -> str:
        await asyncio.sleep(0)
        ended.append("word")
        return "w"

    async def broken() -> None:
        raise ValueError("broken")

    assert await both(number(), word()) == (1, "w")
    with pytest.raises(ValueError, match="broken"):
        await both(broken(), word())
    assert ended == ["word", "word"]


async def test_a_chore_runs_beside_once_for_many_requests_and_survives_expected_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        await asyncio.sleep(10)
        raise OSError("the disk is full")

    chore = Chore("sweep", work, may_raise=(OSError,))
    async with running(chore):
        for _ in range(3):
            await chore.soon()
        await asyncio.sleep(1)
        assert runs == [0]
        await chore.soon()
        await asyncio.sleep(11)
        assert runs == [0, 1]
    assert [each.message for each in caplog.records] == ["a clean-up chore failed, will retry"]


async def test_a_signal_set_before_the_wait_is_not_lost_and_wakes_once() -> None:
    signal = Wakeup()
    signal.set()
    signal.set()
    assert await signal.wait(at_most=1)
    assert not await signal.wait(at_most=1)


def test_backoff_doubles_to_its_maximum() -> None:
    backoff = Backoff(initial=0.1, maximum=5)
    assert [round(backoff.next(), 1) for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    backoff.reset()
    assert backoff.next() == 0.1


def test_backoff_table_forgets_after_quiet() -> None:
    table = BackoffTable(initial=10, maximum=300, reset_after=600)
    assert [table.advance("a", now) for now in (0, 10, 30, 70)] == [10, 20, 40, 80]
    assert table.is_waiting("a", 100)
    assert not table.is_waiting("a", 151)
    assert table.advance("a", 1000) == 10
    table.collect(5000)
    assert len(table) == 0


def _record(message: str, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("pykubelet.x", logging.WARNING, "/x/worker.py", 7, message, (), None)
    for key, value in fields.items():
        setattr(record, key, value)
    return record


def test_text_lines_look_like_klog_and_carry_fields() -> None:
    log.current_pod.set("default/web")
    line = log.TextFormatter().format(_record("pod sync failed", failures=3, error='say "no"'))
    log.current_pod.set("")
    assert line.startswith("W")
    assert 'worker.py:7] "pod sync failed" pod="default/web" failures=3 error="say \\"no\\""' in line


def test_json_lines_parse() -> None:
    entry = json.loads(log.JsonFormatter().format(_record("hello", uid="u1")))
    assert entry["msg"] == "hello" and entry["uid"] == "u1" and entry["caller"] == "worker.py:7"


@pytest.mark.parametrize("formatter", [log.TextFormatter(), log.JsonFormatter()])
def test_nobody_makes_lines_without_end(formatter: logging.Formatter) -> None:
    long = "bearer " + "x" * 1_000_000
    try:
        raise ValueError(long)
    except ValueError:
        record = _record("failed " + long, text=long, answers=[long], count=3)
        record.exc_info = sys.exc_info()
    line = formatter.format(record)
    assert len(line) < 60_000 and "count" in line
    assert "xx" not in formatter.format(_record("failed", text="y" * 8000 + long))


@pytest.mark.parametrize("formatter", [log.TextFormatter(), log.JsonFormatter()])
def test_secrets_never_reach_a_line(formatter: logging.Formatter) -> None:
    line = formatter.format(_record("sent Authorization: Bearer abc.def", token="xyz", error="password=hunter2 bad"))
    for secret in ("abc.def", "xyz", "hunter2"):
        assert secret not in line


def test_set_up_writes_to_the_stream() -> None:
    stream = io.StringIO()
    log.set_up(stream=stream)
    logging.getLogger("pykubelet.test").info("here")
    logging.getLogger("pykubelet").handlers.clear()
    logging.getLogger("pykubelet").propagate = True
    assert '"here"' in stream.getvalue()


@pytest.fixture
def logs() -> Iterator[logging.Logger]:
    """The package's logger, as it was before afterwards."""
    logger = logging.getLogger("pykubelet")
    yield logger
    log.set_module_verbosity(())
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


def streams(monkeypatch: pytest.MonkeyPatch) -> tuple[io.StringIO, io.StringIO]:
    """What goes to standard output and to standard error."""
    found = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", found[0])
    monkeypatch.setattr(sys, "stderr", found[1])
    return found


@pytest.mark.parametrize(("as_json", "warns"), [(False, "errors"), (True, "infos")])
def test_streams_are_split(logs: logging.Logger, monkeypatch: pytest.MonkeyPatch, as_json: bool, warns: str) -> None:
    infos, errors = streams(monkeypatch)
    log.set_up(log.Output(json_format=as_json, split=True))
    logs.info("one")
    logs.warning("two")
    logs.error("three")
    assert "one" in infos.getvalue() and "three" not in infos.getvalue()
    assert "three" in errors.getvalue() and "one" not in errors.getvalue()
    assert ("two" in errors.getvalue()) == (warns == "errors")
    assert ("two" in infos.getvalue()) == (warns == "infos")


def test_one_stream_unless_split(logs: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    infos, errors = streams(monkeypatch)
    log.set_up(log.Output(buffer_bytes=1000))
    logs.info("one")
    assert infos.getvalue() == "" and "one" in errors.getvalue()


def test_information_is_held_back_until_it_does_not_fit(logs: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    infos, errors = streams(monkeypatch)
    log.set_up(log.Output(split=True, buffer_bytes=200, flush_every=3600))
    logs.info("one")
    logs.error("two")
    assert infos.getvalue() == "" and "two" in errors.getvalue()
    logs.info("three" * 20)
    assert "one" in infos.getvalue() and "three" not in infos.getvalue()
    logs.info("x" * 1000)
    assert infos.getvalue().count("\n") == 3
    logs.info("last")
    logs.handlers[1].flush()
    assert "last" in infos.getvalue()


def test_lines_that_are_not_written_are_a_problem(logs: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    streams(monkeypatch)
    log.set_up(log.Output(split=True, buffer_bytes=200, flush_every=3600))
    assert log.problem() == ""
    logs.info("one")
    assert log.problem() == ""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3600 + log.TOLERATED + 1)
    assert log.problem() == "logging blocked"
    logs.handlers[1].flush()
    assert log.problem() == ""


def test_a_stream_that_takes_nothing_is_a_problem(logs: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    infos, _ = streams(monkeypatch)
    log.set_up(log.Output(split=True, buffer_bytes=200, flush_every=3600))
    logs.info("one")
    now, seen = time.monotonic(), []

    def blocked(text: str) -> int:
        monkeypatch.setattr(time, "monotonic", lambda: now + 3600 + log.TOLERATED + 1)
        seen.append(log.problem())
        return len(text)

    monkeypatch.setattr(infos, "write", blocked)
    logs.handlers[1].flush()
    assert seen == ["logging blocked"] and log.problem() == ""


def test_one_odd_line_does_not_take_others_along(logs: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="utf-8"))
    log.set_up(log.Output(split=True, buffer_bytes=10_000, flush_every=3600))
    logs.info("one")
    logs.info("odd \udcff", extra={"path": "\udcff"})
    logs.handlers[1].flush()
    assert b"one" in raw.getvalue() and b"odd ?" in raw.getvalue()


def test_information_is_not_held_back_for_long(logs: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    infos, _ = streams(monkeypatch)
    log.set_up(log.Output(split=True, buffer_bytes=10_000, flush_every=0.01))
    logs.info("one")
    end = time.monotonic() + 30
    while "one" not in infos.getvalue():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("patterns", "shown"),
    [
        ([("worker", 4)], {"pykubelet.sync.worker"}),
        ([("sync/w*", 5)], {"pykubelet.sync.worker"}),
        ([("w*", 0), ("*", 9)], {"pykubelet.pleg.pleg"}),
        ([("worker", 3)], set()),
        ([("sync", 9)], set()),
    ],
)
def test_a_module_may_say_more(logs: logging.Logger, patterns: list[tuple[str, int]], shown: set[str]) -> None:
    log.set_up(vmodule=patterns, stream=io.StringIO())
    names = ("pykubelet.sync.worker", "pykubelet.pleg.pleg")
    assert {name for name in names if logging.getLogger(name).isEnabledFor(logging.DEBUG)} == shown


def test_no_module_says_less_than_all(logs: logging.Logger) -> None:
    log.set_up(verbosity=4, vmodule=[("worker", 0)], stream=io.StringIO())
    assert logging.getLogger("pykubelet.sync.worker").isEnabledFor(logging.DEBUG)
    log.set_verbosity(0)
    assert not logging.getLogger("pykubelet.sync.worker").isEnabledFor(logging.DEBUG)


def test_json_lines_have_a_verbosity_or_are_errors() -> None:
    def keys(level: int) -> dict[str, object]:
        record = _record("hello")
        record.levelno, record.levelname = level, logging.getLevelName(level)
        found: dict[str, object] = json.loads(log.JsonFormatter().format(record))
        return found

    assert [keys(level).get("v") for level in (logging.DEBUG, logging.INFO, logging.ERROR)] == [4, 0, None]


def test_the_journal_is_told_the_priority_of_every_line() -> None:
    record = _record("pod sync failed")
    try:
        raise ValueError("no")
    except ValueError:
        record.exc_info = sys.exc_info()
    lines = log.JournalFormatter(log.TextFormatter()).format(record).split("\n")
    assert len(lines) > 2 and all(line.startswith("<4>") for line in lines)
    assert lines[0].startswith("<4>W")


def test_only_the_stream_that_systemd_connected_is_the_journal(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        found = os.stat(stream.fileno())
        assert log.is_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        assert not log.is_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
        assert not log.is_journal(stream, {})
    assert not log.is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_metrics_text_parses() -> None:
    registry = Registry()
    registry.counter("a_total", "counts\nthings", ["kind"]).inc('odd"one\\', by=2)
    registry.gauge("b", "gauge").set(1.5)
    histogram = registry.histogram("c_seconds", "times", ["verb"], buckets=(0.1, 1))
    histogram.observe(0.05, "get")
    histogram.observe(7, "get")
    text = registry.expose()
    assert 'a_total{kind="odd\\"one\\\\"} 2' in text
    assert 'c_seconds_bucket{verb="get",le="+Inf"} 2' in text
    assert 'c_seconds_count{verb="get"} 2' in text
    with pytest.raises(ValueError, match="another kind"):
        registry.gauge("a_total", "x")


def test_atomic_write_replaces_and_sets_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"one", mode=0o640)
    write_atomic(path, b"two", mode=0o600)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


async def test_loop_clock_moves_with_the_loop() -> None:
    clock = LoopClock(start=100)
    before = clock.now()
    await clock.sleep(3600)
    assert round(clock.now() - before) == 3600


async def test_a_task_that_is_cancelled_before_it_began_leaves_no_complaint() -> None:
    async def work() -> None:
        raise AssertionError("never begun")

    async with TaskSet("test") as tasks:
        tasks.spawn(work(), name="early").cancel()
        await asyncio.sleep(0)
    assert len(tasks) == 0


def test_backoff_counts_failures_for_years() -> None:
    backoff = Backoff(initial=0.2, maximum=5.0, factor=8.0)
    assert {backoff.next() for _ in range(5000)} == {0.2, 1.6, 5.0}
    assert backoff.failures == 5000
