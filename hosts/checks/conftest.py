"""What every check has: the agent's log beside a failure."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from hosts.machine import CommandFailed
from hosts.node import Node


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the agent's journal to a failure."""
    report = yield
    node = getattr(item, "funcargs", {}).get("node")
    if report.when == "call" and report.failed and isinstance(node, Node):
        try:
            journal = node.log(80)
        except (CommandFailed, TimeoutError, OSError) as error:
            journal = f"not to be had: {error}"
        report.sections.append(("journal of the agent", journal))
    return report
