"""Finding sockets in a real folder."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from pykubelet.cm.plugin_manager import open_tree_watch


def a_socket(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.real_loop
async def test_sockets_are_found_at_any_depth_and_nothing_else_is(tmp_path: Path) -> None:
    root = tmp_path / "registry"
    watch = open_tree_watch(root)
    try:
        assert watch.sockets() == {}
        a_socket(root / "one.sock")
        a_socket(root / "deep" / "er" / "two.sock")
        a_socket(root / ".hidden.sock")
        a_socket(root / ".folder" / "three.sock")
        (root / "file").write_text("")
        (root / "link").symlink_to(root / "one.sock")
        assert set(watch.sockets()) == {root / "one.sock", root / "deep" / "er" / "two.sock"}
    finally:
        watch.close()


@pytest.mark.real_loop
async def test_a_change_in_a_nested_folder_wakes(tmp_path: Path) -> None:
    watch = open_tree_watch(tmp_path)
    try:
        (tmp_path / "nested").mkdir()
        watch.sockets()
        await watch.wait(0.001)
        a_socket(tmp_path / "nested" / "one.sock")
        await watch.wait(30)
        first = watch.sockets()
        assert set(first) == {tmp_path / "nested" / "one.sock"}
        (tmp_path / "nested" / "one.sock").unlink()
        a_socket(tmp_path / "nested" / "one.sock")
        await watch.wait(30)
        again = watch.sockets()
        assert again.keys() == first.keys()
        assert again != first
    finally:
        watch.close()


@pytest.mark.real_loop
async def test_a_socket_whose_rights_change_is_still_the_same(tmp_path: Path) -> None:
    watch = open_tree_watch(tmp_path)
    try:
        a_socket(tmp_path / "one.sock")
        before = watch.sockets()
        (tmp_path / "one.sock").chmod(0o600)
        assert watch.sockets() == before
    finally:
        watch.close()
