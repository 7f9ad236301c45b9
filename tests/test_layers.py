"""The layer rule: imports point down only, and managers know clients by their ports alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SRC = Path(__file__).parent.parent / "src" / "pykubelet"

MANAGERS = (
    "pods",
    "events",
    "sources",
    "images",
    "pleg",
    "status",
    "probes",
    "cm",
    "volumes",
    "runtime",
    "stats",
    "node",
    "eviction",
    "explain",
)
"""In this order: each may import those before it."""
ORDER = (
    *("kit", "wire", "api", "model", "settings", "recorder", "clients", "signals", "context", "edges", "certs"),
    *MANAGERS,
    *("api_server", "sync", "server", "reactions", "kubelet", "standalone", "hollow", "cli", "__main__"),
)
RANK = {package: level for level, package in enumerate(ORDER)}
MAX_LINES = 700


def sources() -> Iterator[Path]:
    for path in SRC.rglob("*.py"):
        if path.relative_to(SRC).parts[0] != "wire" and path.name != "generated.py":
            yield path


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pykubelet"):
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("pykubelet"):
                    yield node.lineno, alias.name


def test_imports_point_downwards() -> None:
    for path in sources():
        home = path.relative_to(SRC).parts[0].removesuffix(".py")
        for line, module in imports_of(path):
            parts = module.split(".")
            if len(parts) == 1:
                continue
            target = parts[1]
            assert target == home or RANK[target] < RANK[home], f"{path}:{line}: {home} imports {module}"


def test_managers_know_clients_only_by_their_ports() -> None:
    for path in sources():
        home = path.relative_to(SRC).parts[0]
        if home not in MANAGERS or path.name == "build.py":
            continue
        for line, module in imports_of(path):
            if module.startswith("pykubelet.clients"):
                assert module.endswith(".port"), (
                    f"{path}:{line}: a manager may import only a client's port, not {module}"
                )


def test_every_package_has_a_rank() -> None:
    for entry in SRC.iterdir():
        name = entry.name.removesuffix(".py")
        if entry.is_dir() and any(entry.glob("*.py")):
            assert name in RANK, f"{name} has no place in the layers"


def test_no_module_is_too_long() -> None:
    for root in (SRC, SRC.parent.parent / "tests", SRC.parent.parent / "tools", SRC.parent.parent / "bench"):
        for path in root.rglob("*.py"):
            if "wire" in path.parts or path.name == "generated.py":
                continue
            count = len(path.read_text().splitlines())
            assert count <= MAX_LINES, f"{path} has {count} lines; split it along a seam it already shows"


TIME_CALLS = {
    ("time", "time"),
    ("time", "monotonic"),
    ("time", "perf_counter"),
    ("time", "sleep"),
    ("asyncio", "sleep"),
    ("datetime", "now"),
}


def test_time_comes_from_the_clock() -> None:
    """Only the kit asks the system for the time or sleeps; human commands may, they have no jumping tests."""
    for path in sources():
        home = path.relative_to(SRC).parts[0]
        if home in ("kit", "cli", "standalone"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = (node.value.id, node.attr)
                assert called not in TIME_CALLS, f"{path}:{node.lineno}: {'.'.join(called)}; use the injected clock"


def test_tasks_are_made_in_one_place() -> None:
    for path in sources():
        if path.relative_to(SRC).as_posix() == "kit/tasks.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr in ("create_task", "ensure_future"):
                raise AssertionError(f"{path}:{node.lineno}: tasks are made by kit/tasks.py only")
