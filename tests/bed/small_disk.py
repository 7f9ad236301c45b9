"""A small disk of its own, mounted for as long as the block lasts: a file with a filesystem, or memory."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bed.parts import need_root


@contextmanager
def small_disk(megabytes: int, *, in_memory: bool = False) -> Iterator[Path]:
    """Where it is mounted. Its path is short: sockets are made below."""
    need_root()
    with tempfile.TemporaryDirectory(prefix="pkd-") as name:
        image, point = Path(name, "image"), Path(name, "d")
        point.mkdir()
        if in_memory:
            _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(point))
        else:
            with image.open("wb") as file:
                file.truncate(megabytes << 20)
            _run("mkfs.ext4", "-q", "-m", "0", str(image))
            _run("mount", "-o", "loop", str(image), str(point))
        try:
            yield point
        finally:
            _run("umount", str(point))


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stdout.strip()}")
