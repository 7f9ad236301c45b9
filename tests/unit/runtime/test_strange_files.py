"""Files that containers can write to: what is none is never opened, and no more is read than is needed."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from pykubelet.clients.host.folders import DiskFolders
from pykubelet.clients.host.port import NodePaths
from pykubelet.kit.files import open_checked
from pykubelet.runtime.logs import LogFiles
from pykubelet.runtime.spec.env import read_env_file

IN_OPEN = 0x20


@pytest.fixture
def folders(tmp_path: Path) -> DiskFolders:
    return DiskFolders(NodePaths(root=tmp_path / "root", pod_logs=tmp_path / "pods", container_logs=tmp_path / "links"))


def _env_file(path: Path, folders: DiskFolders) -> bool:
    return not read_env_file(str(path.parent), path.name).error


def _termination_message(path: Path, folders: DiskFolders) -> bool:
    return folders.read_tail(path, 10) != b""


def _log(path: Path, folders: DiskFolders) -> bool:
    return LogFiles().tail(path, lines=1, limit_bytes=10) != ""


READERS = [_env_file, _termination_message, _log]


def _times_opened(path: Path, read: Callable[[], object]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        assert libc.inotify_add_watch(watch, os.fsencode(path), IN_OPEN) >= 0
        read()
        try:
            return len(os.read(watch, 4096)) // 16
        except BlockingIOError:
            return 0
    finally:
        os.close(watch)


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_never_opened(
    reader: Callable[[Path, DiskFolders], bool], folders: DiskFolders, tmp_path: Path
) -> None:
    """Opening a device as root of the host may do something; a pipe stands for it here."""
    place = tmp_path / "file"
    os.mkfifo(place)
    assert _times_opened(place, lambda: reader(place, folders)) == 0
    assert reader(place, folders) is False


def test_the_watch_sees_an_opening(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("x")
    assert _times_opened(place, lambda: os.close(open_checked(place))) > 0


@pytest.mark.parametrize("name", ["/dev/null", "/proc/self/fd", "/"])
def test_only_files_are_opened(name: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="not a regular file"):
        open_checked(name)
    assert len(os.listdir("/proc/self/fd")) == before


def test_links_and_folders_are_opened_only_where_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="not a regular file"):
        open_checked(tmp_path / "link", follow=False)
    os.close(open_checked(tmp_path / "link"))
    os.close(open_checked(tmp_path, folders=True))


def test_the_end_of_a_long_message_counts(folders: DiskFolders, tmp_path: Path) -> None:
    place = tmp_path / "message"
    place.write_bytes(b"begin" + b"." * 100 + b"the error")
    assert folders.read_tail(place, 9) == b"the error"
    assert folders.read_tail(place, 1000) == place.read_bytes()


def test_a_hosts_file_that_a_container_blew_up_is_not_read(folders: DiskFolders) -> None:
    folders.make_pod("u")
    place = folders.write_etc_hosts("u", "127.0.0.1 localhost\n")
    inode = place.stat().st_ino
    os.truncate(place, 8 << 40)  # no disk is used; reading it all would be a MemoryError
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    folders.write_etc_hosts("u", "127.0.0.1 localhost\n")
    assert place.read_text() == "127.0.0.1 localhost\n"
    assert place.stat().st_ino == inode
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


def test_an_unchanged_hosts_file_is_not_written_again(folders: DiskFolders) -> None:
    folders.make_pod("u")
    place = folders.write_etc_hosts("u", "127.0.0.1 ä\n")
    os.utime(place, (0, 0))
    folders.write_etc_hosts("u", "127.0.0.1 ä\n")
    assert place.stat().st_mtime == 0
