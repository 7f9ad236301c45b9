"""The walk that looks for readers of settings: what counts, and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.settings_readers import Readers, find_readers

SETTINGS = """
from dataclasses import dataclass

class Gates:
    def enabled(self, name: str) -> bool: ...

@dataclass
class Item:
    size: int

@dataclass
class Disk:
    folder: str
    items: tuple[Item, ...]
    spare: Item | None = None

    @property
    def in_capitals(self) -> str:
        return self.folder.upper()

@dataclass
class Settings:
    disk: Disk
    gates: Gates

def first_word(disk: Disk) -> str:
    return disk.folder.split()[0]

def load(text: str) -> Settings:
    settings = Settings(Disk(text, ()), Gates())
    check(settings)
    return settings

def check(settings: Settings) -> None:
    assert settings.disk.folder
"""


def walk(root: Path, text: str) -> Readers:
    package = root / "made"
    package.mkdir()
    (package / "settings.py").write_text(SETTINGS)
    (package / "user.py").write_text(
        "from made import settings as module\n"
        "from made.settings import Disk, Gates, Item, Settings, check, first_word, load\n" + text
    )
    return find_readers(package, gates="made.settings.Gates")


def readers_of(walked: Readers, cls: str, name: str) -> set[str]:
    return walked.of(f"made.settings.{cls}", name, package="made.settings", loaders=("made.settings.load",))


@pytest.mark.parametrize(
    "text",
    [
        "def use(settings: Settings) -> str:\n    return settings.disk.folder",
        "def use(settings: Settings) -> str:\n    disk, gates = settings.disk, settings.gates\n    return disk.folder",
        "def use(settings: Settings) -> str:\n    return settings.disk.in_capitals",
        "def use(settings: Settings) -> str:\n    return first_word(settings.disk)",
        "def use(settings: Settings) -> str:\n    return module.first_word(settings.disk)",
        "def use(disks: list[Disk]) -> list[str]:\n    return [disk.folder for disk in disks]",
        "def use(disk: 'Disk | None') -> str:\n    return disk.folder if disk else ''",
        "class User:\n    def __init__(self, settings: Settings) -> None:\n        self._disk = settings.disk\n"
        "    def use(self) -> str:\n        return self._disk.folder",
        "def of(settings: Settings) -> Disk:\n    return settings.disk\n"
        "def use(settings: Settings) -> str:\n    return of(settings).folder",
        "def use(settings: Settings) -> object:\n    return lambda: settings.disk.folder",
        "def use(settings: Settings) -> str:\n    def inner() -> str:\n        return settings.disk.folder\n"
        "    return inner()",
        "def use() -> str:\n    return load('x').disk.folder",
    ],
)
def test_a_reader(tmp_path: Path, text: str) -> None:
    assert readers_of(walk(tmp_path, text), "Disk", "folder")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def use() -> Settings:\n    return load('x')",
        "class Other:\n    folder: str\ndef use(other: Other) -> str:\n    return other.folder",
        "def use(other) -> str:\n    return other.folder",
        "def use(settings: Settings) -> str:\n    settings = other()\n    return settings.disk.folder",
        "def use(settings: Settings) -> None:\n    settings.disk.folder_of()\n",
        "def use(settings: Settings) -> str:\n    '''folder'''\n    return 'folder'",
        "def use(disk: Disk) -> list[int]:\n    return [item.size for item in disk.items]",
    ],
)
def test_no_reader(tmp_path: Path, text: str) -> None:
    assert not readers_of(walk(tmp_path, text), "Disk", "folder")


def test_members_of_lists_and_of_optional_objects(tmp_path: Path) -> None:
    text = "def use(disk: Disk) -> list[int]:\n    for item in sorted(disk.items):\n        print(item.size)"
    assert readers_of(walk(tmp_path, text), "Item", "size") == {"made.user.use"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('def use(settings: Settings) -> bool:\n    return settings.gates.enabled("Fast")', {"Fast"}),
        ('NAME = "Fast"\ndef use(gates: Gates) -> bool:\n    return gates.enabled(NAME)', {"Fast"}),
        ('A, B = "Fast", "Slow"\ndef use(gates: Gates) -> bool:\n    return gates.enabled(B)', {"Slow"}),
        (
            'BY = {1: "Fast", 2: "Slow"}\ndef use(gates: Gates) -> bool:\n    return gates.enabled(BY[1])',
            {"Fast", "Slow"},
        ),
        ('BY: Final = {1: "Fast"}\ndef use(gates: Gates) -> bool:\n    return gates.enabled(BY.get(1))', {"Fast"}),
        ('class Other: ...\ndef use(gates: Other) -> bool:\n    return gates.enabled("Fast")', set()),
        ('def use(gates: Gates, name: str) -> bool:\n    return gates.enabled(name) or "Fast"', set()),
    ],
)
def test_gates(tmp_path: Path, text: str, found: set[str]) -> None:
    assert set(walk(tmp_path, text).gates) == found
