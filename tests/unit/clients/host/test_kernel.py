from __future__ import annotations

from pathlib import Path

from pykubelet.clients.host.kernel import WANTED, check_tunables, set_tunables


def a_kernel(root: Path, **other: str) -> Path:
    """/proc/sys with everything as wanted but for `other`, keyed by the last part of the name."""
    for name, value in WANTED.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(other.get(path.name, str(value)) + "\n")
    return root


def test_what_is_right_is_left_alone(tmp_path: Path) -> None:
    a_kernel(tmp_path)
    for name in WANTED:
        (tmp_path / name).chmod(0o444)
    assert check_tunables(tmp_path) == set_tunables(tmp_path) == []


def test_what_differs_is_named_or_set(tmp_path: Path) -> None:
    a_kernel(tmp_path, overcommit_memory="0", panic="1")
    assert check_tunables(tmp_path) == ["vm/overcommit_memory is 0, expected 1", "kernel/panic is 1, expected 10"]
    assert (tmp_path / "vm/overcommit_memory").read_text() == "0\n"
    assert set_tunables(tmp_path) == []
    assert (tmp_path / "vm/overcommit_memory").read_text() == "1\n"
    assert check_tunables(tmp_path) == []


def test_a_kernel_without_one_of_them_is_told(tmp_path: Path) -> None:
    a_kernel(tmp_path)
    (tmp_path / "kernel/keys/root_maxkeys").unlink()
    (tmp_path / "kernel/keys/root_maxkeys").mkdir()
    assert check_tunables(tmp_path) == ["kernel/keys/root_maxkeys cannot be read: Is a directory"]
    assert set_tunables(tmp_path) == ["kernel/keys/root_maxkeys cannot be set to 1000000: Is a directory"]
