"""Finding programs, and naming everything that is missing at once."""

from __future__ import annotations

from pathlib import Path

from pykubelet.standalone.cleanup import mounts_below
from pykubelet.standalone.images import is_static
from pykubelet.standalone.programs import NEEDED_CNI_PLUGINS, find, find_cni_folder, missing


def executable(path: Path) -> Path:
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_a_given_folder_comes_first(tmp_path: Path) -> None:
    program = executable(tmp_path / "sh")
    assert find("sh", folder=tmp_path) == program
    assert find("no-such-program", folder=tmp_path) is None


def test_plugin_folder_must_be_complete(tmp_path: Path) -> None:
    for folder in ("half", "whole"):
        (tmp_path / folder).mkdir()
        for name in NEEDED_CNI_PLUGINS[: 2 if folder == "half" else None]:
            executable(tmp_path / folder / name)
    assert find_cni_folder([str(tmp_path / "none"), str(tmp_path / "half")]) is None
    assert find_cni_folder([str(tmp_path / "half"), str(tmp_path / "whole")]) == tmp_path / "whole"


def test_all_missing_programs_are_named_with_their_packages() -> None:
    text = str(missing(["containerd", "ctr", "busybox"]))
    assert "not installed: containerd, ctr, busybox" in text
    assert "apt-get install containerd busybox-static;" in text
    assert text.endswith("dnf install containerd busybox")


def test_dynamic_programs_are_told_from_static_ones() -> None:
    assert not is_static(b"#!/bin/sh\n")
    assert not is_static(b"")


def test_only_mounts_below_the_folder_are_found_newest_first() -> None:
    table = "\n".join(
        f"{number} 1 0:1 / {point} rw - tmpfs tmpfs rw"
        for number, point in enumerate(["/", "/a/b", "/a/b/c\\040d", "/ab", "/a", "/a/b/c\\040d/e"])
    )
    assert mounts_below(Path("/a"), table) == ["/a/b/c d/e", "/a/b/c d", "/a/b"]
