"""Plugins that hang, leave and come back, under a whole agent: who waits, who does not, and what a person is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from pykubelet.api.types import (
    ResourceRequirements,
)
from tests.builders import a_container
from tests.scenarios.plugin_node import GPU, SOCKET, a_plugin_node


async def test_a_driver_that_is_gone_keeps_the_pod_ending_with_its_reason(tmp_path: Path) -> None:
    async with a_plugin_node(tmp_path) as bed:
        await bed.register()
        pod = bed.claiming()
        await bed.node.until(lambda: bed.node.phase() == "Running")
        await bed.claims.drivers.deregister("d", SOCKET)
        await bed.node.delete(grace=1)
        await bed.node.until(lambda: "DRA driver d is not registered" in bed.explained(pod))
        await asyncio.sleep(120)
        assert bed.node.shown() is not None
        assert "unprepare dynamic resources: DRA driver d is not registered" in bed.explained(pod)
        await bed.register()
        await bed.node.until(lambda: bed.node.shown() is None, within=3)
        assert bed.driver.prepared == set()


async def test_a_rejected_pod_has_not_ended_while_its_claims_are_prepared(tmp_path: Path) -> None:
    """It ran before the agent was restarted, and does not fit the node any more."""
    async with a_plugin_node(tmp_path) as bed:
        await bed.register()
        bed.claiming()
        await bed.node.until(lambda: bed.node.phase() == "Running")
        await bed.node.kill()
        shown = bed.node.shown()
        assert shown is not None
        bed.node.api.change(replace(shown, spec=replace(shown.spec, node_selector={"nobody": "here"})))
        await bed.node.start()
        await bed.node.until(lambda: bed.node.running() == [])
        await asyncio.sleep(60)
        assert bed.node.phase() == "Running" and bed.driver.prepared
        await bed.register()
        await bed.node.until(lambda: bed.node.phase() == "Failed", within=90)
        assert bed.driver.prepared == set()


async def test_a_pod_starts_as_soon_as_its_driver_is_there(tmp_path: Path) -> None:
    async with a_plugin_node(tmp_path) as bed:
        pod = bed.claiming()
        await bed.node.until(lambda: "DRA driver d is not registered" in bed.explained(pod))
        await asyncio.sleep(31)
        await bed.register()
        await bed.node.until(lambda: bed.node.phase() == "Running", within=3)


async def test_a_driver_that_hangs_is_named_with_the_call_and_delays_no_other_pod(tmp_path: Path) -> None:
    async with a_plugin_node(tmp_path) as bed:
        await bed.register()
        bed.driver.hangs = True
        slow = bed.claiming("slow")
        await asyncio.sleep(1)
        bed.node.bind("quick")
        await bed.node.until(lambda: bed.node.phase("quick") == "Running")
        assert "driver d, NodePrepareResources" in bed.explained(slow)
        assert bed.node.phase("slow") == "Pending"


async def test_a_driver_that_hangs_at_the_end_is_named(tmp_path: Path) -> None:
    async with a_plugin_node(tmp_path) as bed:
        await bed.register()
        pod = bed.claiming()
        await bed.node.until(lambda: bed.node.phase() == "Running")
        bed.driver.hangs = True
        await bed.node.delete(grace=1)
        await asyncio.sleep(15)
        found = bed.node.node.explainer.explain(pod)
        assert any("driver d, NodeUnprepareResources" in line for cause in found.causes for line in cause.chain)


async def test_a_device_plugin_that_hangs_is_named_with_the_call(tmp_path: Path) -> None:
    async with a_plugin_node(tmp_path) as bed:
        await bed.register_devices()
        bed.plugin.hangs = True
        limits = ResourceRequirements(limits={GPU: "1"}, requests={GPU: "1"})
        pod = bed.node.bind("slow", containers=[a_container(resources=limits)])
        await asyncio.sleep(2)
        bed.node.bind("quick")
        await bed.node.until(lambda: bed.node.phase("quick") == "Running")
        assert f"device plugin of {GPU}, Allocate" in bed.explained(pod)


async def test_a_crashed_container_is_restarted_while_driver_and_claim_are_away(tmp_path: Path) -> None:
    """The same after a restart of the agent: what the pod holds is on disk."""
    async with a_plugin_node(tmp_path) as bed:
        await bed.register()
        bed.claiming()
        await bed.node.until(lambda: bed.node.phase() == "Running")
        await bed.claims.drivers.deregister("d", SOCKET)
        await bed.node.kill()
        await bed.node.start()
        bed.node.cri.exit("app", code=1)

        def restarted() -> bool:
            pod = bed.node.shown()
            return pod is not None and any(each.restart_count == 1 for each in pod.status.container_statuses)

        await bed.node.until(restarted)


async def test_a_running_pod_keeps_its_devices_although_it_is_not_inspected_yet_after_a_restart(tmp_path: Path) -> None:
    """The listing says that it runs; its plugin registers again only later."""
    async with a_plugin_node(tmp_path) as bed:
        await bed.register_devices()
        amount = {GPU: "1"}
        bed.node.bind(containers=[a_container(resources=ResourceRequirements(limits=amount, requests=amount))])
        await bed.node.until(lambda: bed.node.phase() == "Running")
        await bed.node.kill()
        slow = bed.node.cri.slow("container_status", 5.0)
        await bed.node.start()
        await asyncio.sleep(20)
        slow.remove()
        assert bed.node.phase() == "Running"
        assert "UnexpectedAdmissionError" not in bed.node.event_reasons()


async def test_a_pod_without_a_container_is_refused_after_a_restart_while_its_device_plugin_is_away(
    tmp_path: Path,
) -> None:
    """As upstream: its sandbox alone does not show that the machine was not restarted in between."""
    async with a_plugin_node(tmp_path) as bed:
        await bed.register_devices()
        amount = {GPU: "1"}
        bed.node.cri.slow("create_container", 1000.0)
        bed.node.bind(containers=[a_container(resources=ResourceRequirements(limits=amount, requests=amount))])
        await bed.node.until(lambda: bool(bed.node.cri.sandboxes))
        await bed.node.kill()
        slow = bed.node.cri.slow("pod_sandbox_status", 5.0)
        await bed.node.start()
        await bed.node.until(lambda: bed.node.phase() == "Failed")
        slow.remove()
        assert "UnexpectedAdmissionError" in bed.node.event_reasons()
