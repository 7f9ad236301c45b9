"""One life from its history: plays it on a loop of its own and gathers everything that went wrong."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from functools import partial
from pathlib import Path

from tests.clock_loop import AutojumpLoop
from tests.lives.history import History
from tests.lives.simulated_node import SimulatedNode
from tests.spin_guard import HotLoop


class _Errors(logging.Handler):
    """Errors nobody expected: each is a violation."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.WARNING)
        self.found = found

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


def live(history: History, folder: Path, *, deep: bool = False) -> list[str]:
    """Play a history in an empty folder; what did not hold. `deep` also searches the agent's memory, at a price."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    log = logging.getLogger("pykubelet")
    unexpected: list[str] = []
    handler = _Errors(unexpected)
    was_propagating, made = log.propagate, random.Random
    log.addHandler(handler)
    log.propagate = False
    nodes: list[SimulatedNode] = []

    async def life() -> None:
        node = SimulatedNode(folder, deep=deep)
        nodes.append(node)
        try:
            await node.play(history)
            if not node.model.violations:
                await node.settle()
        finally:
            await node.stop(hard=False)

    random.seed(1)
    try:
        random.Random = partial(made, 1)  # type: ignore[assignment,misc]
        with asyncio.Runner(loop_factory=AutojumpLoop) as runner:
            runner.run(life())
    except HotLoop as error:
        return [str(error)]
    except (Exception, asyncio.CancelledError) as error:
        raised = [repr(error)]
    else:
        raised = []
    finally:
        random.Random = made  # type: ignore[misc]
        log.removeHandler(handler)
        log.propagate = was_propagating
    violations = nodes[0].model.violations if nodes else []
    return [*violations[:1], *unexpected[:1], *raised]
