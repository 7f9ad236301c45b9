"""Project quotas: which number a folder gets, what is asked, and that hosts without them are no error.

The kernel's answers are made up here: quotas need a filesystem and a kernel that few test machines have.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.clients.host import quotas
from pykubelet.clients.host.port import Counted
from pykubelet.clients.host.quotas import FIRST_PROJECT, ProjectQuotas, ask_kernel


class Kernel:
    """Keeps the numbers of folders and what projects hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.projects: dict[str, int] = {}
        self.held: dict[int, Counted] = {}
        self.on = True
        monkeypatch.setattr(quotas, "project_of", lambda fd: self.projects.get(_path(fd), 0))
        monkeypatch.setattr(quotas, "_set_project", self._set)

    def ask(self, descriptor: int, project: int) -> Counted | None:
        return self.held.get(project, Counted(bytes=0, inodes=0)) if self.on else None

    def _set(self, descriptor: int, project: int) -> bool:
        self.projects[_path(descriptor)] = project
        self.held[project] = Counted(bytes=4096, inodes=1)
        return True


def _path(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(monkeypatch)


def test_folders_get_numbers_of_their_own(kernel: Kernel, tmp_path: Path) -> None:
    made = ProjectQuotas(kernel.ask)
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
        assert made.begin(folder, "the same key")
    first, second = (kernel.projects[str(folder)] for folder in folders)
    assert first >= FIRST_PROJECT and second == first + 1
    kernel.held[first] = Counted(bytes=1 << 20, inodes=7)
    assert made.counted(folders[0]) == Counted(bytes=1 << 20, inodes=7)
    assert made.begin(folders[0], "another key") and kernel.projects[str(folders[0])] == first


def test_numbers_people_gave_are_left_to_them(kernel: Kernel, tmp_path: Path) -> None:
    kernel.projects[str(tmp_path)] = 42
    assert ProjectQuotas(kernel.ask).counted(tmp_path) is None


def test_a_filesystem_without_quotas(kernel: Kernel, tmp_path: Path) -> None:
    kernel.on = False
    made = ProjectQuotas(kernel.ask)
    assert not made.begin(tmp_path, "key") and kernel.projects == {}
    assert made.counted(tmp_path) is None


def test_the_real_kernel_is_asked_without_harm(tmp_path: Path) -> None:
    descriptor = os.open("/proc", os.O_RDONLY)
    try:
        assert ask_kernel(descriptor, FIRST_PROJECT) is None
        assert quotas.project_of(descriptor) == 0
    finally:
        os.close(descriptor)
