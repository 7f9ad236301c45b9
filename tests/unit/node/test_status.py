from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pykubelet.api.types import Node, NodeCondition, NodeSpec, NodeStatus, ObjectMeta
from pykubelet.clients.kube.patch import node_status_patch
from pykubelet.cm.capacity import NO_DEVICES
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import running
from pykubelet.model.errors import ApiServerError, Forbidden
from pykubelet.node.addresses import AddressFinder
from pykubelet.node.conditions import find_condition, is_ready
from pykubelet.node.facts import FactsGatherer, ImageList, NodeSources
from pykubelet.node.own_node import OwnNode
from pykubelet.node.register import NodeIdentity
from pykubelet.node.status import NodeReporter, ReportTiming
from pykubelet.settings.gates import Gates
from pykubelet.settings.schema import KubeletConfig
from pykubelet.settings.schema_node import NodeSettings
from pykubelet.settings.settings import Settings
from tests.builders import a_context
from tests.fakes.fake_kube import FakeKube
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.node.making import GIB, FakeNetwork, FakeRuntime, a_machine

PARTS = ("", "_pre_kubelet", "_pre_registration", "_registration", "_post_registration")


class ReporterFixture:
    """A reporter on a fake API server, a fake runtime and a fake network."""

    def __init__(
        self,
        *,
        storage: int = 100 * GIB,
        booted: float = 0.0,
        metrics: Registry | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.clock = LoopClock()
        self.kube = FakeKube(self.clock)
        self.own = OwnNode("box")
        self.runtime = FakeRuntime()
        self.network = FakeNetwork()
        self.events = RecordedEvents()
        self.pressures: set[str] = set()
        self.others: list[str] = []
        self.reported: list[list[str]] = []
        ctx = a_context(clock=self.clock, events=self.events, metrics=metrics, settings=settings)
        sources = NodeSources(
            runtime=self.runtime,
            pleg=SimpleNamespace(problems=tuple),
            cm=SimpleNamespace(device_amounts=lambda: NO_DEVICES, is_device_capacity_stale=lambda: False),
            volumes=SimpleNamespace(volumes_in_use=lambda: ["v1"]),
            conditions=SimpleNamespace(pressures=lambda: self.pressures, problems=lambda: self.others),
            csi_node=SimpleNamespace(problems=tuple),
            attachments=SimpleNamespace(reported=lambda names: self.reported.append(list(names))),
            cri=self.runtime,
        )
        facts = FactsGatherer(
            ctx,
            machine=a_machine(),
            addresses=AddressFinder(
                network=self.network, node_ips=(), node_name="box", hostname="box", external_cloud=False
            ),
            images=ImageList(runtime=self.runtime, limit=50, clock=self.clock),
            runtime_version="containerd://1.7.0",
            storage_size=lambda: storage,
            sources=sources,
        )
        self.reporter = NodeReporter(
            ctx,
            client=self.kube,
            own=self.own,
            facts=facts,
            identity=NodeIdentity(name="box", hostname="box", architecture="amd64", booted=booted),
            sources=sources,
            make_patch=node_status_patch,
            timing=ReportTiming(rng=random.Random(1)),
        )

    @property
    def node(self) -> Node:
        node = self.kube.find(Node, "box")
        assert node is not None
        return node

    @property
    def patches(self) -> list[Any]:
        return [call.body for call in self.kube.calls_of("patch", Node)]

    def ready(self) -> NodeCondition:
        found = find_condition(self.node.status.conditions, "Ready")
        assert found is not None
        return found


async def test_the_start_of_a_new_node_in_parts() -> None:
    metrics, clock = Registry(), LoopClock()
    bed = ReporterFixture(metrics=metrics, booted=clock.now() - 40)
    bed.others = ["not yet"]
    await clock.sleep(2)
    async with running(bed.reporter):
        await clock.sleep(5)
        bed.others = []
        await clock.sleep(1)
    found = {name: metrics.gauge(f"kubelet_node_startup{name}_duration_seconds", "").value() for name in PARTS}
    assert found[""] == pytest.approx(47, abs=0.3)
    assert found["_pre_kubelet"] == pytest.approx(40)
    assert found["_pre_registration"] == pytest.approx(2.3, abs=0.1)
    assert found["_registration"] == pytest.approx(0, abs=0.1)
    assert found["_post_registration"] == pytest.approx(4.7, abs=0.3)


async def test_a_node_that_was_there_has_no_start_to_tell() -> None:
    metrics = Registry()
    bed = ReporterFixture(metrics=metrics, booted=1.0)
    bed.kube.add(Node(metadata=ObjectMeta(name="box")))
    async with running(bed.reporter):
        await bed.clock.sleep(5)
        assert is_ready(bed.node.status)
    assert metrics.gauge("kubelet_node_startup_duration_seconds", "").value() == 0


async def test_a_node_whose_runtime_answers_is_ready_from_its_creation() -> None:
    bed = ReporterFixture()
    async with running(bed.reporter):
        await bed.clock.sleep(0.5)
        assert is_ready(bed.node.status)
        assert bed.own.node is not None and bed.own.host_ips() == ("10.1.0.5",)
    assert bed.events.node_reasons == [
        "Starting",
        "NodeHasSufficientMemory",
        "NodeHasNoDiskPressure",
        "NodeHasSufficientPID",
    ]
    assert bed.node.status.allocatable["ephemeral-storage"] == "90Gi"
    assert bed.reported[-1] == ["v1"]


async def test_the_first_ready_is_told_within_a_tenth_of_a_second() -> None:
    bed = ReporterFixture()
    bed.runtime.network = "container runtime network not ready: NetworkReady=false reason:x message:y"
    async with running(bed.reporter):
        await bed.clock.sleep(3)
        assert bed.ready().message == bed.runtime.network
        bed.runtime.network = ""
        await bed.clock.sleep(0.15)
        assert is_ready(bed.node.status)
    assert "NodeReady" in bed.events.node_reasons


async def test_a_signal_is_answered_at_once() -> None:
    bed = ReporterFixture()
    async with running(bed.reporter):
        await bed.clock.sleep(1)
        bed.pressures.add("MemoryPressure")
        bed.reporter.soon()
        await bed.clock.sleep(0.01)
        found = find_condition(bed.node.status.conditions, "MemoryPressure")
        assert found is not None and found.status == "True"
    assert bed.events.node_reasons[-1] == "NodeHasInsufficientMemory"


async def test_an_unchanged_status_is_sent_only_when_the_last_report_is_old() -> None:
    bed = ReporterFixture()
    async with running(bed.reporter):
        await bed.clock.sleep(120)
        assert bed.patches == []
        await bed.clock.sleep(480)
        assert 1 <= len(bed.patches) <= 2
    assert "conditions" in bed.patches[0]["status"]
    assert "addresses" not in bed.patches[0]["status"]


async def test_an_existing_node_is_adopted() -> None:
    bed = ReporterFixture()
    bed.kube.add(
        Node(
            metadata=ObjectMeta(name="box", labels={"mine": "1", "kubernetes.io/arch": "arm64"}),
            spec=NodeSpec(unschedulable=True, pod_cidrs=["10.244.1.0/24"]),
            status=NodeStatus(conditions=[NodeCondition(type="Ready", status="Unknown")]),
        )
    )
    async with running(bed.reporter):
        await bed.clock.sleep(1)
    assert bed.node.metadata.labels["mine"] == "1"
    assert bed.node.metadata.labels["kubernetes.io/arch"] == "amd64"
    assert is_ready(bed.node.status)
    assert {"NodeReady", "NodeNotSchedulable"} <= set(bed.events.node_reasons)
    assert bed.runtime.cidrs == ["10.244.1.0/24"]


async def test_a_node_that_may_not_create_itself_adopts_the_one_that_is_there() -> None:
    bed = ReporterFixture()
    bed.kube.add(Node(metadata=ObjectMeta(name="box")))
    bed.kube.fail_next("create", Forbidden("no", code=403))
    async with running(bed.reporter):
        await bed.clock.sleep(1)
    assert is_ready(bed.node.status)


async def test_a_node_that_may_not_create_itself_waits_when_its_gate_says_so() -> None:
    bed = ReporterFixture(settings=Settings(gates=Gates({"KubeletRegistrationGetOnExistsOnly": True})))
    bed.kube.add(Node(metadata=ObjectMeta(name="box")))
    bed.kube.fail_next("create", Forbidden("no", code=403))
    async with running(bed.reporter):
        await bed.clock.sleep(0.05)
        assert not is_ready(bed.node.status) and not bed.kube.calls_of("get", Node)
        await bed.clock.sleep(10)
        assert is_ready(bed.node.status)


async def test_registration_is_retried_until_the_server_is_there() -> None:
    bed = ReporterFixture()
    bed.kube.stop()
    async with running(bed.reporter):
        await bed.clock.sleep(60)
        bed.kube.start()
        await bed.clock.sleep(7)
        assert is_ready(bed.node.status)
    assert len(bed.kube.calls_of("create", Node)) < 20


async def test_without_registration_only_an_existing_node_is_updated() -> None:
    bed = ReporterFixture(settings=Settings(config=KubeletConfig(node=NodeSettings(register_node=False))))
    async with running(bed.reporter):
        await bed.clock.sleep(30)
        assert bed.kube.find(Node, "box") is None
        bed.kube.add(Node(metadata=ObjectMeta(name="box")))
        await bed.clock.sleep(11)
        assert is_ready(bed.node.status)
    assert bed.kube.calls_of("create", Node) == []


async def test_after_an_outage_the_node_is_told_again_within_seconds() -> None:
    bed = ReporterFixture()
    async with running(bed.reporter):
        await bed.clock.sleep(1)
        bed.kube.stop()
        bed.pressures.add("DiskPressure")
        await bed.clock.sleep(60)
        bed.kube.start()
        await bed.clock.sleep(5.1)
        found = find_condition(bed.node.status.conditions, "DiskPressure")
        assert found is not None and found.status == "True"


async def test_a_stale_copy_is_replaced_by_a_fresh_one_when_the_patch_fails() -> None:
    bed = ReporterFixture()
    async with running(bed.reporter):
        await bed.clock.sleep(1)
        bed.kube.fail_next("patch", ApiServerError("busy", code=500), times=2)
        bed.pressures.add("PIDPressure")
        bed.reporter.soon()
        await bed.clock.sleep(0.1)
        found = find_condition(bed.node.status.conditions, "PIDPressure")
        assert found is not None and found.status == "True"


async def test_a_node_called_unreachable_speaks_up_at_once() -> None:
    bed = ReporterFixture()
    async with running(bed.reporter):
        await bed.clock.sleep(1)
        unknown = [msgspec.structs.replace(each, status="Unknown") for each in bed.node.status.conditions]
        status = msgspec.structs.replace(bed.node.status, conditions=unknown)
        shown = bed.kube.change(msgspec.structs.replace(bed.node, status=status))
        bed.own.learn(shown)
        bed.reporter.observed(shown)
        await bed.clock.sleep(0.01)
        assert is_ready(bed.node.status)


async def test_several_problems_are_told_together() -> None:
    bed = ReporterFixture(storage=0)
    bed.runtime.runtime = "container runtime is down"
    bed.others = ["node is shutting down"]
    async with running(bed.reporter):
        await bed.clock.sleep(1)
    assert bed.ready().message == (
        "[container runtime is down, node is shutting down, missing node capacity for resources: ephemeral-storage]"
    )
    assert bed.events.node_reasons.count("InvalidDiskCapacity") == 1


async def test_without_an_address_the_rest_is_still_reported(caplog: pytest.LogCaptureFixture) -> None:
    bed = ReporterFixture()
    bed.network.local, bed.network.route = (), ()
    async with running(bed.reporter):
        await bed.clock.sleep(31)
    assert bed.node.status.addresses == []
    assert is_ready(bed.node.status)
    assert sum("cannot be set" in record.message for record in caplog.records) == 1
