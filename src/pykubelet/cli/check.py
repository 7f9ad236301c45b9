"""`pykubelet check FILE...`: say what is wrong with pod manifests, one line a problem.

Covers: files, folders, standard input, several documents in one file, unknown fields.
Does not cover: whether this node could run the pod, nor the rules for static pods only.
"""

import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TextIO

import click

from pykubelet.api.manifest import InvalidManifest, document_problems, read_documents
from pykubelet.api.validation.findings import one_line

SUFFIXES = (".yaml", ".yml", ".json")
STDIN = "-"


def run_check(files: Sequence[str], out: TextIO, *, stdin: BinaryIO | None = None) -> int:
    """Write `file: field.path: what is wrong` or `file: ok` for each; 0 when all are good, else 1."""
    status = 0
    for name in files:
        for origin, problems in _check(name, stdin):
            for problem in problems:
                print(f"{one_line(origin)}: {problem}", file=out)
            if problems:
                status = 1
            else:
                print(f"{one_line(origin)}: ok", file=out)
    return status


def _check(name: str, stdin: BinaryIO | None) -> Iterator[tuple[str, list[str]]]:
    if name == STDIN:
        yield "standard input", _problems(stdin if stdin is not None else sys.stdin.buffer)
        return
    try:
        paths = _manifests(Path(name))
    except (OSError, ValueError) as error:
        yield name, [_reason(error)]
        return
    if not paths:
        yield name, [f"no manifests ({', '.join('*' + suffix for suffix in SUFFIXES)}) in this folder"]
    for path in paths:
        yield str(path), _problems_of_file(path)


def _manifests(path: Path) -> list[Path]:
    if not stat.S_ISDIR(path.stat().st_mode):
        return [path]
    return sorted(entry for entry in path.iterdir() if entry.suffix in SUFFIXES and _readable(entry))


def _readable(entry: Path) -> bool:
    # Opening a pipe or a device that lies in a folder could wait for ever; a broken link gets its line.
    return entry.is_file() or (entry.is_symlink() and not entry.exists())


def _problems_of_file(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            return _problems(file)
    except (OSError, ValueError) as error:
        return [_reason(error)]


def _problems(source: BinaryIO) -> list[str]:
    try:
        documents = read_documents(source)
    except InvalidManifest as error:
        return [str(problem) for problem in error.problems]
    except OSError as error:
        return [_reason(error)]
    if not documents:
        return ["line 1: nothing here, expected a Pod"]
    several = len(documents) > 1
    return [
        f"document {i}: {problem}" if several else str(problem)
        for i, document in enumerate(documents, start=1)
        for problem in document_problems(document)
    ]


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(f"cannot be read: {text[:1].lower()}{text[1:]}")


@click.command("check", short_help="say what is wrong with pod manifests")
@click.argument("files", metavar="FILE…", nargs=-1, required=True)
def command(files: Sequence[str]) -> int:
    """Say what is wrong with pod manifests, one line a problem; folders and - (standard input) work, too."""
    return run_check(files, sys.stdout)
