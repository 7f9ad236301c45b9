"""One contract for mounts: the fake, and the kernel in a folder of its own."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from pykubelet.clients.host.mounts import HostMounts
from pykubelet.clients.host.port import MountEntry, MountError, Mounts, ToolFailed, ToolMissing
from tests.bed.parts import need_root
from tests.fakes.fake_mounts import FakeMounts


class Subject(Protocol):
    mounts: Mounts

    def program(self, code: int = 0, says: str = "", *, hangs: bool = False) -> tuple[str, ...]:
        """A command of this host that ends so, after it has printed so."""
        ...

    def holding(self, place: Path) -> AbstractContextManager[None]:
        """A process has a file open in what is mounted there."""
        ...


class FakeSubject:
    def __init__(self) -> None:
        self.fake = FakeMounts()
        self.mounts: Mounts = self.fake
        self.fake.tools["mount"] = ""

    def program(self, code: int = 0, says: str = "", *, hangs: bool = False) -> tuple[str, ...]:
        self.fake.tools["program"] = says
        self.fake.codes["program"] = code
        self.fake.hanging = {"program"} if hangs else set()
        return ("program", "word")

    @contextmanager
    def holding(self, place: Path) -> Iterator[None]:
        self.fake.busy.add(str(place))
        yield
        self.fake.busy.discard(str(place))


class KernelSubject:
    def __init__(self) -> None:
        need_root()
        self.mounts: Mounts = HostMounts()

    def program(self, code: int = 0, says: str = "", *, hangs: bool = False) -> tuple[str, ...]:
        wait = "import time; time.sleep(1000); " if hangs else ""
        return (sys.executable, "-c", f"import sys; {wait}print({says!r}, end=''); sys.exit({code})")

    @contextmanager
    def holding(self, place: Path) -> Iterator[None]:
        with (place / "held").open("w"):
            yield


@pytest.fixture(params=["fake", pytest.param("kernel", marks=pytest.mark.node)])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    if request.param == "fake":
        yield FakeSubject()
        return
    made = KernelSubject()
    yield made
    for entry in reversed(made.mounts.table()):
        if entry.mount_point.startswith(f"{tmp_path}/"):
            made.mounts.unmount(Path(entry.mount_point))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    # A blank and a letter that is no ASCII: the kernel escapes the one and shows bytes of the other.
    made = tmp_path / "a placé"
    made.mkdir()
    return made


def at(subject: Subject, place: Path) -> list[MountEntry]:
    return [entry for entry in subject.mounts.table() if entry.mount_point == str(place)]


def test_memory_is_mounted_and_gone_again(subject: Subject, place: Path) -> None:
    mounts = subject.mounts
    assert not mounts.is_mounted(place) and at(subject, place) == []
    mounts.tmpfs(place, size_bytes=1 << 20)
    assert mounts.is_mounted(place)
    (entry,) = at(subject, place)
    assert (entry.fs_type, entry.source, entry.root) == ("tmpfs", "tmpfs", "/")
    assert "rw" in entry.options
    assert stat.S_IMODE(place.stat().st_mode) == 0o1777
    (place / "file").write_text("x")
    (place / "folder").mkdir()
    assert mounts.unmount(place)
    assert not mounts.is_mounted(place) and list(place.iterdir()) == []
    assert not mounts.unmount(place)


def test_each_memory_is_a_device_of_its_own(subject: Subject, tmp_path: Path) -> None:
    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
        subject.mounts.tmpfs(place, size_bytes=None)
    (first,), (second,) = at(subject, places[0]), at(subject, places[1])
    assert first.device != second.device
    order = [entry.mount_point for entry in subject.mounts.table()]
    assert order.index(str(places[0])) < order.index(str(places[1])), "oldest first"


def test_a_bind_is_on_the_device_of_what_it_shows(subject: Subject, tmp_path: Path, place: Path) -> None:
    memory, inside = tmp_path / "memory", tmp_path / "memory" / "inside"
    memory.mkdir()
    subject.mounts.tmpfs(memory, size_bytes=None)
    inside.mkdir()
    subject.mounts.bind(inside, place, read_only=False)
    assert subject.mounts.is_mounted(place)
    (shown,), (whole,) = at(subject, place), at(subject, memory)
    assert (shown.device, shown.fs_type) == (whole.device, "tmpfs")
    assert "rw" in shown.options
    assert subject.mounts.unmount(place) and subject.mounts.is_mounted(memory)


def test_a_bind_has_the_options_that_a_place_can_have(subject: Subject, tmp_path: Path, place: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    subject.mounts.bind(source, place, read_only=True, options=("noexec", "nosuid", "hard", "size=5"))
    (entry,) = at(subject, place)
    assert {"ro", "noexec", "nosuid"} <= set(entry.options)
    assert not {"rw", "hard", "size=5"} & set(entry.options)


def test_files_are_bound_to_files_and_folders_to_folders(subject: Subject, tmp_path: Path, place: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.touch()
    other.touch()
    subject.mounts.bind(file, other, read_only=False)
    assert subject.mounts.is_mounted(other)
    with pytest.raises(MountError, match=f"cannot mount {file} at {place}: Not a directory"):
        subject.mounts.bind(file, place, read_only=False)
    with pytest.raises(MountError, match=f"cannot mount {place} at {file}: Not a directory"):
        subject.mounts.bind(place, file, read_only=False)
    assert at(subject, place) == []


def test_what_a_descriptor_stands_for_is_bound_wherever_its_path_leads(
    subject: Subject, tmp_path: Path, place: Path
) -> None:
    memory, moved = tmp_path / "memory", tmp_path / "moved"
    memory.mkdir()
    descriptor = os.open(memory, os.O_PATH)
    try:
        memory.rename(moved)
        memory.symlink_to("/")
        subject.mounts.bind_descriptor(descriptor, place, read_only=True)
    finally:
        os.close(descriptor)
    (entry,) = at(subject, place)
    assert "ro" in entry.options
    assert str(moved) in (entry.source, entry.root) or entry.root.endswith("/moved")


def test_nothing_is_mounted_from_or_to_what_is_not_there(subject: Subject, tmp_path: Path, place: Path) -> None:
    none = tmp_path / "none"
    with pytest.raises(MountError, match=f"cannot mount {none} at {place}: No such file or directory"):
        subject.mounts.bind(none, place, read_only=False)
    with pytest.raises(MountError, match=f"cannot mount tmpfs at {none}: No such file or directory"):
        subject.mounts.tmpfs(none, size_bytes=None)
    assert not subject.mounts.is_mounted(none) and not subject.mounts.unmount(none)


def test_a_link_is_never_followed(subject: Subject, tmp_path: Path, place: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(place)
    with pytest.raises(MountError, match=f"cannot mount tmpfs at {link}: Not a directory"):
        subject.mounts.tmpfs(link, size_bytes=None)
    with pytest.raises(MountError):
        subject.mounts.bind(tmp_path, link, read_only=False)
    assert not subject.mounts.is_mounted(link) and not subject.mounts.is_mounted(place)
    subject.mounts.tmpfs(place, size_bytes=None)
    assert not subject.mounts.unmount(link)
    assert subject.mounts.is_mounted(place)


def test_all_that_is_stacked_on_a_place_goes_at_once(subject: Subject, place: Path) -> None:
    for _ in range(3):
        subject.mounts.tmpfs(place, size_bytes=None)
    assert len(at(subject, place)) == 3
    assert subject.mounts.unmount(place)
    assert at(subject, place) == []


def test_what_is_in_use_stays_mounted(subject: Subject, place: Path) -> None:
    subject.mounts.tmpfs(place, size_bytes=None)
    with (
        subject.holding(place),
        pytest.raises(MountError, match=f"cannot unmount {place}: Device or resource busy"),
    ):
        subject.mounts.unmount(place)
    assert subject.mounts.is_mounted(place)
    assert subject.mounts.unmount(place)


def test_a_mount_with_another_in_it_stays(subject: Subject, place: Path) -> None:
    subject.mounts.tmpfs(place, size_bytes=None)
    (place / "inner").mkdir()
    subject.mounts.tmpfs(place / "inner", size_bytes=None)
    with pytest.raises(MountError, match="Device or resource busy"):
        subject.mounts.unmount(place)
    assert subject.mounts.unmount(place / "inner") and subject.mounts.unmount(place)


def test_force_ends_a_mount_and_finds_none(subject: Subject, place: Path) -> None:
    assert not subject.mounts.unmount_forced(place, seconds=30)
    subject.mounts.tmpfs(place, size_bytes=None)
    assert subject.mounts.unmount_forced(place, seconds=30)
    assert not subject.mounts.is_mounted(place)


def test_a_tree_goes_and_links_in_it_lead_nowhere(subject: Subject, tmp_path: Path) -> None:
    tree, kept = tmp_path / "tree", tmp_path / "kept"
    (tree / "a" / "b").mkdir(parents=True)
    (tree / "a" / "file").touch()
    kept.mkdir()
    (kept / "file").touch()
    (tree / "link").symlink_to(kept)
    subject.mounts.remove_tree(tree)
    assert not tree.exists() and (kept / "file").exists()
    subject.mounts.remove_tree(tree)
    tree.symlink_to(kept)
    subject.mounts.remove_tree(tree)
    assert not tree.is_symlink() and (kept / "file").exists()


def test_a_tree_with_a_mount_in_it_is_not_removed(subject: Subject, tmp_path: Path) -> None:
    tree, inner = tmp_path / "tree", tmp_path / "tree" / "inner"
    inner.mkdir(parents=True)
    subject.mounts.tmpfs(inner, size_bytes=None)
    (inner / "file").touch()
    with pytest.raises(MountError, match=f"cannot remove {tree}: {inner} is still mounted"):
        subject.mounts.remove_tree(tree)
    assert (inner / "file").exists()
    with pytest.raises(MountError, match=f"cannot remove {inner}: {inner} is still mounted"):
        subject.mounts.remove_tree(inner)
    subject.mounts.unmount(inner)
    subject.mounts.remove_tree(tree)
    assert not tree.exists()


def test_a_shared_folder_is_as_it_was_after_unmounting(subject: Subject, place: Path) -> None:
    """Whether it becomes a mount of its own depends on the host, which may share all of its mounts already."""
    (place / "file").touch()
    for _ in range(2):
        subject.mounts.make_shared(place)
    assert len(at(subject, place)) <= 1
    assert (place / "file").exists()
    subject.mounts.unmount(place)
    assert at(subject, place) == [] and (place / "file").exists()


def test_a_program_of_the_host(subject: Subject) -> None:
    run = subject.mounts.run
    assert run(*subject.program(says="words\n"), seconds=60) == "words\n"
    command = subject.program(code=3, says="bad  news\n")
    with pytest.raises(MountError) as caught:
        run(*command, seconds=60)
    assert str(caught.value) == f"`{' '.join(command)}` failed with 3: bad news"
    with pytest.raises(ToolFailed) as failed:
        run(*command, seconds=60, shown="a driver")
    assert str(failed.value) == "`a driver` failed with 3: bad news" and failed.value.output == "bad  news\n"
    assert run(*command, seconds=60, allow=(3,)) == "bad  news\n"
    with pytest.raises(MountError, match="failed with 5: no output"):
        run(*subject.program(code=5), seconds=None)


def test_a_program_that_hangs_and_one_that_is_not_there(subject: Subject) -> None:
    command = subject.program(hangs=True)
    with pytest.raises(MountError) as caught:
        subject.mounts.run(*command, seconds=0.2)
    assert str(caught.value) == f"`{' '.join(command)}` did not finish within 0.2 s"
    with pytest.raises(MountError, match=r"^`a driver` did not finish within 0\.2 s$"):
        subject.mounts.run(*command, seconds=0.2, shown="a driver")
    with pytest.raises(ToolMissing, match="this volume needs the program pkl-none, which this host does not have"):
        subject.mounts.run("pkl-none", seconds=5)


def test_the_tool_mounts_with_its_options(subject: Subject, place: Path) -> None:
    subject.mounts.by_tool("memory", place, fs_type="tmpfs", options=["noexec", "size=1m"], seconds=60)
    (entry,) = at(subject, place)
    assert (entry.fs_type, entry.source) == ("tmpfs", "memory")
    assert "noexec" in entry.options
    assert subject.mounts.unmount(place)


def test_a_source_cannot_pass_for_an_option(subject: Subject, place: Path) -> None:
    with pytest.raises(MountError, match=f"cannot mount -o at {place}: the source must not begin with '-'"):
        subject.mounts.by_tool("-o", place, fs_type="tmpfs", options=[], seconds=60)


def test_nfs_needs_its_helper(subject: Subject, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: None)
    text = r"an nfs4? volume needs the program mount\.nfs \(package nfs-common\), which this host does not have"
    for kind in ("nfs", "nfs4"):
        with pytest.raises(ToolMissing, match=text):
            subject.mounts.by_tool("server:/path", place, fs_type=kind, options=[], seconds=60)
