"""Where the commands find the agent, and agents of earlier versions."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from pykubelet.cli.local_socket import FOLDER, candidates, forget_old_socket, local_socket
from pykubelet.cli.options import sockets
from pykubelet.cli.up import UpState

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="the folder belongs to root")


@as_root
def test_no_pod_has_the_folder_mounted(tmp_path: Path) -> None:
    assert local_socket(Path("/var/lib/kubelet")) == FOLDER / "kubelet.sock"
    one, other = local_socket(tmp_path / "one" / "kubelet"), local_socket(tmp_path / "other" / "kubelet")
    assert one.parent == other.parent == FOLDER
    assert one != other and one.name.startswith("one-") and other.name.startswith("other-")
    assert len(bytes(local_socket(Path("/" + "x" * 250) / "kubelet"))) < 108
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert local_socket(tmp_path / "link" / "kubelet") == one


@as_root
def test_the_commands_look_where_the_agent_listens(tmp_path: Path) -> None:
    assert sockets(str(tmp_path)) == (UpState(tmp_path.resolve()).socket,)
    assert FOLDER / "kubelet.sock" in sockets(None)


@as_root
def test_an_agent_of_an_earlier_version(tmp_path: Path) -> None:
    new, old = local_socket(tmp_path), tmp_path / "pykubelet.sock"
    forget_old_socket(tmp_path)
    assert candidates(tmp_path) == [new]
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(old))
    assert candidates(tmp_path) == [new, old]
    forget_old_socket(tmp_path)
    assert not old.exists()
    old.write_text("no socket, not ours")
    forget_old_socket(tmp_path)
    assert old.exists()
