"""Paths inside a folder: followed while they stay inside, refused when they lead out; both ways of looking."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pykubelet.volumes.beneath import Escapes, check_subpath, make_beneath, open_beneath, open_stepwise
from pykubelet.volumes.problems import VolumeProblem

Opener = Callable[[int, str], int]


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


def test_absolute_links_are_refused_even_if_they_lead_inside(base: int, opener: Opener) -> None:
    with pytest.raises(Escapes):
        opener(base, "absolute-inside")


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
    exchange = ctypes.CDLL(None).renameat2
    one, two = os.fsencode(volume / "spot"), os.fsencode(volume / "link")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            exchange(-100, one, -100, two, 2)

    thread = threading.Thread(target=swap)
    thread.start()
    base = os.open(volume, os.O_PATH | os.O_DIRECTORY)
    try:
        for _ in range(1000):
            try:
                found = opener(base, "spot/inner")
            except (Escapes, OSError):
                continue
            assert os.fstat(found).st_ino != (secret / "inner").stat().st_ino
            os.close(found)
    finally:
        stop.set()
        thread.join()
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


@pytest.mark.parametrize("path, clean", [("a/b", "a/b"), ("./a//b/", "a/b"), ("", ""), ("..a", "..a")])
def test_subpaths(path: str, clean: str) -> None:
    assert check_subpath(path) == clean


@pytest.mark.parametrize("path", ["/a", "..", "a/../b", "a/.."])
def test_bad_subpaths(path: str) -> None:
    with pytest.raises(VolumeProblem, match="must not"):
        check_subpath(path)
