"""Files of variables: their syntax, and that a hostile volume cannot lead out of itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.env import MAX_BYTES, EnvFileProblem, find_value, open_beneath, read_env_file


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("K='v'", "v"),
        ("A='1'\nK='v'\n", "v"),
        ("  \tK='v'   # why", "v"),
        ("# K='no'\n\n   \nK='v'", "v"),
        ("K='two\nlines'\n", "two\nlines"),
        ("K='two\r\nlines'\r\n", "two\nlines"),
        ("A='x\nK=y'\nK='v'", "v"),
        ("K='a\\n$(B) \"q\" # no comment'", 'a\\n$(B) "q" # no comment'),
        ("K=''", ""),
        ("K= 'v'", ""),
        ("A= 'v'\nK='w'", "w"),
        ("K='first'\nK='second'", "first"),
        ("K='v'\nthis is broken but comes later", "v"),
        ("A='1'", ""),
        ("", ""),
    ],
)
def test_find_value(text: str, wanted: str) -> None:
    assert find_value(text, "K") == wanted


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("K", "line 1: missing '='"),
        ("='v'", "line 1: a name"),
        ("\nK ='v'", "line 2: a name"),
        ("K=v", "line 1: the value must be in single quotes"),
        ('K="v"', "line 1: the value must be in single quotes"),
        ("K=", "line 1: the value must be in single quotes"),
        ("K='v", "line 1: the quote is never closed"),
        ("A='1'\nK='v\nw\n", "line 2: the quote is never closed"),
        ("K='v' w", "line 1: text after the closing quote"),
        ("K='a\nb'c", "line 2: text after the closing quote"),
    ],
)
def test_broken_files(text: str, complaint: str) -> None:
    with pytest.raises(EnvFileProblem, match=complaint):
        find_value(text, "K")


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("K='stolen'")
    root = tmp_path / "vol"
    (root / "dir").mkdir(parents=True)
    (root / "dir" / "f").write_text("K='v'")
    return root


@pytest.mark.parametrize("path", ["dir/f", "/dir/f", "./dir//f", "../dir/f", "dir/../dir/f", "../../dir/f"])
def test_reading_inside(volume: Path, path: str) -> None:
    assert read_env_file(str(volume), path).value("K") == "v"


@pytest.mark.parametrize(
    ("target", "readable"),
    [
        ("dir/f", True),
        ("/dir/f", True),
        ("../dir/f", True),
        ("../outside", False),
        ("../../outside", False),
        ("/etc/hostname", False),
        ("link", False),
    ],
)
def test_links_stay_inside(volume: Path, target: str, readable: bool) -> None:
    (volume / "link").symlink_to(target)
    file = read_env_file(str(volume), "link")
    assert (file.error == "") is readable


def test_links_through_folders_stay_inside(volume: Path, tmp_path: Path) -> None:
    (volume / "way").symlink_to(tmp_path)
    assert read_env_file(str(volume), "way/outside").error
    (volume / "dir" / "up").symlink_to("..")
    assert read_env_file(str(volume), "dir/up/dir/f").value("K") == "v"


def test_only_regular_files_of_a_bounded_size(volume: Path) -> None:
    os.mkfifo(volume / "pipe")
    (volume / "big").write_bytes(b"#" * (MAX_BYTES + 1))
    assert "not a regular file" in read_env_file(str(volume), "pipe").error
    assert "not a regular file" in read_env_file(str(volume), "dir").error
    assert "larger than" in read_env_file(str(volume), "big").error
    assert "cannot open" in read_env_file(str(volume), "none").error
    assert "cannot open" in read_env_file(str(volume), "dir/f/g").error
    assert "cannot open" in read_env_file(str(volume / "gone"), "f").error


def test_an_unreadable_file_shows_upstreams_text_to_users(volume: Path) -> None:
    with pytest.raises(ConfigProblem, match=r"^couldn't parse env file$"):
        read_env_file(str(volume), "none").value("K")


def test_no_descriptor_leaks(volume: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    os.close(open_beneath(str(volume), "dir/f"))
    (volume / "loop").symlink_to("loop")
    for path in ("none", "loop", "dir/none"):
        with pytest.raises(OSError):
            open_beneath(str(volume), path)
    assert len(os.listdir("/proc/self/fd")) == before
