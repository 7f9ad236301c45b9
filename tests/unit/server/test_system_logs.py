"""/logs/: files below one folder and nothing else, and the query of node log query."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from asyncinotify import Inotify, Mask

from pykubelet.server.node_logs import NodeLogQuery, SystemLogs, journal_command, node_log_query, open_below
from pykubelet.server.requests import Refused, Reply, Request, Response, Stream


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "log"
    (root / "sub").mkdir(parents=True)
    (root / "syslog").write_text("hello\n")
    (root / "sub" / "a<b").write_text("x")
    (root / "inside").symlink_to("syslog")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "log-other").mkdir()
    (tmp_path / "log-other" / "x").write_text("secret")
    (root / "outside").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to(tmp_path)
    os.mkfifo(root / "pipe")
    return root


async def ask(logs: SystemLogs, path: str, *query: tuple[str, str]) -> Reply:
    return await logs.handle(Request(path=f"/logs/{path}", params={"path": path}, query=query))


async def body(reply: Reply) -> bytes:
    if isinstance(reply, Response):
        return reply.body
    assert isinstance(reply, Stream)
    return b"".join([chunk async for chunk in reply.chunks])


@pytest.mark.real_loop
async def test_files_and_folders(root: Path) -> None:
    logs = SystemLogs(root=root, query_enabled=False)
    assert await body(await ask(logs, "syslog")) == b"hello\n"
    assert await body(await ask(logs, "inside")) == b"hello\n"
    listing = await body(await ask(logs, "sub/"))
    assert listing == b'<!doctype html>\n<pre>\n<a href="a%3Cb">a&lt;b</a>\n</pre>\n'
    assert b'<a href="sub/">sub/</a>' in await body(await ask(logs, ""))
    moved = await ask(logs, "sub")
    assert isinstance(moved, Response) and (moved.status, moved.headers) == (301, {"Location": "sub/"})


@pytest.mark.parametrize(
    "path",
    [
        "../secret", "sub/../../secret", "/../secret", "outside", "up/secret", "up/log-other/x", "../log-other/x",
        "pipe", "nothing", "a\0b", "//etc/passwd", "syslog/x", "x" * 5000,
    ],
)  # fmt: skip
async def test_nothing_outside_is_reachable(root: Path, path: str) -> None:
    with pytest.raises(Refused) as caught:
        await ask(SystemLogs(root=root, query_enabled=False), path)
    assert caught.value.status == 404


@pytest.mark.real_loop
async def test_services_without_a_journal(root: Path) -> None:
    logs = SystemLogs(root=root, query_enabled=True, find_program=lambda name: None)
    assert await body(await ask(logs, "", ("query", "syslog"))) == b"hello\n"
    assert b"no journal" in await body(await ask(logs, "", ("query", "nothing")))
    assert await body(await ask(logs, "", ("query", "/syslog"))) == b"hello\n"
    for path, status in (("/../secret", 406), ("/outside", 404)):
        with pytest.raises(Refused) as caught:
            await ask(logs, "", ("query", path))
        assert caught.value.status == status
    with pytest.raises(Refused, match="path not allowed"):
        await ask(logs, "sub/", ("query", "syslog"))


@pytest.mark.real_loop
async def test_the_journal_is_asked(root: Path, tmp_path: Path) -> None:
    program = tmp_path / "journalctl"
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    logs = SystemLogs(root=root, query_enabled=True, find_program=lambda name: str(program))
    found = await body(await ask(logs, "", ("query", "kubelet"), ("tailLines", "5")))
    assert found == b"--utc --no-pager --output=short-precise --pager-end --lines=5 --unit=kubelet\n"


def query(*pairs: tuple[str, str]) -> NodeLogQuery:
    return node_log_query(Request(query=pairs))


def test_a_query_becomes_a_command() -> None:
    found = query(
        ("query", "a.service"),
        ("query", "b"),
        ("sinceTime", "1970-01-01T00:00:05Z"),
        ("untilTime", "1970-01-01T00:00:09Z"),
        ("tailLines", "7"),
        ("pattern", "-x"),
        ("boot", "-1"),
    )
    assert found.services == ("a.service", "b")
    words = "--since=@5 --until=@9 --pager-end --lines=7 --unit=b --grep=-x --boot -1"
    wanted = ["journalctl", "--utc", "--no-pager", "--output=short-precise", *words.split()]
    assert journal_command("journalctl", found, "b") == wanted


@pytest.mark.parametrize(
    ("pairs", "status"),
    [
        ([("tailLines", "5")], 406),
        ([("query", "a"), ("tailLines", "x")], 400),
        ([("query", "a"), ("sinceTime", "x")], 400),
        ([("query", "a"), ("tailLines", "100001")], 406),
        ([("query", "a"), ("boot", "1")], 406),
        ([("query", "-a")], 406),
        ([("query", "a b")], 406),
        ([("query", "a" * 257)], 406),
        ([("query", name) for name in "abcde"], 406),
        ([("query", "/a"), ("query", "/b")], 406),
        ([("query", "/a"), ("query", "b")], 406),
        ([("query", "/a"), ("tailLines", "1")], 406),
        ([("query", "/a/../b")], 406),
        ([("query", "a"), ("sinceTime", "1970-01-01T00:00:05Z"), ("untilTime", "1970-01-01T00:00:01Z")], 406),
    ],
)
def test_bad_queries(pairs: list[tuple[str, str]], status: int) -> None:
    with pytest.raises(Refused) as caught:
        query(*pairs)
    assert caught.value.status == status


@pytest.mark.real_loop
async def test_a_query_for_a_folder_leaves_nothing_open(root: Path) -> None:
    logs = SystemLogs(root=root, query_enabled=True, find_program=lambda name: None)
    before = os.listdir("/proc/self/fd")
    for name in ("./", "sub/", "./pipe", "./outside", "../secret"):
        with pytest.raises(Refused) as refused:
            await ask(logs, "", ("query", name))
        assert refused.value.status in (404, 406)
    assert b"no log file" in await body(await ask(logs, "", ("query", "sub")))
    assert os.listdir("/proc/self/fd") == before


def test_what_is_no_file_is_not_even_opened(root: Path) -> None:
    with Inotify(sync_timeout=0) as watched:
        watched.add_watch(root / "pipe", Mask.OPEN)
        with pytest.raises(FileNotFoundError):
            open_below(root, "pipe")
        os.set_blocking(watched.fd, False)
        with pytest.raises(BlockingIOError):
            os.read(watched.fd, 4096)
