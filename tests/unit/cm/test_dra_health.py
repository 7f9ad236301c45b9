"""The health of devices in memory and in `dra_health_state`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.clients.plugins.port import ClaimedHealth
from pykubelet.cm import dra_health
from pykubelet.cm.dra_health import DeviceHealthCache, shortened
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet

UPSTREAM = (
    '{"gpu.example.com":{"Devices":{"pool-a/gpu-0":{"PoolName":"pool-a","DeviceName":"gpu-0","Health":"Unhealthy",'
    '"LastUpdated":"%s","HealthCheckTimeout":60000000000,"Message":"too hot"},'
    '"pool-a/gpu-1":{"PoolName":"pool-a","DeviceName":"gpu-1","Health":"Healthy","LastUpdated":"%s",'
    '"HealthCheckTimeout":0,"Message":""}}},"other.example.com":{"Devices":null}}'
)
"""As a Go kubelet writes it."""


def health(device: str, state: str = "Healthy", *, stale_after: float = 30.0, message: str = "") -> ClaimedHealth:
    return ClaimedHealth(pool="p", device=device, health=state, stale_after=stale_after, message=message)


@asynccontextmanager
async def writing(cache: DeviceHealthCache) -> AsyncIterator[None]:
    async with TaskSet("test") as tasks:
        tasks.spawn(cache.run(), name="writer")
        yield
        await asyncio.sleep(1)


def a_cache(folder: Path) -> DeviceHealthCache:
    cache = DeviceHealthCache(folder / dra_health.FILE, LoopClock())
    cache.load()
    return cache


def shown(cache: DeviceHealthCache, *devices: str) -> list[str]:
    return [found.health if (found := cache.get("d", "p", each)) is not None else "Unknown" for each in devices]


async def test_what_was_known_is_known_after_a_restart_for_as_long_as_it_is_good(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    async with writing(cache):
        assert cache.report("d", [health("a", "Unhealthy", message="hot"), health("b", stale_after=5)]) == {
            ("p", "a"),
            ("p", "b"),
        }
    again = a_cache(tmp_path)
    assert again.get("d", "p", "a") == health("a", "Unhealthy", message="hot")
    assert shown(again, "a", "b", "c") == ["Unhealthy", "Healthy", "Unknown"]
    await asyncio.sleep(10)
    assert shown(a_cache(tmp_path), "a", "b") == ["Unhealthy", "Unknown"]
    assert shown(again, "a", "b") == ["Unhealthy", "Unknown"]
    await asyncio.sleep(20)
    assert shown(again, "a", "b") == ["Unknown", "Unknown"]


async def test_the_file_is_upstreams(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    async with writing(cache):
        cache.report("gpu.example.com", [ClaimedHealth(pool="p", device="a", health="Healthy", message="fine")])
    document = json.loads((tmp_path / "dra_health_state").read_text())
    device = document["gpu.example.com"]["Devices"].pop("p/a")
    assert document == {"gpu.example.com": {"Devices": {}}}
    updated = device.pop("LastUpdated")
    assert updated.endswith("Z") and "T" in updated
    assert device == {
        "PoolName": "p",
        "DeviceName": "a",
        "Health": "Healthy",
        "HealthCheckTimeout": 30_000_000_000,
        "Message": "fine",
    }


@pytest.mark.parametrize(
    ("updated", "first", "second"),
    [
        ("2000-01-01T00:00:00.5+02:00", None, None),
        ("2999-01-01T00:00:00Z", "Unhealthy", "Healthy"),  # a clock that was set back
    ],
)
async def test_a_file_of_the_go_kubelet_is_read(
    tmp_path: Path, updated: str, first: str | None, second: str | None
) -> None:
    (tmp_path / "dra_health_state").write_text(UPSTREAM % (updated, updated))
    cache = a_cache(tmp_path)
    found = [cache.get("gpu.example.com", "pool-a", each) for each in ("gpu-0", "gpu-1")]
    assert [each.health if each is not None else None for each in found] == [first, second]
    if first is not None:
        assert [each.stale_after for each in found if each is not None] == [60.0, 30.0]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"d": 1}', '{"d": {"Devices": {"a": {"Health": 1}}}}'])
async def test_a_damaged_file_is_set_aside(tmp_path: Path, text: str) -> None:
    (tmp_path / "dra_health_state").write_text(text)
    cache = a_cache(tmp_path)
    assert not (tmp_path / "dra_health_state").exists()
    async with writing(cache):
        cache.report("d", [health("a")])
    assert shown(a_cache(tmp_path), "a") == ["Healthy"]


async def test_a_driver_that_is_gone_is_forgotten_on_disk_too(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    async with writing(cache):
        cache.report("d", [health("a")])
        assert cache.report("d", None) == {("p", "a")}
        assert cache.report("d", None) == set()
    assert shown(a_cache(tmp_path), "a") == ["Unknown"]
    assert json.loads((tmp_path / "dra_health_state").read_text()) == {}


async def test_what_is_said_again_is_no_news_and_what_is_not_said_any_more_ends(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    cache.report("d", [health("a"), health("b")])
    await asyncio.sleep(20)
    assert cache.report("d", [health("a")]) == set()
    assert shown(cache, "a", "b") == ["Healthy", "Healthy"]
    await asyncio.sleep(20)
    assert cache.report("d", [health("a")]) == {("p", "b")}
    assert shown(cache, "a", "b") == ["Healthy", "Unknown"]
    assert cache.report("d", [health("a", message="warm")]) == {("p", "a")}


async def test_a_driver_that_reports_without_end_is_bounded(tmp_path: Path) -> None:
    cache = a_cache(tmp_path)
    cache.report("d", [health(f"{number}") for number in range(dra_health.MOST_DEVICES)])
    cache.report("d", [health(f"new-{number}") for number in range(dra_health.MOST_DEVICES - 1)])
    assert shown(cache, "new-0", "0", "1") == ["Healthy", "Healthy", "Unknown"]
    assert len(shortened("\N{SNOWMAN}" * 1000).encode()) <= 1024 and shortened("x" * 2000).endswith("x...")


async def test_a_file_that_cannot_be_written_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "away"
    cache = a_cache(folder)
    async with writing(cache):
        cache.report("d", [health("a", stale_after=600)])
        await asyncio.sleep(5)
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        folder.mkdir()
        await asyncio.sleep(60)
    assert shown(a_cache(folder), "a") == ["Healthy"]
