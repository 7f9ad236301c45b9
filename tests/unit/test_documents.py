"""No command stands in README or docs that nobody runs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.bed.documents import MENTION, commands, documents, elsewhere, filled, is_run

ROOT = Path(__file__).parents[2]
TOLD = [(path.name, command) for path in documents(ROOT) for command in commands(path.read_text())]


@pytest.mark.parametrize(("document", "command"), TOLD)
def test_every_command_is_run_or_has_a_reason(document: str, command: str) -> None:
    handled = is_run(command) or elsewhere(command) or MENTION.match(command)
    assert handled, f"{document}: `{command}` is neither run by a test nor in ELSEWHERE of tests/bed/documents.py"


def tried(command: str) -> subprocess.CompletedProcess[str]:
    """What a make command would do, also when this test is itself run by make."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    words = ["sh", "-c", command.replace("make", "make --dry-run", 1)]
    return subprocess.run(words, cwd=ROOT, env=alone, capture_output=True, text=True, check=False)


def test_what_make_is_told_to_do_it_can_do() -> None:
    for command in dict.fromkeys(command for _, command in TOLD if command.startswith("make ")):
        done = tried(command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert tried("make run").stdout.splitlines() == ["tools/setup.sh run", ".venv/bin/pykubelet up examples/hello.yaml"]


def test_modules_that_are_told_to_be_run_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    for _, command in TOLD:
        if found := re.search(r"python -m ([\w.]+)", command):
            name = found[1] if "." in found[1] or found[1] not in ("bench", "conformance") else f"{found[1]}.__main__"
            assert importlib.util.find_spec(name) is not None, command


def test_places_are_filled() -> None:
    assert filled("pykubelet logs POD -c CONTAINER") == "pykubelet logs hello -c hello"
    assert filled("pykubelet image load FILE.tar") == "pykubelet image load $IMAGE_TAR"
    assert filled("pykubelet restart POD/CONTAINER") == "pykubelet restart hello/hello"


def test_commands_are_found_in_blocks_and_sentences() -> None:
    block = "```sh\npykubelet get pods   # all\ncd x && make test\n```"
    text = f"Try `make run`\nor\n{block}\n\n    make bench\n\n`/usr/bin/make`"
    assert commands(text) == ["pykubelet get pods", "make test", "make bench", "make run"]
