"""How the bed says that a part is missing, and how sync fixtures call async product code.

A test whose part cannot be had fails with a sentence; it is never skipped, because a skipped test proves nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

T = TypeVar("T")

REPO = Path(__file__).resolve().parents[2]
PROGRAM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def cannot(sentence: str) -> NoReturn:
    """Fail the test because a part of the bed cannot be had."""
    pytest.fail(f"test bed: {sentence}", pytrace=False)


def need_root() -> None:
    if os.geteuid() != 0:
        cannot("these tests run real containers and need root; run `make test` as root")


def need_program(name: str, package: str) -> Path:
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:{PROGRAM_FOLDERS}")
    if found is None:
        cannot(f"the program {name} is missing; run tools/setup.sh test, or apt-get install {package}")
    return Path(found)


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run async product code from a fixture, also while a test's own loop is running in this thread."""
    results: list[T] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            results.append(asyncio.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=body, name="bed")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def scratch_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder with a short name, removed at the end; what killed runs left is removed at the start."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if abandoned(folder / "lock"):
            shutil.rmtree(folder, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def abandoned(lock: Path) -> bool:
    """Whether the run that made the lock is gone."""
    try:
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except OSError:  # held, or not made yet by a run that is just starting
        return False


def free_port(address: str = "127.0.0.1") -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
