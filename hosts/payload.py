"""The second disk of a guest: this checkout, compiled for the guest's Python, and the programs a check brings along.

It is read-only in the guest and mounted at PAYLOAD: `src/`, `packaging/`, `bin/` (programs) and `images/` (archives for
`ctr images import`), and where a check asks for them our own tests in `tests/` with what they import in `site/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hosts.image import PAYLOAD, PYTHON, ROOT, BaseImage, cache

CHECKOUT = ("src", "packaging", "requirements.txt", "pyproject.toml", "README.md")
SITE = "site"
TEST_PACKAGES = ("hypothesis", "iniconfig", "packaging", "pluggy", "pytest", "sortedcontainers")
SPARE = 64 << 20


@dataclass(frozen=True, slots=True)
class Payload:
    """What goes onto the disk besides the checkout."""

    programs: Iterable[Path] = ()
    """Files for bin/, or folders of which every file goes there."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Path below PAYLOAD -> content."""
    tests: bool = False
    """Bring `tests/` and, in `site/`, pytest along."""


def make_disk(payload: Payload, base: BaseImage, folder: Path) -> Path:
    """Write the disk into `folder`."""
    stage = folder / "payload"
    _copy_checkout(stage, (*CHECKOUT, "tests") if payload.tests else CHECKOUT)
    if payload.tests:
        shutil.copytree(test_packages(), stage / SITE)
    _compile(stage, base, ["src", "tests", SITE] if payload.tests else ["src"])
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


def test_packages() -> Path:
    """pytest and what it needs, at the versions of requirements-dev.txt, for the guest's Python; fetched once."""
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    wanted = [line for line in lines if line.partition("==")[0] in TEST_PACKAGES]
    if len(wanted) != len(TEST_PACKAGES):
        raise RuntimeError(f"requirements-dev.txt lacks some of {', '.join(TEST_PACKAGES)}")
    key = hashlib.sha256("\n".join([PYTHON, *wanted]).encode()).hexdigest()[:12]
    folder = cache() / f"guest-tests-{key}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as name:
            target = Path(name, SITE)
            options = ["--quiet", "--no-deps", "--no-compile", "--only-binary=:all:", f"--python-version={PYTHON}"]
            pip = [sys.executable, "-m", "pip", "install", *options, f"--target={target}", *wanted]
            subprocess.run(pip, check=True)
            with contextlib.suppress(OSError):  # another run was faster
                target.rename(folder)
    return folder


def _copy_checkout(stage: Path, parts: Sequence[str]) -> None:
    """The files that git knows, as they are in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *parts],
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


def _compile(stage: Path, base: BaseImage, folders: Sequence[str]) -> None:
    """Compile here: in a guest without hardware virtualization it takes half a minute."""
    options = ["-q", "--invalidation-mode=unchecked-hash", "-s", str(stage), "-p", PAYLOAD]
    environment = {**os.environ, "PYTHONHOME": str(base.python_home)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop("PYTHONPATH", None)
    command = [*base.python(), "-m", "compileall", *options, *(str(stage / each) for each in folders)]
    subprocess.run(command, env=environment, check=True)
