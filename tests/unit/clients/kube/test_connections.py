"""The connections of one identity, when they are abandoned."""

from __future__ import annotations

import asyncio

from pykubelet.clients.kube.connections import Connections
from pykubelet.clients.kube.credentials import TlsMaterial
from pykubelet.clients.kube.dialing import Route
from pykubelet.kit.names import NameLookups

WITHIN = 1.0


async def test_connections_are_abandoned_in_the_moment_in_which_the_time_of_a_call_is_up() -> None:
    """The call has not run since, so it is among those that are to be ended."""
    connections = Connections(TlsMaterial(), Route(server="http://127.0.0.1:1"), NameLookups(within=1.0), None)
    loop, abandon = asyncio.get_running_loop(), asyncio.Event()
    ended: list[str] = []

    async def call(name: str, within: float) -> None:
        try:
            async with connections.calling(within):
                await asyncio.Event().wait()
        except TimeoutError:
            ended.append(name)

    async def leave() -> None:
        await abandon.wait()
        await connections.abort()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(leave())
        # One turn of the loop runs both timers: this one, and that of the call.
        loop.call_at(loop.time() + WITHIN - 1e-10, abandon.set)
        tasks.create_task(call("over", WITHIN))
        tasks.create_task(call("waiting", 60.0))
    assert sorted(ended) == ["over", "waiting"] and loop.time() < 60.0
