from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.pod import Source
from pykubelet.sources.manifests import BIG_BYTES
from pykubelet.sources.static import StaticSource
from pykubelet.sources.watch import FileEvent, Happened
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.sources.doubles import DeliveredSets, FileLoader, ScriptedWatch, manifest

PERIOD = 20.0


class SlowReading(LoopClock):
    """Every look at the clock shows that a little time has passed, as when files take long to read."""

    def __init__(self) -> None:
        super().__init__()
        self.drift = 0.0
        self._extra = 0.0

    def monotonic(self) -> float:
        self._extra += self.drift
        return super().monotonic() + self._extra


class StaticSourceFixture:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = SlowReading()
        self.sets = DeliveredSets()
        self.events = RecordedEvents()
        self.watch = ScriptedWatch()
        self.loader = FileLoader()
        self.source = StaticSource(
            path=path,
            check_period=PERIOD,
            load=self.loader.load,
            deliver=self.sets.deliver,
            events=self.events,
            clock=self.clock,
            open_watch=self.watch.open,
        )

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)

    async def notify(self, *events: tuple[Happened, str]) -> None:
        """What the kernel would report; returns when it was handled, long before any deadline."""
        self.watch.notify(*(FileEvent(kind, name) for kind, name in events))
        await self.clock.sleep(0.001)

    @property
    def last(self) -> list[str]:
        return [name.removesuffix("-node") for name in self.sets.names[-1]]

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        async with running(self.source):
            await self.clock.sleep(1)
            yield


@pytest.fixture
def bed(tmp_path: Path) -> StaticSourceFixture:
    return StaticSourceFixture(tmp_path)


async def test_the_first_set_is_complete(bed: StaticSourceFixture) -> None:
    bed.clock.drift = 1.0  # every file takes longer than a slice
    for i in range(5):
        bed.write(f"{i}.yaml", manifest(f"p{i}"))
    async with bed.followed():
        assert bed.sets.names == [[f"p{i}-node" for i in range(5)]]
        assert bed.sets.sets[0][0] is Source.FILE


async def test_an_empty_or_missing_folder_is_a_set_too(tmp_path: Path) -> None:
    bed = StaticSourceFixture(tmp_path / "none")
    async with bed.followed():
        assert bed.sets.names == [[]]
        assert bed.source.snapshot().watching


async def test_a_finished_write_is_delivered_at_once(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.write("a.yaml", manifest("a"))
        await bed.notify((Happened.CREATED, "a.yaml"), (Happened.MODIFIED, "a.yaml"), (Happened.WRITTEN, "a.yaml"))
        assert bed.last == ["a"]
        assert bed.source.snapshot().pods == ("default/a-node",)


async def test_a_file_is_not_read_while_it_is_written(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.write("a.yaml", manifest("a")[:20])
        await bed.notify((Happened.CREATED, "a.yaml"), (Happened.MODIFIED, "a.yaml"), (Happened.TOUCHED, "a.yaml"))
        await bed.clock.sleep(5)
        await bed.source.rescan()
        assert bed.loader.names == []
        bed.write("a.yaml", manifest("a"))
        await bed.notify((Happened.MODIFIED, "a.yaml"), (Happened.WRITTEN, "a.yaml"))
        assert bed.last == ["a"]
        assert bed.events.all == []


async def test_a_writer_that_never_closes_is_not_waited_for_for_ever(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.write("a.yaml", manifest("a"))
        await bed.notify((Happened.CREATED, "a.yaml"), (Happened.MODIFIED, "a.yaml"))
        await bed.clock.sleep(9)
        assert bed.last == []
        await bed.clock.sleep(2)
        assert bed.last == ["a"]


async def test_a_file_that_appears_complete_is_read_a_moment_later(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.write("a.yaml", manifest("a"))
        await bed.notify((Happened.CREATED, "a.yaml"))
        assert bed.last == []
        await bed.clock.sleep(1.1)
        assert bed.last == ["a"]


async def test_a_deleted_file_is_gone_at_once(bed: StaticSourceFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    async with bed.followed():
        (bed.path / "a.yaml").unlink()
        await bed.notify((Happened.DELETED, "a.yaml"))
        assert bed.last == []


@pytest.mark.parametrize("at_once", [True, False])
async def test_a_file_deleted_and_written_again_is_a_pod_that_was_gone(bed: StaticSourceFixture, at_once: bool) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.write("b.yaml", manifest("b"))
    async with bed.followed():
        (bed.path / "a.yaml").unlink()
        bed.write("a.yaml", manifest("a"))
        happened = [Happened.DELETED, Happened.CREATED, Happened.MODIFIED, Happened.WRITTEN]
        for batch in [happened] if at_once else [[each] for each in happened]:
            await bed.notify(*((each, "a.yaml") for each in batch))
        assert bed.sets.names == [["a-node", "b-node"], ["b-node"], ["a-node", "b-node"]]


async def test_a_copy_that_outlives_its_original_is_not_shown_gone(bed: StaticSourceFixture) -> None:
    fixed = manifest("a").replace("name: a\n", "name: a\n  uid: fixed\n", 1)
    bed.write("a.yaml", fixed)
    async with bed.followed():
        bed.write("b.yaml", fixed)
        (bed.path / "a.yaml").unlink()
        await bed.notify((Happened.CREATED, "b.yaml"), (Happened.WRITTEN, "b.yaml"), (Happened.DELETED, "a.yaml"))
        await bed.clock.sleep(2)
        assert [[pod.metadata.uid for pod in pods] for _, pods in bed.sets.sets] == [["fixed"], ["fixed"]]


async def test_a_file_moved_away_is_gone_in_a_moment(bed: StaticSourceFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    async with bed.followed():
        (bed.path / "a.yaml").rename(bed.path / ".a")
        await bed.notify((Happened.MOVED_AWAY, "a.yaml"))
        assert bed.last == ["a"]
        await bed.clock.sleep(0.2)
        assert bed.last == []


async def test_saving_by_rename_never_shows_the_pod_gone(bed: StaticSourceFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    async with bed.followed():
        (bed.path / "a.yaml").rename(bed.path / "a.yaml~")
        await bed.notify((Happened.MOVED_AWAY, "a.yaml"), (Happened.WRITTEN, "a.yaml~"))
        bed.write("a.yaml", "")
        await bed.notify((Happened.CREATED, "a.yaml"))
        await bed.clock.sleep(0.5)
        bed.write("a.yaml", manifest("a", "busybox:2"))
        await bed.notify((Happened.MODIFIED, "a.yaml"), (Happened.WRITTEN, "a.yaml"))
        (bed.path / "a.yaml~").unlink()
        await bed.notify((Happened.DELETED, "a.yaml~"))
        await bed.clock.sleep(1)
        images = [[pod.spec.containers[0].image for pod in pods] for _, pods in bed.sets.sets]
        assert [image for image, *rest in images if not rest][-1] == "busybox:2"
        assert all(len(each) == 1 for each in images)
        uids = {pods[0].metadata.uid for _, pods in bed.sets.sets}
        assert len(uids) == 2, "the old and the new version, never the copy"


async def test_a_pod_that_moves_to_another_file_is_not_shown_gone(bed: StaticSourceFixture) -> None:
    fixed = manifest("a").replace("name: a\n", "name: a\n  uid: fixed\n", 1)
    bed.write("a.yaml", fixed)
    async with bed.followed():
        bed.clock.drift = 1.0
        (bed.path / "a.yaml").rename(bed.path / "b.yaml")
        await bed.notify((Happened.MOVED_AWAY, "a.yaml"), (Happened.WRITTEN, "b.yaml"))
        await bed.clock.sleep(2)
        assert [[pod.metadata.uid for pod in pods] for _, pods in bed.sets.sets] == [["fixed"], ["fixed"]]


async def test_a_burst_is_delivered_while_it_is_read(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.clock.drift = 0.004
        for i in range(20):
            bed.write(f"{i:02}.yaml", manifest(f"p{i:02}"))
        await bed.notify(*((Happened.WRITTEN, f"{i:02}.yaml") for i in range(20)))
        sizes = [len(names) for names in bed.sets.names]
        assert sizes[-1] == 20
        assert sizes == sorted(sizes)
        assert 3 < len(sizes) < 15
        assert len(bed.loader.names) == 20


async def test_the_rescan_finds_what_was_not_told(bed: StaticSourceFixture) -> None:
    bed.write("gone.yaml", manifest("gone"))
    async with bed.followed():
        bed.write("new.yaml", manifest("new"))
        (bed.path / "gone.yaml").unlink()
        await bed.clock.sleep(PERIOD - 2)
        assert bed.last == ["gone"]
        await bed.clock.sleep(2)
        assert bed.last == ["new"]


async def test_nothing_new_is_not_delivered(bed: StaticSourceFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    async with bed.followed():
        await bed.notify((Happened.WRITTEN, "a.yaml"), (Happened.TOUCHED, "a.yaml"))
        await bed.clock.sleep(10 * PERIOD)
        assert len(bed.sets.sets) == 1
        assert bed.loader.names == ["a.yaml"]


async def test_after_an_overflow_everything_is_looked_at(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.write("a.yaml", manifest("a"))
        await bed.notify((Happened.MODIFIED, "a.yaml"), (Happened.RESCAN, ""))
        assert bed.last == ["a"]


async def test_the_watch_is_opened_anew_when_it_lost_the_path(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.write("a.yaml", manifest("a"))
        await bed.notify((Happened.REOPEN, ""))
        assert (bed.watch.opened, bed.watch.closed) == (2, 1)
        assert bed.last == ["a"]
    assert bed.watch.closed == 2


async def test_without_inotify_the_folder_is_scanned(bed: StaticSourceFixture) -> None:
    bed.watch.refuse = OSError(errno.EMFILE, "too many open files")
    async with bed.followed():
        assert bed.sets.names == [[]]
        bed.write("a.yaml", manifest("a"))
        await bed.clock.sleep(2)
        assert bed.last == ["a"]
        assert not bed.source.snapshot().watching
        bed.watch.refuse = None
        await bed.clock.sleep(PERIOD)
        assert bed.source.snapshot().watching


async def test_a_bad_file_is_one_event_about_its_pod_or_the_node(bed: StaticSourceFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    async with bed.followed():
        for name in ("a.yaml", "b.yaml"):
            bed.write(name, "kind: [")
            await bed.notify((Happened.WRITTEN, name))
        await bed.clock.sleep(10 * PERIOD)
        assert [event[:3] for event in bed.events.all] == [
            ("a-node", "Warning", "FailedValidation"),
            ("node", "Warning", "FailedValidation"),
        ]
        assert bed.events.all[0][3].startswith(f"Manifest {bed.path / 'a.yaml'}: line ")
        assert bed.last == ["a"]
        assert sorted(bed.source.snapshot().problems) == [str(bed.path / "a.yaml"), str(bed.path / "b.yaml")]


async def test_hidden_files_tell_nothing_unless_links_go_through_them(bed: StaticSourceFixture) -> None:
    (bed.path / "..v1").mkdir()
    bed.write("..v1/a.yaml", manifest("a"))
    (bed.path / "..data").symlink_to("..v1")
    (bed.path / "a.yaml").symlink_to("..data/a.yaml")
    async with bed.followed():
        assert bed.last == ["a"]
        (bed.path / "..v2").mkdir()
        bed.write("..v2/a.yaml", manifest("b"))
        (bed.path / "..tmp").symlink_to("..v2")
        (bed.path / "..tmp").rename(bed.path / "..data")
        await bed.notify((Happened.WRITTEN, "..data"))
        assert bed.last == ["b"]
        await bed.notify((Happened.WRITTEN, ".swp"))
        assert len(bed.sets.sets) == 2


async def test_big_files_are_read_too(bed: StaticSourceFixture) -> None:
    async with bed.followed():
        bed.write("a.yaml", manifest("a") + "#" * BIG_BYTES)
        await bed.notify((Happened.WRITTEN, "a.yaml"))
        assert bed.last == ["a"]


async def test_a_folder_that_cannot_be_listed_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bed = StaticSourceFixture(tmp_path / "file" / "below")
    async with bed.followed():
        assert bed.sets.sets == [], "an unread source must not count as an empty one"
        assert len(bed.events.all) == 1


async def test_single_files_never_pass_for_the_whole_set(bed: StaticSourceFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.write("b.yaml", manifest("b"))
    await bed.source.handle([FileEvent(Happened.WRITTEN, "b.yaml")])
    assert bed.sets.names == [["a-node", "b-node"]]
