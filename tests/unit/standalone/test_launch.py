"""The process of a private containerd: launched, adopted, or left to be replaced; and what its version costs."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.launch import ContainerdLaunch, version_text
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.programs import RuntimePrograms


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)


def containerd(folder: Path, version: str = "1.6.20") -> Path:
    """A program that says its version, counts how often it was asked, and otherwise stays."""
    program = folder / "containerd"
    asked = folder / "asked"
    program.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo x >> {asked}; echo "containerd x {version} y"; exit; fi\n'
        "exec sleep 1000\n"
    )
    program.chmod(0o755)
    return program


def times_asked(folder: Path) -> int:
    return len((folder / "asked").read_text().splitlines())


def a_launch(folder: Path, program: Path) -> ContainerdLaunch:
    other = Path("/bin/true")
    programs = RuntimePrograms(containerd=program, ctr=other, runc=other, cni_folder=folder, iptables=None)
    return ContainerdLaunch(Layout(folder / "s"), programs)


@contextmanager
def begun(launch: ContainerdLaunch) -> Iterator[ContainerdLaunch]:
    launch.begin()
    try:
        yield launch
    finally:
        launch.release()


@contextmanager
def ended_after(launch: ContainerdLaunch) -> Iterator[None]:
    try:
        yield
    finally:
        if launch.daemon is not None:
            os.kill(launch.daemon.pid, signal.SIGKILL)
            os.waitpid(launch.daemon.pid, 0)


def test_it_is_launched_once_and_adopted_afterwards(tmp_path: Path) -> None:
    program = containerd(tmp_path)
    first = a_launch(tmp_path, program)
    with ended_after(first):
        with begun(first):
            assert first.daemon is not None and not first.adopted
            with pytest.raises(StandaloneError, match="another pykubelet"):
                a_launch(tmp_path, program).begin()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(first.layout.socket))
            listening.listen()
            with begun(a_launch(tmp_path, program)) as second:
                assert second.adopted and second.daemon == first.daemon


def test_one_that_does_not_listen_or_has_another_configuration_is_to_be_replaced(tmp_path: Path) -> None:
    program = containerd(tmp_path)
    first = a_launch(tmp_path, program)
    with ended_after(first):
        with begun(first):
            pass
        with begun(a_launch(tmp_path, program)) as hanging:
            assert hanging.outdated == first.daemon and hanging.daemon is None
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(first.layout.socket))
            listening.listen()
            containerd(tmp_path, version="2.1.0")
            with begun(a_launch(tmp_path, program)) as newer:
                assert newer.outdated == first.daemon and newer.daemon is None
                assert "version = 3" in newer.layout.config.read_text()


def test_the_version_is_asked_for_once_for_each_program(tmp_path: Path) -> None:
    program, kept = containerd(tmp_path), tmp_path / "kept.json"
    assert [version_text(program, kept) for _ in range(3)] == ["containerd x 1.6.20 y\n"] * 3
    assert times_asked(tmp_path) == 1
    containerd(tmp_path, version="1.7.11")
    assert "1.7.11" in version_text(program, kept)
    kept.write_text("damaged")
    assert "1.7.11" in version_text(program, kept)
    assert times_asked(tmp_path) == 3


@pytest.mark.parametrize(("script", "says"), [("exit 3", "exit status 3"), ("echo what", "no version in it")])
def test_a_program_without_a_version_is_refused_and_not_kept(tmp_path: Path, script: str, says: str) -> None:
    program, kept = tmp_path / "containerd", tmp_path / "kept.json"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(StandaloneError, match=says):
        version_text(program, kept)
    assert not kept.exists()


def test_without_root_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(StandaloneError, match="needs root"):
        a_launch(tmp_path, containerd(tmp_path)).begin()
    assert not (tmp_path / "s").exists()
