"""Disks: formatted only when blank, checked without a deadline, mounted once on the node."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from pykubelet.clients.host.mounts import HostMounts
from pykubelet.clients.host.port import MountError
from pykubelet.volumes.errors import VolumeProblem
from pykubelet.volumes.plugins.disks import FSCK_FINE, mount_filesystem, prepare_filesystem, write_attribute
from tests.fakes.fake_mounts import FakeMounts


@pytest.mark.parametrize(
    "output, fs_type, command, holds",
    [
        ("", "ext4", "mkfs.ext4 -F -m0 /dev/x", "ext4"),
        ("", "xfs", "mkfs.xfs -f /dev/x", "xfs"),
        ("", "btrfs", "mkfs.btrfs /dev/x", "btrfs"),
        ("TYPE=ext4\n", "ext4", "fsck -a /dev/x", "ext4"),
        ("TYPE=ext3\nPTTYPE=dos\n", "ext4", "fsck -a /dev/x", "ext3"),
    ],
)
def test_only_blank_disks_are_formatted(output: str, fs_type: str, command: str, holds: str) -> None:
    mounts = FakeMounts()
    mounts.tools = {"blkid": output, "mkfs.ext4": "", "mkfs.xfs": "", "mkfs.btrfs": "", "fsck": ""}
    assert prepare_filesystem(mounts, "/dev/x", fs_type, read_only=False) == holds
    assert [" ".join(words) for words in mounts.commands[1:]] == [command]
    assert mounts.deadlines[command.split()[0]] is None, "a repair that is cut short leaves a damaged disk"


def test_a_disk_with_partitions_is_not_touched() -> None:
    mounts = FakeMounts()
    mounts.tools = {"blkid": "PTTYPE=gpt\n"}
    with pytest.raises(VolumeProblem, match="holds a partition table"):
        prepare_filesystem(mounts, "/dev/x", "ext4", read_only=False)
    assert len(mounts.commands) == 1


@pytest.mark.parametrize("output", ['/dev/x: UUID="7" TYPE="ext4"\n', "LABEL=data\n", "what?\n"])
def test_a_disk_of_which_something_else_is_said_is_not_formatted(output: str) -> None:
    """Other programs of that name know neither the options nor the exit codes."""
    mounts = FakeMounts()
    mounts.tools = {"blkid": output, "mkfs.ext4": ""}
    with pytest.raises(VolumeProblem, match="/dev/x is not formatted: cannot tell what it holds"):
        prepare_filesystem(mounts, "/dev/x", "ext4", read_only=False)
    assert len(mounts.commands) == 1


@pytest.mark.parametrize("code", [1, 2, 8, 16, 32, 128])
def test_a_disk_that_cannot_be_checked_is_mounted_all_the_same(code: int) -> None:
    mounts = FakeMounts()
    mounts.tools = {"blkid": "TYPE=btrfs\n", "fsck": ""}
    mounts.codes["fsck"] = code
    prepare_filesystem(mounts, "/dev/x", "btrfs", read_only=False)
    assert HostMounts().run("sh", "-c", f"exit {code}", seconds=5, allow=FSCK_FINE) == ""


def test_a_disk_with_errors_that_stay_is_not_mounted() -> None:
    mounts = FakeMounts()
    mounts.tools = {"blkid": "TYPE=ext4\n", "fsck": ""}
    mounts.codes["fsck"] = 4
    with pytest.raises(MountError, match="`fsck -a /dev/x` failed with 4"):
        prepare_filesystem(mounts, "/dev/x", "ext4", read_only=False)
    prepare_filesystem(mounts, "/dev/x", "ext4", read_only=True)


def test_a_disk_with_another_filesystem_is_mounted_as_asked(tmp_path: Path) -> None:
    mounts = FakeMounts()
    mounts.tools = {"blkid": "TYPE=ext3\n", "fsck": ""}
    mount_filesystem(mounts, "/dev/x", tmp_path, "ext4", (), read_only=False)
    assert mounts.entries[0].fs_type == "ext4"
    mounts.tools["blkid"] = "TYPE=xfs\n"
    mounts.fail("tool", str(tmp_path), "wrong fs type")
    with pytest.raises(VolumeProblem, match="/dev/x holds xfs, but ext4 is asked for: wrong fs type"):
        mount_filesystem(mounts, "/dev/x", tmp_path, "ext4", (), read_only=False)


NOBODY = 65534


def test_attributes_of_the_kernel_are_opened_for_writing_only() -> None:
    """Nobody, not even root, may read most of those that do something (`device/delete`, `scan`)."""
    with tempfile.TemporaryDirectory() as name:
        attribute = Path(name, "delete")
        attribute.write_text("")
        attribute.chmod(0o200)
        os.chmod(name, 0o755)
        was = os.geteuid()
        if was == 0:  # root may read any file but those of the kernel
            os.chown(attribute, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            with pytest.raises(PermissionError):
                attribute.open("r+b")
            write_attribute(attribute, "1")
        finally:
            os.seteuid(was)
        attribute.chmod(0o600)
        assert attribute.read_text() == "1"
        with pytest.raises(FileNotFoundError):
            write_attribute(Path(name, "missing"), "1")
