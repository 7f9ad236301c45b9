"""A real runtime dies and comes back under a connected client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.model.errors import RuntimeDown
from pykubelet.model.runtime_status import ContainerState
from tests.contracts.cri_subjects import Program, a_pod_config, sandbox, start, until

pytestmark = pytest.mark.node


@pytest.mark.parametrize("name", ["containerd", "crio"])
async def test_a_killed_runtime_is_down_then_back_with_its_containers(
    name: str, request: pytest.FixtureRequest
) -> None:
    runtime: Any = request.getfixturevalue(name)
    pod = a_pod_config()
    clock = SystemClock()
    async with GrpcCriClient(runtime.endpoint, clock=clock) as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        events = cri.container_events()
        waiting = asyncio.ensure_future(anext(events))
        await clock.sleep(0.2)
        runtime.kill()
        with pytest.raises(RuntimeDown):
            async with asyncio.timeout(60):
                await waiting
        with pytest.raises(RuntimeDown):
            await cri.version()
        await asyncio.to_thread(runtime.restart)

        async def back() -> bool:
            try:
                return bool(await cri.version())
            except RuntimeDown:
                return False

        # grpc tries again at the latest 3 s after its last failure.
        await until(clock, back, within=20.0)
        assert (await cri.container_status(container)).state is ContainerState.RUNNING
