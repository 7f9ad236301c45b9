from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.a_node import CannedNode, Commands, serving


@pytest.fixture
def node(tmp_path: Path) -> Iterator[CannedNode]:
    with serving(CannedNode(tmp_path / "s")) as made:
        yield made


@pytest.fixture
def run(node: CannedNode, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(node.socket, capsys)
