"""A small disk of its own: a file with a filesystem, mounted for as long as the block lasts."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bed.parts import need_root


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """Where it is mounted. Its path is short: sockets are made below."""
    need_root()
    with tempfile.TemporaryDirectory(prefix="pkd-") as name:
        image, point = Path(name, "image"), Path(name, "d")
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        point.mkdir()
        _run("mount", "-o", "loop", str(image), str(point))
        try:
            yield point
        finally:
            _run("umount", str(point))


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stdout.strip()}")
