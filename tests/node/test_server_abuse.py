"""The server under attack: thousands of senseless requests, hundreds of callers who never finish a sentence.

Nothing may break, leak or be told that is none of the caller's business. Needs no runtime, only patience.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import time
from pathlib import Path

import pytest

from pykubelet.server.listeners import Limits
from tests.unit.server.support import RawClient, ServedNode, connected, get, serving, with_a_pod

pytestmark = [pytest.mark.node, pytest.mark.slow]

REQUESTS = int(os.environ.get("PYKUBELET_FUZZ_REQUESTS", "20000"))
CALLERS = 20
SLOW = 500
PATIENCE = 0.3
"""Seconds for an answer, many requests get none; more while answers come late, as on a busy machine."""

SEGMENTS = """pods runningpods logs exec attach portForward containerLogs run checkpoint default web app uid-web .. .
%2e%2e %2f %00 %ff ä healthz ping metrics cadvisor resource stats summary configz flagz statusz debug flags v pprof
cmdline explain passwd etc"""
TEMPLATES = """/pods /runningpods/ /logs/ /logs/../../etc/passwd /logs/%2e%2e/%2e%2e/etc/passwd /exec/default/web/app
/attach/default/web/app /portForward/default/web /containerLogs/default/web/app /run/default/web/app /healthz
/checkpoint/default/web/app /metrics /metrics/probes /stats/summary /configz /flagz /statusz /debug/pprof/cmdline
/debug/flags/v /explain/default/web /exec/default/web/uid-web/app /healthz/log"""
NAMES = ("tailLines", "follow", "sinceTime", "port", "input", "output", "tty", "command", "cmd", "timeout", "query")
VALUES = ("1", "1", "1", "-1", "0", "x", "%ff", "%00", "true", "1e9", "99999999999999999999", "../../etc/passwd", "")
METHODS = ("GET", "POST", "GET", "POST", "PUT", "HEAD", "OPTIONS", "PATCH", "DELETE", "BREW", "CONNECT", "g\0t", "")
HEADERS = [
    "Connection: Upgrade",
    "Connection: Upgrade\r\nUpgrade: SPDY/3.1",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Protocol: v5.channel.k8s.io",
    "Upgrade: websocket",
    "Upgrade: h2c",
    "Content-Length: 5",
    "Content-Length: -1",
    "Content-Length: 99999999",
    "Transfer-Encoding: chunked",
    "Transfer-Encoding: gzip, chunked",
    "Expect: 100-continue",
    "Authorization: Bearer x",
    "Authorization: Bearer",
    "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.%%",
    "Accept-Encoding: gzip",
    "Range: bytes=0-",
    "Broken",
    ": empty",
    "X: " + "a" * 5000,
    "Cookie: \udcff",
]
TAILS = [b"hello", b"5\r\nhello\r\n0\r\n\r\n", b"\x80\x03\0\1\xff\xff\xff\xff", b"\x81\xfe\xff\xff", b"\0" * 50]


def one_request(dice: random.Random) -> bytes:
    if dice.random() < 0.02:
        return dice.randbytes(dice.randrange(1, 300)) + b"\r\n\r\n"
    sane = dice.random() < 0.7
    segments = dice.choices(SEGMENTS.split(), k=dice.randrange(7))
    path = dice.choice(TEMPLATES.split()) if sane else "/" + "/".join(segments)
    query = "&".join(f"{dice.choice(NAMES)}={dice.choice(VALUES)}" for _ in range(dice.randrange(4)))
    method = dice.choice(("GET", "POST", "PUT")) if sane else dice.choice(METHODS)
    lines = [f"{method} {path}?{query} HTTP/1.{dice.choice('0111')}", "Host: x"]
    lines += dice.sample(HEADERS, dice.choice((0, 0, 0, 1, 2)))
    tail = dice.choice(TAILS) if dice.random() < 0.1 else b""
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + tail


async def attack(port: int, world: ServedNode, seed: int, count: int, seen: dict[int, int]) -> None:
    dice = random.Random(seed)
    context = world.client_context(world.ca.issue(f"ada{seed}"))
    patience = PATIENCE
    while count > 0:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            async with connected(port, context) as client:
                while count > 0:
                    count -= 1
                    begun = time.monotonic()
                    try:
                        await exchange(client, one_request(dice), seen, patience)
                    except TimeoutError:
                        patience = min(2 * patience, 5.0)
                        raise
                    patience = max(PATIENCE, 3 * (time.monotonic() - begun))


async def exchange(client: RawClient, request: bytes, seen: dict[int, int], patience: float) -> None:
    client.writer.write(request)
    async with asyncio.timeout(patience):
        status, headers = await client.head()
        seen[status] = seen.get(status, 0) + 1
        if request.startswith(b"HEAD") or status < 200:
            raise ConnectionError("next connection")
        body = await client.reader.readexactly(int(headers["content-length"])) if "content-length" in headers else b""
    assert b"Traceback" not in body and b"site-packages" not in body, (request, body)
    assert b"root:" not in body, request
    if headers.get("connection") == "close" or "transfer-encoding" in headers:
        raise ConnectionError("next connection")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def until_closed(before: int) -> None:
    """What idles is cut after a moment, and what is cut is closed a moment later."""
    async with asyncio.timeout(60):
        while gc.collect() >= 0 and open_files() > before + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def test_senseless_requests(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = ServedNode(tmp_path, limits=Limits(connections=100, head=1.0))
    with_a_pod(world, "http://127.0.0.1:1/exec/gone")
    world.reviewer.everything = {f"ada{seed}" for seed in range(CALLERS)}
    world.reviewer.everything |= {"ada"}
    (tmp_path / "log").mkdir()
    caplog.set_level(logging.WARNING)
    async with serving(world.server()) as port:
        context = world.client_context(world.ca.issue("ada"))
        assert (await get(port, "/healthz", context)).status == 200
        before = open_files()
        seen: dict[int, int] = {}
        share = REQUESTS // CALLERS
        await asyncio.gather(*(attack(port, world, seed, share, seen) for seed in range(CALLERS)))
        assert sum(seen.values()) > REQUESTS * 0.6, seen
        assert (await get(port, "/healthz", context)).status == 200
        await until_closed(before)
    failures = sum(count for status, count in seen.items() if status >= 500)
    reasons = sum(
        "a request failed" in record.message or "cannot be reached" in record.message for record in caplog.records
    )
    assert failures <= reasons, seen
    assert "unexpectedly" not in caplog.text
    assert "serving a request failed" not in caplog.text


async def test_hundreds_of_slow_callers(tmp_path: Path) -> None:
    """They say a header every now and then; others are served all the time and all slow ones are cut in the end.

    They come from an address of their own: whoever is new at an address that floods the server loses its place to those
    that come after it."""
    world = ServedNode(tmp_path, limits=Limits(connections=300, head=3.0))
    world.reviewer.everything = {"ada"}
    nobody, ada = world.client_context(), world.client_context(world.ca.issue("ada"))
    async with serving(world.server()) as port:
        assert (await get(port, "/healthz", ada)).status == 200
        before = open_files()

        async def slow() -> None:
            with contextlib.suppress(OSError, ConnectionError):
                async with connected(port, nobody, source="127.0.0.2") as client:
                    client.writer.write(b"GET /pods HTTP/1.1\r\nHost: x\r\n")
                    while not client.reader.at_eof():
                        client.writer.write(b"X: y\r\n")
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(0.2):
                                await client.reader.read(100)

        async with asyncio.timeout(240), asyncio.TaskGroup() as group:
            for _ in range(SLOW):
                group.create_task(slow())
            for _ in range(20):
                assert (await get(port, "/healthz", ada)).status == 200
                await asyncio.sleep(0.05)
        assert (await get(port, "/healthz", ada)).status == 200
        await until_closed(before)
