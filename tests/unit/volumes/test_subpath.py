"""Paths inside a folder: followed while they stay inside, refused when they lead out; both ways of looking."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.subpath import Escapes, check_subpath, make_beneath, mount_subpath, open_beneath, open_stepwise
from tests.fakes.fake_mounts import FakeMounts


class Opener(Protocol):
    def __call__(self, base: int, path: str, names: Sequence[str] = ()) -> int: ...


@contextmanager
def swapping(one: Path, two: Path) -> Iterator[None]:
    """Two names change places all the time."""
    exchange, stop = ctypes.CDLL(None).renameat2, threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(-100, os.fsencode(one), -100, os.fsencode(two), 2)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture
def base(tmp_path: Path) -> Iterator[int]:
    top = tmp_path / "volume"
    (top / "dir/deep").mkdir(parents=True)
    (top / "dir/file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    for name, target in {
        "good": "dir",
        "chain": "good/file",
        "up": "dir/../dir/file",
        "out": "..",
        "out-deep": "dir/deep/../../../secret",
        "absolute": "/etc",
        "absolute-inside": str(top / "dir"),
        "magic": "/proc/self/root",
        "loop": "loop",
        "broken": "nothing",
    }.items():
        (top / name).symlink_to(target)
    descriptor = os.open(top, os.O_PATH | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=[open_beneath, open_stepwise], ids=["kernel", "stepwise"])
def opener(request: pytest.FixtureRequest) -> Opener:
    chosen: Opener = request.param
    return chosen


@pytest.mark.parametrize(
    "path, leads_to",
    [
        ("dir", "dir"),
        ("dir/file", "dir/file"),
        ("good", "dir"),
        ("chain", "dir/file"),
        ("up", "dir/file"),
        ("./dir//deep/", "dir/deep"),
    ],
)
def test_inside(base: int, opener: Opener, tmp_path: Path, path: str, leads_to: str) -> None:
    descriptor = opener(base, path)
    assert os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "volume" / leads_to)
    os.close(descriptor)


@pytest.mark.parametrize("path", ["out", "out/secret", "out-deep", "absolute", "absolute/passwd", "magic/etc"])
def test_outside(base: int, opener: Opener, path: str) -> None:
    with pytest.raises(Escapes, match="leads out of the volume"):
        opener(base, path)


def test_an_absolute_link_into_the_folder_needs_its_name(base: int, opener: Opener, tmp_path: Path) -> None:
    with pytest.raises(Escapes):
        opener(base, "absolute-inside")
    (tmp_path / "volume/absolute-deep").symlink_to(tmp_path / "volume/dir/../good/file")
    for path, leads_to in {
        "absolute-inside": "dir",
        "absolute-inside/file": "dir/file",
        "absolute-deep": "dir/file",
    }.items():
        descriptor = opener(base, path, ("/nowhere", str(tmp_path / "volume")))
        assert os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "volume" / leads_to)
        os.close(descriptor)


@pytest.mark.parametrize("target", ["../secret", "../volumes/x", "//etc", "dir/../../secret"])
def test_an_absolute_link_leads_out_by_no_name(base: int, opener: Opener, tmp_path: Path, target: str) -> None:
    (tmp_path / "volume/odd").symlink_to(target if target.startswith("/") else f"{tmp_path}/volume/{target}")
    for names in ((str(tmp_path / "volume"),), ("/data", str(tmp_path / "volume"))):
        with pytest.raises(Escapes):
            opener(base, "odd", names)


def test_the_root_of_the_host_as_a_volume(tmp_path: Path, opener: Opener) -> None:
    """Every absolute link leads inside, such as /etc/mtab or /var/run."""
    (tmp_path / "link").symlink_to(tmp_path / "run")
    (tmp_path / "run").mkdir()
    base = os.open("/", os.O_PATH | os.O_DIRECTORY)
    try:
        descriptor = opener(base, f"{tmp_path}/link"[1:], ("/",))
        assert os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "run")
        os.close(descriptor)
    finally:
        os.close(base)


def test_a_race_of_absolute_links_leads_nowhere_else(tmp_path: Path, opener: Opener) -> None:
    """The link inside is changed all the time for one that leads out."""
    volume, secret = tmp_path / "volume", tmp_path / "secret"
    (volume / "real/inner").mkdir(parents=True)
    (secret / "inner").mkdir(parents=True)
    (volume / "spot").symlink_to(volume / "real")
    (volume / "other").symlink_to(secret)
    base = os.open(volume, os.O_PATH | os.O_DIRECTORY)
    with swapping(volume / "spot", volume / "other"):
        outcomes = {"inside": 0, "refused": 0}
        for _ in range(20000):
            try:
                found = opener(base, "spot/inner", (str(volume),))
            except (Escapes, OSError):
                outcomes["refused"] += 1
            else:
                assert os.fstat(found).st_ino == (volume / "real/inner").stat().st_ino
                os.close(found)
                outcomes["inside"] += 1
            if min(outcomes.values()) > 50:
                break
    os.close(base)
    assert min(outcomes.values()) > 0, outcomes


def test_absolute_links_that_loop(base: int, opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "volume/again").symlink_to(tmp_path / "volume/again")
    with pytest.raises(OSError, match="Too many levels"):
        opener(base, "again", (str(tmp_path / "volume"),))


@pytest.mark.parametrize("path, error", [("nothing", FileNotFoundError), ("broken", FileNotFoundError),
                                         ("loop", OSError), ("dir/file/x", NotADirectoryError)])  # fmt: skip
def test_errors(base: int, opener: Opener, path: str, error: type[OSError]) -> None:
    with pytest.raises(error):
        opener(base, path)


def test_no_descriptor_is_lost(base: int, opener: Opener) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("dir/file", "chain", "out", "nothing", "loop"):
        try:
            os.close(opener(base, path))
        except (OSError, VolumeProblem):
            continue
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_race_leads_nowhere_else(tmp_path: Path, opener: Opener) -> None:
    """A folder and a link out of the volume change places all the time; what is opened is inside or refused."""
    volume, secret = tmp_path / "volume", tmp_path / "secret"
    (volume / "spot/inner").mkdir(parents=True)
    (secret / "inner").mkdir(parents=True)
    (volume / "link").symlink_to("../secret")
    base = os.open(volume, os.O_PATH | os.O_DIRECTORY)
    with swapping(volume / "spot", volume / "link"):
        for _ in range(1000):
            try:
                found = opener(base, "spot/inner")
            except (Escapes, OSError):
                continue
            assert os.fstat(found).st_ino != (secret / "inner").stat().st_ino
            os.close(found)
    os.close(base)


def test_missing_folders_are_made_with_the_mode(base: int, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        os.close(make_beneath(base, "good/new/er", 0o777))
    finally:
        os.umask(before)
    assert (tmp_path / "volume/dir/new/er").stat().st_mode & 0o7777 == 0o777
    assert (tmp_path / "volume/dir/new").stat().st_mode & 0o7777 == 0o777


@pytest.mark.parametrize("path", ["out/new", "absolute/new", "broken/new", "dir/file/new"])
def test_nothing_is_made_outside(base: int, tmp_path: Path, path: str) -> None:
    with pytest.raises((VolumeProblem, OSError)):
        make_beneath(base, path, 0o755)
    assert sorted(os.listdir(tmp_path)) == ["secret", "volume"]
    assert not Path("/etc/new").exists()


def test_a_subpath_by_an_absolute_link(tmp_path: Path) -> None:
    """As releases are switched on a host: `current` leads to /data/v42, by the folder's own or its real name."""
    real, alias, mounts = tmp_path / "real", tmp_path / "data", FakeMounts()
    (real / "v42").mkdir(parents=True)
    alias.symlink_to(real)
    (real / "current").symlink_to(alias / "v42")
    (real / "next").symlink_to(real / "v42")
    (real / "away").symlink_to(tmp_path)
    for number, name in enumerate(("current", "next")):
        mount_subpath(mounts, alias, f"{name}/new", tmp_path / str(number))
        assert mounts.shown(tmp_path / str(number)) == str(real / "v42/new")
    with pytest.raises(VolumeProblem, match="leads out of the volume"):
        mount_subpath(mounts, alias, "away/x", tmp_path / "3")


@pytest.mark.parametrize("path, clean", [("a/b", "a/b"), ("./a//b/", "a/b"), ("", ""), ("..a", "..a")])
def test_subpaths(path: str, clean: str) -> None:
    assert check_subpath(path) == clean


@pytest.mark.parametrize("path", ["/a", "..", "a/../b", "a/.."])
def test_bad_subpaths(path: str) -> None:
    with pytest.raises(VolumeProblem, match="must not"):
        check_subpath(path)
