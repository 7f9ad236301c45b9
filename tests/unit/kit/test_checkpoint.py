"""The checkpoint of every manager: what is saved is loaded, and the one rule for damage."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from pykubelet.kit.files import Checkpoint, CheckpointDamaged, Envelope


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: b"",
        lambda raw: raw.replace(b"web", b"wob"),
        lambda raw: b"\x00\xff" * 20,
        lambda raw: b'{"data": 5, "checksum": ""}',
        lambda raw: b"[]",
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_counts_as_absent(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    envelope = Envelope(lambda data: zlib.crc32(json.dumps(data).encode()))
    checkpoint = Checkpoint(tmp_path / "state", encode=envelope.seal, decode=envelope.open)
    checkpoint.save_now({"pods": ["web"]})
    assert checkpoint.load() == {"pods": ["web"]}
    raw = checkpoint.path.read_bytes()
    checkpoint.path.write_bytes(damage(raw))  # type: ignore[operator]
    assert checkpoint.load() is None
    assert (tmp_path / "state.damaged").read_bytes() == damage(raw)  # type: ignore[operator]
    assert checkpoint.load() is None
    assert len(caplog.records) == 1, "logged once"
    checkpoint.save_now({"pods": []})
    assert checkpoint.load() == {"pods": []}


def test_an_owner_that_must_not_start_without_its_checkpoint_leaves_the_file_where_it_is(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "state", encode=json.dumps, decode=json.loads)  # type: ignore[arg-type]
    assert checkpoint.read() is None
    checkpoint.path.write_bytes(b"{torn")
    with pytest.raises(CheckpointDamaged):
        checkpoint.read()
    assert [each.name for each in tmp_path.iterdir()] == ["state"]


def test_what_is_no_file_at_all_counts_as_damaged(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    checkpoint = Checkpoint(tmp_path / "state", encode=bytes, decode=bytes)
    assert checkpoint.load() is None
    checkpoint.save_now(b"new")
    assert checkpoint.load() == b"new"
    assert (tmp_path / "state.damaged").is_dir()
