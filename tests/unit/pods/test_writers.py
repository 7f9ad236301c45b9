"""Each part of a pod's record has one writer: no other module calls what changes it, or assigns to its fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pykubelet.pods.record import ObservedRuntime, PodRecord, PodWorker, ReportedStatus

SRC = Path(__file__).parents[3] / "src" / "pykubelet"

WRITERS = {
    "sync/loop.py": {"put", "remove"},
    "sync/worker.py": {"add_worker", "forget_worker"},
    "pleg/pleg.py": {"observe", "observe_failure", "relisted"},
    "status/manager.py": {"report", "note_probed"},
    "status/sender.py": {"forget_reported"},
    "runtime/manager.py": {"start_failed", "start_succeeded"},
    "probes/worker.py": {"set_probe_outcome", "forget_probe_outcome"},
    "sync/status_maker.py": {"keep_termination_messages"},
    "sync/housekeeping.py": {"mark_synced", "drop_unknown"},
}
"""Who calls which of the table's methods that change something."""

PARTS = {
    "worker": (PodWorker, "sync/worker.py"),
    "record": (PodRecord, ""),
    "observed": (ObservedRuntime, ""),
    "reported": (ReportedStatus, "status/manager.py"),
    "old": (ReportedStatus, "status/manager.py"),
}
"""By the name a part goes by: its class, and the only module outside pods/ that assigns to its fields."""

CHANGES_TABLE = {"add", "discard", "clear", "update", "remove", "pop"}


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in SRC.rglob("*.py"):
        name = path.relative_to(SRC).as_posix()
        text = path.read_text()
        if not name.startswith("pods/") and "PodTable" in text:
            yield name, ast.parse(text)


def is_table(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "table") or (
        isinstance(node, ast.Attribute) and node.attr in ("_table", "table")
    )


def test_every_part_of_a_record_is_written_by_its_owner_alone() -> None:
    found: dict[str, set[str]] = {}
    changing = set().union(*WRITERS.values())
    for name, tree in modules():
        for node in ast.walk(tree):
            if _calls_table(node, changing):
                found.setdefault(name, set()).add(node.func.attr)
    assert found == WRITERS


def test_the_table_has_no_other_method_that_changes_it() -> None:
    """A method that assigns to a record or to the table is private or has a writer above."""
    (table,) = [
        node
        for node in ast.walk(ast.parse((SRC / "pods" / "table.py").read_text()))
        if isinstance(node, ast.ClassDef) and node.name == "PodTable"
    ]
    changing = {
        method.name
        for method in table.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and _assigns(method)
    }
    assert changing <= set().union(*WRITERS.values())


def test_fields_are_assigned_by_their_writer_alone() -> None:
    for name, tree in modules():
        for node in ast.walk(tree):
            for target in _targets(node):
                base = target.value.id if isinstance(target.value, ast.Name) else ""
                part, owner = PARTS.get(base, (None, ""))
                if part is None or name == owner or not _knows(tree, part):
                    continue
                fields = set(part.__struct_fields__)
                assert target.attr not in fields, f"{name}:{node.lineno}: {base}.{target.attr} is not ours to write"


def test_only_the_loop_leaves_a_pod_undecided() -> None:
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES_TABLE:
                value = node.func.value
                if isinstance(value, ast.Attribute) and value.attr == "undecided":
                    assert name == "sync/loop.py", f"{name}:{node.lineno}"


def _calls_table(node: ast.AST, methods: set[str]) -> bool:
    is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_call and is_table(node.func.value) and node.func.attr in methods


def _targets(node: ast.AST) -> Iterator[ast.Attribute]:
    if isinstance(node, ast.Assign):
        candidates: list[ast.expr] = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        candidates = [node.target]
    else:
        return
    for target in candidates:
        for each in ast.walk(target):
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                yield each


def _assigns(method: ast.FunctionDef) -> bool:
    return any(True for node in ast.walk(method) for _ in _targets(node))


def _knows(tree: ast.Module, part: type) -> bool:
    """Whether the module deals with this part, rather than with something else of that name."""
    if part is PodWorker:
        return any(_calls_table(node, {"worker", "workers"}) for node in ast.walk(tree))
    imported = [each.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names]
    return part.__name__ in imported
