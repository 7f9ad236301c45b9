"""Offline images are packed when something changed, and not to find that nothing did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.model.runtime_status import Image
from pykubelet.standalone.image_record import ids_of, is_current, packed_from

NAMES = ("pause", "busybox")
IDS = {"pause": "sha256:1", "busybox": "sha256:2"}
INPUTS = [["/bin/busybox", 1, 2, 3]]


@pytest.mark.parametrize(
    ("record", "known", "current"),
    [
        ({"from": INPUTS, "ids": IDS}, IDS, True),
        ({"from": INPUTS, "ids": IDS}, {"pause": "sha256:1"}, False),  # one was removed
        ({"from": INPUTS, "ids": IDS}, {**IDS, "busybox": "sha256:9"}, False),  # another under its name
        ({"from": [["/bin/busybox", 1, 2, 4]], "ids": IDS}, IDS, False),  # a newer busybox
        ({"from": INPUTS, "ids": {}}, {}, False),
        ({"ids": IDS}, IDS, False),
        ([], IDS, False),
    ],
)
def test_images_are_current(tmp_path: Path, record: object, known: dict[str, str], current: bool) -> None:
    file = tmp_path / "images.json"
    file.write_text(json.dumps(record))
    assert is_current(file, INPUTS, known, NAMES) is current


def test_without_a_record_they_are_not(tmp_path: Path) -> None:
    assert not is_current(tmp_path / "none", INPUTS, IDS, NAMES)


def test_what_they_are_packed_from_changes_with_any_of_it() -> None:
    paths = [str(entry[0]) for entry in packed_from()]
    for part in ("serve.sh", "answer.sh", "pause/amd64", "images.py", "packer.py"):
        assert any(path.endswith(part) for path in paths), part
    assert packed_from() == packed_from() == json.loads(json.dumps(packed_from()))


class Runtime:
    async def list_images(self) -> list[Image]:
        return [Image(id="sha256:1", tags=("pause", "other")), Image(id="sha256:3", tags=())]


async def test_ids_are_those_of_the_runtime() -> None:
    assert await ids_of(Runtime(), NAMES) == {"pause": "sha256:1"}
