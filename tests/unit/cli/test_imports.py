"""What each command imports, counted: most of the time that a command takes goes into that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[3] / "src"
PROGRAM = """
import json, sys
before = set(sys.modules)
from pykubelet.__main__ import main
sys.argv[1:] = json.loads(sys.argv[1])
try:
    main()
finally:
    print("\\n" + json.dumps(sorted(set(sys.modules) - before)))
"""
HEAVY = {"asyncio", "ssl", "http.client", "email", "yaml", "grpc", "google.protobuf", "rich", "uvloop", "aiohttp"}
THE_AGENT = {"pykubelet.kubelet", "pykubelet.edges", "pykubelet.settings.schema", "pykubelet.kit.tasks"}
LIGHT = HEAVY | THE_AGENT


def imported(words: list[str], folder: Path) -> set[str]:
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(SRC),
        "PYKUBELET_STATE_DIR": str(folder / "state"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(words)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=environment,
        cwd=folder,
        check=False,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    assert lines and lines[-1].startswith("["), done.stderr
    return set(json.loads(lines[-1]))


@pytest.mark.parametrize(
    ("words", "never", "most"),
    [
        ("help", LIGHT | {"msgspec"}, 11),
        ("completion bash", LIGHT | {"msgspec"}, 12),
        ("up --help", LIGHT, 22),
        ("status", LIGHT, 33),
        ("get pods", LIGHT, 27),
        ("describe web", LIGHT, 32),
        ("explain web", LIGHT, 30),
        ("events", LIGHT, 27),
        ("logs web", LIGHT, 26),
        ("restart web", LIGHT, 26),
        ("top", LIGHT, 19),
        ("image ls", LIGHT, 19),
        ("shutdown", LIGHT, 22),
        ("exec web -- ls", HEAVY - {"asyncio", "ssl"} | THE_AGENT - {"pykubelet.kit.tasks"}, 34),
        ("port-forward web 80", HEAVY - {"asyncio", "ssl"} | THE_AGENT - {"pykubelet.kit.tasks"}, 34),
        ("check pod.json", LIGHT, 33),
        ("check pod.yaml", LIGHT - {"yaml"}, 34),
        ("--version", LIGHT - {"pykubelet.settings.schema"}, 40),
        ("--help", LIGHT - {"pykubelet.settings.schema"}, 40),
    ],
)
def test_a_command_imports_what_it_needs(words: str, never: set[str], most: int, tmp_path: Path) -> None:
    (tmp_path / "pod.json").write_text("{}")
    (tmp_path / "pod.yaml").write_text("kind: Pod")
    modules = imported(words.split(), tmp_path)
    assert not modules & never
    own = {name for name in modules if name.startswith("pykubelet")}
    assert own and len(own) <= most, sorted(own)
