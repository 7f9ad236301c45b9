"""The second disk of a guest: this checkout, compiled for the guest's Python, and the programs a check brings along.

It is read-only in the guest and mounted at PAYLOAD: `src/`, `packaging/`, `bin/` (programs) and `images/` (archives for
`ctr images import`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hosts.image import PAYLOAD, ROOT, BaseImage

CHECKOUT = ("src", "packaging", "requirements.txt", "pyproject.toml", "README.md")
SPARE = 64 << 20


@dataclass(frozen=True, slots=True)
class Payload:
    """What goes onto the disk besides the checkout."""

    programs: Iterable[Path] = ()
    """Files for bin/, or folders of which every file goes there."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path below PAYLOAD -> content."""


def make_disk(payload: Payload, base: BaseImage, folder: Path) -> Path:
    """Write the disk into `folder`."""
    stage = folder / "payload"
    _copy_checkout(stage)
    _compile(stage, base)
    (stage / "bin").mkdir()
    for program in payload.programs:
        for each in sorted(program.iterdir()) if program.is_dir() else [program]:
            if each.is_file():
                shutil.copy2(each, stage / "bin" / each.name)
    for name, content in payload.files.items():
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    size = sum(each.stat().st_size for each in stage.rglob("*") if each.is_file())
    disk = folder / "payload.img"
    kibibytes = (size + size // 5 + SPARE) >> 10
    make = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-L", "payload", "-d", str(stage), str(disk)]
    subprocess.run([*make, f"{kibibytes}k"], check=True)
    shutil.rmtree(stage)
    return disk


def _copy_checkout(stage: Path) -> None:
    """The files that git knows, as they are in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CHECKOUT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).exists():
            target = stage / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def _compile(stage: Path, base: BaseImage) -> None:
    """Compile here: in a guest without hardware virtualization it takes half a minute."""
    options = ["-q", "--invalidation-mode=unchecked-hash", "-s", str(stage), "-p", PAYLOAD]
    environment = {**os.environ, "PYTHONHOME": str(base.python_home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("PYTHONPATH", None)
    command = [*base.python(), "-m", "compileall", *options, str(stage / "src")]
    subprocess.run(command, env=environment, check=True)
