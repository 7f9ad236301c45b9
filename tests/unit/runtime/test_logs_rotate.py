"""Rotation on the fake runtime, which keeps writing to the old file until it is told to open a new one."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CallTimedOut, CriError
from pykubelet.runtime.logs import LogFiles
from pykubelet.runtime.logs_rotate import LogRotation, RotationPolicy, compress, split_excess, split_leftovers
from tests.fakes.fake_cri import FakeCri
from tests.unit.pleg.pods import IMAGE, container_config, sandbox_config


class LoggingContainer:
    """One running container `app` whose log is in a folder of its own."""

    def __init__(self, folder: Path, policy: RotationPolicy) -> None:
        self.clock = LoopClock()
        self.cri = FakeCri(self.clock, images=[IMAGE], write_logs=True)
        self.folder = folder
        self.rotation = LogRotation(cri=self.cri, clock=self.clock, policy=policy)

    async def start(self) -> None:
        config, container = sandbox_config("web"), container_config("web")
        config.log_directory, container.log_path = str(self.folder), "0.log"
        sandbox = await self.cri.run_pod_sandbox(config)
        await self.cri.start_container(await self.cri.create_container(sandbox, container, config))
        self.cri.calls.clear()

    def write(self, *texts: str) -> None:
        for text in texts:
            self.cri.log("app", text)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.folder))

    def all_lines(self) -> list[str]:
        """Everything ever written that is still there, oldest first."""
        rotated = sorted(name for name in self.names() if name != "0.log")
        text = b""
        for name in [*rotated, "0.log"]:
            raw = (self.folder / name).read_bytes()
            text += gzip.decompress(raw) if name.endswith(".gz") else raw
        return [line.split(" ", 3)[3] for line in text.decode().splitlines()]


async def a_logging_container(folder: Path, **policy: int) -> LoggingContainer:
    box = LoggingContainer(folder, RotationPolicy(**{"max_bytes": 100, "max_files": 3, **policy}))
    await box.start()
    return box


async def test_a_small_log_is_left_alone_and_costs_one_stat(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path)
    box.write("short")
    for _ in range(3):
        await box.rotation.check()
    assert box.names() == ["0.log"]
    assert [call.verb for call in box.cri.calls] == ["list_containers", "container_status"] + ["list_containers"] * 2


async def test_a_big_log_is_renamed_and_later_compressed(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path)
    box.write("first", "x" * 100)
    await box.rotation.check()
    box.write("second")
    assert len(box.names()) == 2
    assert LogFiles().tail(tmp_path / "0.log", lines=9, limit_bytes=99) == "second\n"
    await box.clock.sleep(10)
    box.write("y" * 100)
    await box.rotation.check()
    box.write("third")
    assert [name.rpartition(".")[2] == "gz" for name in box.names()] == [False, True, False]
    assert box.all_lines() == ["first", "x" * 100, "second", "y" * 100, "third"]
    stamp = box.names()[1].split(".")[2]
    assert len(stamp) == len("20231114-221320")


async def test_only_so_many_files_are_kept(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path)
    for number in range(6):
        box.write(f"{number} " + "x" * 100)
        await box.rotation.check()
        await box.clock.sleep(10)
    assert len(box.names()) == 3
    assert [line[0] for line in box.all_lines()] == ["4", "5"]


async def test_two_files_keep_one_rotated(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path, max_files=2)
    for number in range(3):
        box.write(f"{number} " + "x" * 100)
        await box.rotation.check()
        await box.clock.sleep(10)
    assert len(box.names()) == 2


@pytest.mark.parametrize("error", [CriError("container is not running"), CallTimedOut("slow")])
async def test_a_runtime_that_does_not_reopen_gets_its_file_back(tmp_path: Path, error: CriError) -> None:
    box = await a_logging_container(tmp_path)
    box.write("x" * 100)
    box.cri.fail_next("reopen_container_log", error)
    await box.rotation.check()
    assert box.names() == ["0.log"]
    box.write("still here")
    assert box.all_lines() == ["x" * 100, "still here"]
    await box.rotation.check()
    assert len(box.names()) == 2


async def test_a_reopen_that_worked_but_was_not_confirmed_loses_nothing(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path)
    box.write("x" * 100)
    real = box.cri.reopen_container_log

    async def reopen(container_id: str) -> None:
        await real(container_id)
        box.write("new")
        raise CallTimedOut("the answer was lost")

    box.cri.reopen_container_log = reopen  # type: ignore[method-assign]
    await box.rotation.check()
    assert box.all_lines() == ["x" * 100, "new"]


async def test_a_removed_log_is_opened_anew(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path)
    await box.rotation.check()
    (tmp_path / "0.log").unlink()
    await box.rotation.check()
    box.write("back")
    assert box.all_lines() == ["back"]


async def test_a_rotated_file_is_never_written_over(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path)
    for _ in range(2):
        box.write("x" * 100)
        await box.rotation.check()  # the second within the same second, and with room for three files
    assert sorted(box.all_lines()) == ["x" * 100] * 2


async def test_the_service_survives_the_runtime_and_stops_when_asked(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path)
    async with running(box.rotation):
        box.cri.crash()
        await box.clock.sleep(25)
        box.cri.restore()
        box.write("x" * 100)
        await box.clock.sleep(15)
    assert len(box.names()) == 2


async def test_a_negative_size_turns_rotation_off(tmp_path: Path) -> None:
    box = await a_logging_container(tmp_path, max_bytes=-1)
    async with running(box.rotation):
        box.write("x" * 1000)
        await box.clock.sleep(60)
    assert box.cri.calls == []


def test_leftovers_of_an_interrupted_rotation() -> None:
    names = ["0.log.1", "0.log.1.gz", "0.log.2", "0.log.3.tmp"]
    assert split_leftovers(names) == (["0.log.1.gz", "0.log.2"], ["0.log.1", "0.log.3.tmp"])


@pytest.mark.parametrize(
    ("count", "max_files", "kept"), [(5, 5, [2, 3, 4]), (1, 5, [0]), (3, 2, []), (0, 5, []), (2, 1, []), (4, 3, [3])]
)
def test_excess(count: int, max_files: int, kept: list[int]) -> None:
    names = [str(n) for n in range(count)]
    keep, excess = split_excess(names, max_files)
    assert keep == [str(n) for n in kept]
    assert sorted(keep + excess) == names


def test_compressing_keeps_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "0.log.1"
    path.write_bytes(b"line\n" * 1000)
    path.chmod(0o640)
    compress(path)
    assert os.listdir(tmp_path) == ["0.log.1.gz"]
    assert gzip.decompress((tmp_path / "0.log.1.gz").read_bytes()) == b"line\n" * 1000
    assert (tmp_path / "0.log.1.gz").stat().st_mode & 0o777 == 0o640
