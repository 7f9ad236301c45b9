"""The real kernel on a real folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pykubelet.sources.watch import FileEvent, FolderWatch, Happened, open_inotify

pytestmark = pytest.mark.real_loop


async def _told(watch: FolderWatch) -> list[tuple[Happened, str]]:
    """Everything up to now: the kernel queues an event before the call that caused it returns."""
    told: list[FileEvent] = []
    while more := await watch.wait(0.02):
        told += more
    return [(event.kind, event.name) for event in told]


def _write(path: Path) -> None:
    path.write_text("x")


def _rename(path: Path) -> None:
    (path.parent / ".tmp").write_text("x")
    (path.parent / ".tmp").rename(path)


def _link(path: Path) -> None:
    path.symlink_to("nowhere")


def _touch_again(path: Path) -> None:
    path.write_text("x")
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_write, [Happened.CREATED, Happened.MODIFIED, Happened.WRITTEN]),
        (_rename, [Happened.WRITTEN]),
        (_link, [Happened.CREATED]),
        (_touch_again, [Happened.CREATED, Happened.MODIFIED, Happened.WRITTEN, Happened.TOUCHED]),
        (lambda path: path.mkdir(), []),
    ],
    ids=["write", "rename", "link", "chmod", "folder"],
)
async def test_what_happens_inside_a_folder(
    tmp_path: Path, change: Callable[[Path], None], expected: list[Happened]
) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    with closing(open_inotify(folder)) as watch:
        change(folder / "a.yaml")
        assert [kind for kind, name in await _told(watch) if name == "a.yaml"] == expected


async def test_leaving_a_folder(tmp_path: Path) -> None:
    _write(tmp_path / "a")
    _write(tmp_path / "b")
    with closing(open_inotify(tmp_path)) as watch:
        (tmp_path / "a").unlink()
        os.rename(tmp_path / "b", tmp_path.parent / f"{tmp_path.name}-b")
        assert await _told(watch) == [(Happened.DELETED, "a"), (Happened.MOVED_AWAY, "b")]


async def test_a_single_file_is_followed_through_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    with closing(open_inotify(file)) as watch:
        _write(tmp_path / "other.yaml")
        assert await _told(watch) == []
        _write(file)
        assert await _told(watch) == [
            (Happened.CREATED, "pod.yaml"),
            (Happened.MODIFIED, "pod.yaml"),
            (Happened.WRITTEN, "pod.yaml"),
        ]
        _rename(file)
        assert (Happened.WRITTEN, "pod.yaml") in await _told(watch)


@pytest.mark.parametrize("depth", [1, 3])
async def test_a_folder_that_appears_is_noticed(tmp_path: Path, depth: int) -> None:
    folder = tmp_path.joinpath(*["x"] * depth)
    with closing(open_inotify(folder)) as watch:
        (tmp_path / "unrelated").mkdir()
        assert await _told(watch) == []
        folder.mkdir(parents=True)
        assert (Happened.REOPEN, "") in await _told(watch)


@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
async def test_a_folder_that_goes_is_noticed(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "manifests"
    folder.mkdir()
    with closing(open_inotify(folder)) as watch:
        if how == "removed":
            folder.rmdir()
        else:
            folder.rename(tmp_path / "old")
        if how == "replaced":
            folder.mkdir()
        assert (Happened.REOPEN, "") in await _told(watch)


async def test_a_link_to_another_folder_is_noticed(tmp_path: Path) -> None:
    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to("v1")
    with closing(open_inotify(link)) as watch:
        _write(tmp_path / "v1" / "a")
        assert (Happened.WRITTEN, "a") in await _told(watch)
        (tmp_path / "next").symlink_to("v2")
        (tmp_path / "next").rename(link)
        assert (Happened.REOPEN, "") in await _told(watch)


async def test_nothing_is_lost_when_a_wait_is_cancelled(tmp_path: Path) -> None:
    with closing(open_inotify(tmp_path)) as watch:
        waiting = asyncio.ensure_future(watch.wait(None))
        await asyncio.sleep(0)
        _write(tmp_path / "a")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (Happened.WRITTEN, "a") in await _told(watch)


async def test_the_root_folder_is_refused_in_words() -> None:
    with pytest.raises(OSError, match="root folder"):
        open_inotify(Path("/"))
