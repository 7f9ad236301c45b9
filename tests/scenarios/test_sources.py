"""From files on disk to what the sync loop is told, with the real kernel in between."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import running
from pykubelet.model.pod import SEEN_ANNOTATION, Operation, Source, is_static, name_of
from pykubelet.sources.manifests import file_loader
from pykubelet.sources.mux import PodMux
from pykubelet.sources.static import StaticSource
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.sources.doubles import manifest

pytestmark = pytest.mark.real_loop


class Node:
    """The source and the merge, and what a loop would have learned so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = RecordedEvents()
        clock = SystemClock()
        self.mux = PodMux(sources=[Source.FILE], events=self.events, clock=clock)
        self.source = StaticSource(
            path=path,
            check_period=20,
            load=file_loader("node"),
            deliver=self.mux.deliver,
            events=self.events,
            clock=clock,
        )
        self.running: dict[str, str] = {}
        self.story: list[tuple[str, str]] = []

    async def learn(self) -> None:
        for change in await self.mux.next_changes():
            for pod in change.pods:
                self.story.append((change.op.value, name_of(pod).removesuffix("-node")))
                assert is_static(pod)
                assert SEEN_ANNOTATION in pod.metadata.annotations
                if change.op is Operation.REMOVE:
                    del self.running[pod.metadata.uid or ""]
                else:
                    self.running[pod.metadata.uid or ""] = name_of(pod).removesuffix("-node")
            self.mux.mark_ready(change.source)

    async def until(self, *names: str) -> None:
        async with asyncio.timeout(10):
            while sorted(self.running.values()) != sorted(names):
                await self.learn()

    async def quiet(self) -> None:
        """Nothing more is told for longer than any of the source's moments of patience with editors."""
        try:
            async with asyncio.timeout(0.3):
                while True:
                    await self.learn()
        except TimeoutError:
            pass


@asynccontextmanager
async def _node(path: Path) -> AsyncIterator[Node]:
    node = Node(path)
    async with running(node.source):
        await node.learn()
        assert node.mux.all_ready()
        yield node


async def test_pods_come_change_and_go_with_their_files(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("a"))
    async with _node(tmp_path) as node:
        assert list(node.running.values()) == ["a"]
        (tmp_path / "b.yaml").write_text(manifest("b"))
        await node.until("a", "b")
        (tmp_path / "b.yaml").write_text(manifest("b", "busybox:2"))
        while len(node.story) < 4:
            await node.learn()
        assert node.story[2:] == [("remove", "b"), ("add", "b")], "a changed manifest is a new pod"
        (tmp_path / "a.yaml").unlink()
        await node.until("b")


async def test_a_burst_of_fifty_arrives_whole(tmp_path: Path) -> None:
    async with _node(tmp_path) as node:
        for i in range(50):
            (tmp_path / f"{i:02}.yaml").write_text(manifest(f"p{i}"))
        await node.until(*(f"p{i}" for i in range(50)))
        assert {op for op, _ in node.story} == {"add"}
        assert len(node.story) == 50


async def test_a_bad_file_harms_nobody_and_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("a"))
    async with _node(tmp_path) as node:
        (tmp_path / "bad.yaml").write_text("kind: Pod\nspec: [")
        (tmp_path / "a.yaml").write_text(manifest("a")[:40])
        await node.quiet()
        assert node.story == [("add", "a")]
        assert len(node.events.all) == 2
        (tmp_path / "a.yaml").write_text(manifest("a"))
        await node.quiet()
        assert node.story == [("add", "a")], "the same pod again was never gone"


async def test_a_file_removed_and_written_again_in_one_go_ends_its_pod(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(manifest("a"))
    async with _node(tmp_path) as node:
        file.unlink()
        file.write_text(manifest("a"))
        await node.quiet()
        assert node.story == [("add", "a"), ("remove", "a"), ("add", "a")]


async def test_the_ways_editors_save(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(manifest("web"))
    async with _node(tmp_path) as node:
        for version, save in enumerate((_in_place, _temporary_then_rename, _backup_then_write)):
            before = len(node.story)
            save(file, manifest("web", f"busybox:{version + 2}"))
            await node.quiet()
            assert node.story[before:] == [("remove", "web"), ("add", "web")], save.__name__
        assert node.events.all == []


def _in_place(file: Path, text: str) -> None:
    file.write_text(text)


def _temporary_then_rename(file: Path, text: str) -> None:
    temporary = file.with_name("sedAbCdEf")
    temporary.write_text(text)
    os.replace(temporary, file)


def _backup_then_write(file: Path, text: str) -> None:
    backup = file.with_name(file.name + "~")
    file.rename(backup)
    file.write_text(text)
    backup.unlink()


async def test_the_folder_may_come_late_go_and_come_again(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "manifests"
    async with _node(folder) as node:
        assert node.running == {}
        folder.mkdir(parents=True)
        (folder / "a.yaml").write_text(manifest("a"))
        await node.until("a")
        (folder / "a.yaml").unlink()
        folder.rmdir()
        await node.until()
        folder.mkdir()
        (folder / "b.yaml").write_text(manifest("b"))
        await node.until("b")


async def test_two_files_with_one_pod(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(manifest("web", "second"))
    (tmp_path / "a.yaml").write_text(manifest("web", "first"))
    async with _node(tmp_path) as node:
        await node.quiet()
        assert node.story == [("add", "web")]
        assert len(node.events.all) == 1
        (tmp_path / "a.yaml").unlink()
        await node.quiet()
        assert node.story[1:] == [("remove", "web"), ("add", "web")]
