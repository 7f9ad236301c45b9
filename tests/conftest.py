"""How async tests run, and what no test may leave behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import signal
from typing import Any

import hypothesis
import pytest
import uvloop

from tests.clock_loop import AutojumpLoop

pytest_plugins = ["tests.bed_fixtures"]

ENDS_WITHIN = 5.0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_loop: runs on the ordinary event loop (real sockets, processes, time)")
    config.addinivalue_line("markers", "uvloop: as real_loop, on the event loop that the agent runs on")
    give_children_signals()
    # How long an example takes says how busy the machine is, not whether the code is right.
    hypothesis.settings.register_profile("pykubelet", deadline=None)
    hypothesis.settings.load_profile("pykubelet")


def give_children_signals() -> None:
    """Let the programs that tests start be interrupted, also where this process was started with SIGINT ignored.

    A shell starts background jobs so, and every child would inherit it. A handler, other than "ignore", is gone after
    exec; this one does nothing, so that the test run itself goes on ignoring the signal as its parent asked for.
    """
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    real = any(pyfuncitem.get_closest_marker(name) for name in ("real_loop", "uvloop", "node", "cluster"))
    usual = uvloop.new_event_loop if pyfuncitem.get_closest_marker("uvloop") else None

    async def body() -> None:
        await pyfuncitem.obj(**arguments)
        here = asyncio.current_task()
        stray = {task for task in asyncio.all_tasks() if task is not here and not task.done()}
        if stray and real:
            # A gRPC server of a test ends its tasks a moment after it says that it has stopped.
            _, stray = await asyncio.wait(stray, timeout=ENDS_WITHIN)
        assert not stray, f"left running: {sorted(task.get_name() for task in stray)}"

    with asyncio.Runner(loop_factory=usual if real else AutojumpLoop) as runner:
        runner.run(body())
    return True


@pytest.fixture(autouse=True)
def _no_unawaited_coroutines() -> Any:
    """A coroutine that was made and never awaited warns when collected; collect while the test is to blame."""
    yield
    gc.collect(0)
