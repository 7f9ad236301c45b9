"""fsGroup: every file of a volume gets the group, at any depth, through no link, past files that refuse it."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pykubelet.clients.host.folders import remove_tree
from pykubelet.volumes import ownership
from pykubelet.volumes.errors import VolumeProblem


def test_fs_group_reaches_every_file_and_follows_no_link(tmp_path: Path) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    (volume / "d").mkdir(parents=True)
    (volume / "d/f").write_text("x")
    (volume / "d/f").chmod(0o600)
    (volume / "d").chmod(0o700)
    outside.write_text("y")
    outside.chmod(0o600)
    (volume / "link").symlink_to(outside)
    counted: list[int] = []
    ownership.give(volume, os.getgid(), progress=counted.append)
    assert stat.S_IMODE((volume / "d/f").stat().st_mode) == 0o660
    assert stat.S_IMODE((volume / "d").stat().st_mode) == 0o2770
    assert stat.S_IMODE(outside.stat().st_mode) == 0o600
    assert counted == [1, 2, 3]
    assert ownership.is_given(volume, os.getgid(), read_only=False)
    (volume / "d/f").chmod(0o600)
    ownership.give(volume, os.getgid(), on_root_mismatch=True)
    assert stat.S_IMODE((volume / "d/f").stat().st_mode) == 0o600, "the top fits, so nothing below is touched"


def nest(top: Path, depth: int) -> None:
    """Folders within folders, far beyond the longest path, with a file in the lowest."""
    here = os.open(top, os.O_RDONLY)
    for number in range(depth):
        os.mkdir("d" * 50, 0o700, dir_fd=here)
        if number % 40 == 0:
            os.close(os.open("beside", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("lowest", os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=here))
    os.close(here)


@pytest.fixture
def top(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed at any depth, which pytest itself cannot."""
    (tmp_path / "top").mkdir()
    yield tmp_path / "top"
    remove_tree(tmp_path / "top")


def open_below(top: Path) -> int:
    """How many files of this folder are open; other tests' threads may open and close what they want."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(str(top))
        except OSError as error:
            found += error.errno == errno.ENAMETOOLONG  # only what lies this deep has no name
    return found


def test_fs_group_reaches_any_depth_with_few_descriptors(top: Path) -> None:
    nest(top, 1500)
    most = 0

    def look(count: int) -> None:
        nonlocal most
        counted.append(count)
        if count % 100 == 0:
            most = max(most, open_below(top))

    counted: list[int] = []
    ownership.give(top, os.getgid(), progress=look)
    assert counted[-1] == 1500 + 38 + 1
    assert ownership.MAX_OPEN <= most <= ownership.MAX_OPEN + 5
    assert open_below(top) == 0
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    assert stat.S_IMODE(os.fstat(here).st_mode) == 0o2770
    assert stat.S_IMODE(os.stat("lowest", dir_fd=here).st_mode) == 0o660
    os.close(here)


def test_fs_group_notices_folders_that_were_moved_away(top: Path) -> None:
    nest(top, 200)
    (top / "other").mkdir()
    moved = False

    def move(count: int) -> None:
        nonlocal moved
        if not moved and count > 150:
            moved = True
            deep = os.path.join(*["d" * 50] * 20)
            os.rename(top / deep, top / "other/x")

    with pytest.raises(VolumeProblem, match="folders were moved while fsGroup was applied"):
        ownership.give(top, os.getgid(), progress=move)
    assert open_below(top) == 0


def test_a_file_that_cannot_be_changed_is_told_and_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a file server that squashes root, or in a folder of snapshots."""
    for name in ("a", "b", "c"):
        (tmp_path / name).touch(0o600)
    real, stubborn = os.chmod, {(tmp_path / name).stat().st_ino for name in ("a", "b")}

    def chmod(path: str, mode: int) -> None:
        if os.stat(path).st_ino in stubborn:
            raise PermissionError(errno.EPERM, "Operation not permitted", path)
        real(path, mode)

    monkeypatch.setattr("pykubelet.volumes.ownership.os.chmod", chmod)
    ownership.give(tmp_path, os.getgid())
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o660
    assert ownership.is_given(tmp_path, os.getgid(), read_only=False)
    logged = [record for record in caplog.records if "keep their group or mode" in record.message]
    assert len(logged) == 1 and logged[0].__dict__["files"] == 2 and "not permitted" in logged[0].__dict__["first"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_an_immutable_file_does_not_keep_a_volume_from_its_group(tmp_path: Path) -> None:
    (tmp_path / "fixed").touch(0o600)
    (tmp_path / "free").touch(0o600)
    if subprocess.run(["chattr", "+i", tmp_path / "fixed"], capture_output=True, check=False).returncode:
        pytest.skip("this filesystem knows no immutable files")
    try:
        ownership.give(tmp_path, 4711)
    finally:
        subprocess.run(["chattr", "-i", tmp_path / "fixed"], check=True)
    assert [(tmp_path / name).stat().st_gid for name in ("fixed", "free", ".")] == [os.getgid(), 4711, 4711]
