"""Reading the mount table, programs that are missing, and removing trees that fight back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pykubelet.clients.host.folders import MAX_OPEN, remove_tree
from pykubelet.clients.host.mounts import HostMounts, is_shared, parse_mountinfo
from pykubelet.clients.host.port import MountError, ToolMissing

TABLE = rb"""22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
40 22 0:35 / /run/a\040b\134c rw,nosuid,nodev - tmpfs tmpfs rw,size=1024k
41 22 8:1 /srv/data /var/lib/x ro,relatime shared:1 master:2 - ext4 /dev/sda1 rw
42 22 0:36 / /caf\303\251 rw - nfs4 server:/p\040q rw
this is no entry
"""


def test_mountinfo() -> None:
    entries = parse_mountinfo(TABLE)
    assert [(e.mount_point, e.root, e.fs_type, e.source) for e in entries] == [
        ("/", "/", "ext4", "/dev/sda1"),
        ("/run/a b\\c", "/", "tmpfs", "tmpfs"),
        ("/var/lib/x", "/srv/data", "ext4", "/dev/sda1"),
        ("/café", "/", "nfs4", "server:/p q"),
    ]
    assert entries[2].options == ("ro", "relatime") and entries[2].device == "8:1"


@pytest.mark.parametrize(
    ("folder", "shared"),
    [("/srv", True), ("/run/a b\\c", False), ("/run/a b\\c/d", False), ("/run/a b\\cd", True), ("/var/lib/x/y", True)],
)
def test_mounts_that_spread(folder: str, shared: bool) -> None:
    assert is_shared(folder, TABLE) is shared


def test_the_real_table_has_a_root() -> None:
    assert any(entry.mount_point == "/" for entry in HostMounts().table())


def test_programs() -> None:
    mounts = HostMounts()
    assert mounts.run("echo", "hi", seconds=5) == "hi\n"
    with pytest.raises(ToolMissing, match="needs the program no-such-tool, which this host does not have"):
        mounts.run("no-such-tool", seconds=5)
    with pytest.raises(MountError, match=r"`sh -c echo why >&2; exit 3` failed with 3: why"):
        mounts.run("sh", "-c", "echo why >&2; exit 3", seconds=5)
    assert mounts.run("sh", "-c", "exit 3", seconds=5, allow=(3,)) == ""
    with pytest.raises(MountError, match="did not finish within"):
        mounts.run("sleep", "10", seconds=0.05)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host whose `mount` and helper only write down their words, one a line."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("mount", "mount.nfs", "umount"):
        (folder / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/words\n')
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return tmp_path


def test_mount_takes_no_source_for_an_option(tools: Path) -> None:
    HostMounts().by_tool("server:/x", tools, fs_type="nfs", options=("ro",), seconds=5)
    assert (tools / "words").read_text().split() == ["-t", "nfs", "-o", "ro", "--", "server:/x", str(tools)]
    (tools / "words").unlink()
    with pytest.raises(MountError, match="the source must not begin with '-'"):
        HostMounts().by_tool("-T/tmp/a:/fstab", tools, fs_type="nfs", options=(), seconds=5)
    assert not (tools / "words").exists()


@pytest.mark.real_loop
def test_at_its_deadline_a_program_is_killed_with_all_it_started(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    for seconds in (0.2, 1.0, 10.0):  # a busy machine may need a while to begin
        with pytest.raises(MountError, match=f"did not finish within {seconds:g} s"):
            HostMounts().run("sh", "-c", script, seconds=seconds)
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"):
            break
    child = Path("/proc", (tmp_path / "pid").read_text().strip(), "stat")
    gone = time.monotonic() + 10
    while child.exists() and child.read_text().split()[2] != "Z" and time.monotonic() < gone:
        time.sleep(0.01)
    assert not child.exists() or child.read_text().split()[2] == "Z"


AGENT = """
import sys, threading
from pathlib import Path
from pykubelet.clients.host.mounts import HostMounts
tool = "echo begun > {0}/begun; read x < {0}/go; echo repairing; echo repaired > {0}/done"
run = lambda: HostMounts().run("sh", "-c", tool.format(sys.argv[1]), seconds=None)
threading.Thread(target=run, daemon=True).start()
while not Path(sys.argv[1], "begun").exists():
    pass
"""


@pytest.mark.real_loop
def test_a_program_without_deadline_outlives_the_agent_and_its_signals(tmp_path: Path) -> None:
    """What repairs a filesystem is not cut short by a restart of the agent, nor by the pipe that goes with it."""
    os.mkfifo(tmp_path / "go")
    done = subprocess.run([sys.executable, "-c", AGENT, str(tmp_path)], timeout=30, check=False)
    assert done.returncode == 0
    (tmp_path / "go").write_text("now\n")
    until = time.monotonic() + 10
    while not (tmp_path / "done").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert (tmp_path / "done").exists()


def test_long_words_of_a_program_are_cut() -> None:
    with pytest.raises(MountError) as caught:
        HostMounts().run("sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 1", seconds=30)
    assert len(str(caught.value)) < 3000


def test_what_is_no_mount_is_nothing_to_unmount(tmp_path: Path) -> None:
    mounts = HostMounts()
    if os.geteuid() == 0:
        assert mounts.unmount(tmp_path) is False
        assert mounts.unmount(tmp_path / "none") is False
    assert not mounts.is_mounted(tmp_path) and not mounts.is_mounted(tmp_path / "none")
    assert mounts.is_mounted(Path("/proc"))


BINDS = """
import sys
from pathlib import Path
from pykubelet.clients.host.mounts import HostMounts
top, mounts = Path(sys.argv[1]), HostMounts()
def shown(name, **wanted):
    (top / name).mkdir()
    mounts.bind(top / "source", top / name, **wanted)
    options = next(entry.options for entry in mounts.table() if entry.mount_point == str(top / name))
    print(name, *sorted({"ro", "noexec", "nosuid", "nodev", "noatime"} & set(options)))
(top / "source").mkdir()
shown("plain", read_only=False)
shown("flags", read_only=False, options=("noexec", "nodev", "discard", "noatime"))
shown("both", read_only=True, options=("nosuid",))
(top / "flags/written").touch()
mounts.bind(top / "flags", top / "source", read_only=False)
shown("kept", read_only=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_bind_mount_has_the_options_it_can_have(tmp_path: Path) -> None:
    """In a mount namespace of its own, with which everything goes."""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", BINDS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "plain", "flags noatime nodev noexec", "both nosuid ro", "kept noatime nodev noexec ro",
    ]  # fmt: skip


def test_trees_of_any_depth_and_width(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(MAX_OPEN * 3):
        os.mkdir("a" * 100, dir_fd=here)  # far beyond the longest path
        os.mkdir("b", dir_fd=here)
        below = os.open("a" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    before = len(os.listdir("/proc/self/fd"))
    remove_tree(top)
    assert not top.exists() and len(os.listdir("/proc/self/fd")) == before


def test_links_are_removed_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").touch()
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    remove_tree(top)
    (tmp_path / "itself").symlink_to(outside)
    remove_tree(tmp_path / "itself")
    assert sorted(os.listdir(tmp_path)) == ["outside"] and (outside / "keep").exists()


def test_nothing_there_is_success(tmp_path: Path) -> None:
    remove_tree(tmp_path / "none")
    remove_tree(tmp_path / "none/deeper")
