"""Claims on a fake driver with jumping time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pykubelet.api.types import (
    AllocationResult,
    ContainerExtendedResourceRequest,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodExtendedResourceClaimStatus,
    PodResourceClaim,
    PodResourceClaimStatus,
    PodSchedulingGroup,
    PodStatus,
    ResourceClaim,
    ResourceClaimConsumerReference,
    ResourceClaimStatus,
    ResourceRequirements,
    ResourceResourceClaim,
)
from pykubelet.clients.plugins.port import ClaimedHealth, ClaimRef
from pykubelet.cm.dra_claims import ClaimProblem
from pykubelet.cm.dra_drivers import DriverProblem
from pykubelet.cm.dra_manager import DraManager
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet, running
from pykubelet.pods.table import PodTable
from pykubelet.settings.gates import Gates
from pykubelet.settings.settings import Settings
from pykubelet.signals import DeviceHealthChanged, DraDriverRegistered
from tests.builders import a_container, a_context, a_pod
from tests.fakes.fake_dra import FakeClaimObjects, FakeDraDriver
from tests.fakes.recorded_events import RecordedEvents

ENDPOINT = Path("/d.sock")
CODES = ("OK", "Unavailable")


def a_claim(name: str, *pods: str, drivers: tuple[str, ...] = ("d",), **metadata: Any) -> ResourceResourceClaim:
    results = [DeviceRequestAllocationResult(driver=each, pool="p", device="x", request="one") for each in drivers]
    return ResourceResourceClaim(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", **metadata),
        status=ResourceClaimStatus(
            allocation=AllocationResult(devices=DeviceAllocationResult(results=results)),
            reserved_for=[
                ResourceClaimConsumerReference(resource="pods", name=each, uid=f"uid-{each}") for each in pods
            ],
        ),
    )


def using(name: str, *claims: str, request: str = "") -> Pod:
    """A pod whose container asks for these claims, each known in the pod as c-NAME."""
    asked = [ResourceClaim(name=f"c-{each}", request=request or None) for each in claims]
    return a_pod(
        name,
        containers=[a_container(resources=ResourceRequirements(claims=asked))],
        resource_claims=[PodResourceClaim(name=f"c-{each}", resource_claim_name=each) for each in claims],
    )


@dataclass
class DraFixture:
    root: Path
    driver: FakeDraDriver = field(default_factory=FakeDraDriver)
    others: dict[Path, FakeDraDriver] = field(default_factory=dict)
    """Drivers behind other sockets."""
    objects: FakeClaimObjects = field(default_factory=FakeClaimObjects)
    events: RecordedEvents = field(default_factory=RecordedEvents)
    synced: list[str] = field(default_factory=list)
    retried: list[str] = field(default_factory=list)
    registers: bool = True
    table: PodTable = field(default_factory=PodTable)
    metrics: Registry = field(default_factory=Registry)
    gates: dict[str, bool] = field(default_factory=dict)

    def claim(self, name: str, *pods: str, **fields: Any) -> None:
        self.objects.claims["default", name] = a_claim(name, *pods, **fields)

    @asynccontextmanager
    async def life(self) -> AsyncIterator[DraManager]:
        ctx = a_context(events=self.events, metrics=self.metrics, settings=Settings(gates=Gates(self.gates)))
        manager = DraManager(
            ctx,
            root=self.root,
            connect=lambda socket, *call: self.others.get(socket, self.driver).connect(socket, *call),
            objects=self.objects,
            table=self.table,
        )
        ctx.signals.subscribe(DeviceHealthChanged, lambda changed: self.synced.append(changed.uid))
        ctx.signals.subscribe(DraDriverRegistered, lambda registered: self.retried.append(registered.uid))
        manager.open()
        async with running(manager):
            await asyncio.sleep(0.1)
            if self.registers:
                await manager.drivers.register("d", ENDPOINT, ("v1.DRAPlugin",))
            yield manager


async def test_claims_are_prepared_in_one_call_and_given_back_in_one(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    bed.claim("b", "web")
    pod = using("web", "a", "b")
    async with bed.life() as manager:
        await manager.prepare(pod)
        await manager.prepare(pod)
        assert manager.cdi_devices(pod, pod.spec.containers[0]) == ["d/a=one", "d/a=two", "d/b=one", "d/b=two"]
        assert manager.claims_of("uid-web", "app") == []
        bed.table.put(pod)
        (share, _) = manager.claims_of("uid-web", "app")
        assert (share.name, [each.device for each in share.devices]) == ("a", ["a-one", "a-two"])
        await manager.unprepare("uid-web")
        await manager.unprepare("uid-web")
    assert bed.driver.calls == [("prepare", ("a", "b")), ("unprepare", ("a", "b"))]


async def test_a_container_gets_only_the_request_it_names(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    pod = using("web", "a", request="two")
    async with bed.life() as manager:
        await manager.prepare(pod)
        assert manager.cdi_devices(pod, pod.spec.containers[0]) == ["d/a=two"]


async def test_a_shared_claim_is_given_back_by_its_last_pod(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "one", "two")
    async with bed.life() as manager:
        await manager.prepare(using("one", "a"))
        await manager.prepare(using("two", "a"))
        await manager.unprepare("uid-one")
        assert bed.driver.calls == [("prepare", ("a",))]
        await manager.unprepare("uid-two")
        assert bed.driver.calls[-1] == ("unprepare", ("a",))


@pytest.mark.parametrize(
    "change, text",
    [
        ({}, "pod web (uid-web) is not allowed to use ResourceClaim a (uid-a)"),
        ({"pods": ("web",), "drivers": ("gone",)}, "DRA driver gone is not registered"),
    ],
)
async def test_claims_a_pod_may_not_or_cannot_use(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", *change.pop("pods", ()), **change)
    async with bed.life() as manager:
        with pytest.raises(ClaimProblem):
            await manager.prepare(using("web", "a"))
        assert bed.events.pods == [
            (
                "FailedPrepareDynamicResources",
                f"Failed to prepare dynamic resources: prepare dynamic resources: {text}",
            )
        ]
        await manager.unprepare("uid-web")
    assert bed.driver.calls == []


async def test_a_missing_claim_and_one_without_allocation(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    async with bed.life() as manager:
        with pytest.raises(ClaimProblem, match="fetch ResourceClaim a: not found"):
            await manager.prepare(using("web", "a"))
        bed.claim("a", "web")
        bed.objects.claims["default", "a"].status.allocation = None
        with pytest.raises(ClaimProblem, match="not allocated"):
            await manager.prepare(using("web", "a"))


async def test_what_the_driver_says_is_told_and_tried_again(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    pod = using("web", "a")
    async with bed.life() as manager:
        for problem, text in (
            ({"errors": {"a": "on fire"}}, "NodePrepareResources failed for ResourceClaim a: on fire"),
            ({"skips": {"a"}}, "NodePrepareResources skipped 1 ResourceClaims"),
            ({"breaks": "away"}, "driver d: NodePrepareResources: away"),
        ):
            bed.driver.errors, bed.driver.skips, bed.driver.breaks = {}, set(), ""
            for name, value in problem.items():
                setattr(bed.driver, name, value)
            with pytest.raises(ClaimProblem, match=text):
                await manager.prepare(pod)
        bed.driver.breaks = ""
        await manager.prepare(pod)
        assert bed.driver.prepared == {"uid-a"}
        operations = bed.metrics.histogram("dra_operations_duration_seconds", "")
        assert (operations.count("PrepareResources", "true"), operations.count("PrepareResources", "false")) == (3, 1)
        calls, method = bed.metrics.histogram("dra_grpc_operations_duration_seconds", ""), "NodePrepareResources"
        counts = [calls.count("d", f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}", code) for code in CODES]
        assert counts == [3, 1]
        in_use = [line for line in bed.metrics.expose().splitlines() if line.startswith("dra_resource_claims_in_use")]
        assert in_use == [
            'dra_resource_claims_in_use{driver_name="<any>"} 1',
            'dra_resource_claims_in_use{driver_name="d"} 1',
        ]


async def test_a_failure_to_give_back_keeps_the_claim(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    async with bed.life() as manager:
        await manager.prepare(using("web", "a"))
        bed.driver.errors = {"a": "busy"}
        with pytest.raises(ClaimProblem, match="NodeUnprepareResources failed for ResourceClaim a: busy"):
            await manager.unprepare("uid-web")
        bed.driver.errors = {}
        await manager.unprepare("uid-web")
        assert bed.driver.prepared == set()


async def test_the_next_life_gives_back_what_the_last_one_took(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    bed.driver.hangs = True
    async with bed.life() as manager, TaskSet("test") as tasks:
        tasks.spawn(manager.prepare(using("web", "a")), name="prepare")
        await asyncio.sleep(1)  # killed while the driver thinks
    bed.driver.hangs = False
    async with bed.life() as manager:
        await manager.sweep()
        assert bed.driver.calls == [("prepare", ("a",))]
        bed.table.mark_synced()
        await manager.sweep()
        assert bed.driver.calls[-1] == ("unprepare", ("a",))


async def test_the_next_life_prepares_again_and_knows_the_devices(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    pod = using("web", "a")
    async with bed.life() as manager:
        await manager.prepare(pod)
    async with bed.life() as manager:
        assert manager.cdi_devices(pod, pod.spec.containers[0]) == ["d/a=one", "d/a=two"]
        await manager.prepare(pod)
    assert bed.driver.calls == [("prepare", ("a",)), ("prepare", ("a",))]


async def test_a_hanging_driver_holds_up_only_who_wants_it(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "slow")
    bed.claim("b", "quick")
    async with bed.life() as manager, TaskSet("test") as tasks:
        bed.driver.hangs = True
        tasks.spawn(manager.prepare(using("slow", "a")), name="slow")
        await asyncio.sleep(0.1)
        bed.driver.hangs = False
        await manager.prepare(using("quick", "b"))


async def test_templates_and_extended_resources(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    pod = using("web")
    pod.spec.resource_claims = [PodResourceClaim(name="c", resource_claim_template_name="t")]
    pod.spec.containers[0].resources = ResourceRequirements(claims=[ResourceClaim(name="c")])
    async with bed.life() as manager:
        with pytest.raises(ClaimProblem, match='the claim "c" of the pod was not made from its template yet'):
            await manager.prepare(pod)
        mapping = ContainerExtendedResourceRequest(container_name="app", request_name="two", resource_name="x.com/y")
        pod.status = PodStatus(
            resource_claim_statuses=[PodResourceClaimStatus(name="c", resource_claim_name="made")],
            extended_resource_claim_status=PodExtendedResourceClaimStatus(
                resource_claim_name="ext", request_mappings=[mapping]
            ),
        )
        bed.claim("made", "web")
        bed.claim("ext", "web")
        with pytest.raises(ClaimProblem, match="ResourceClaim made was not created for pod web"):
            await manager.prepare(pod)
        bed.claim("made", "web", owner_references=[OwnerReference(uid="uid-web", controller=True)])
        await manager.prepare(pod)
        assert manager.cdi_devices(pod, pod.spec.containers[0]) == ["d/made=one", "d/made=two", "d/ext=two"]


@pytest.mark.parametrize(
    ("on", "group", "problem"),
    [
        (True, "team", None),
        (False, "team", "was not created for pod web"),
        (True, "others", "was not created for pod web"),
        (True, None, "was not created for pod web"),
    ],
)
async def test_claims_of_the_pods_group(tmp_path: Path, on: bool, group: str | None, problem: str | None) -> None:
    bed = DraFixture(tmp_path, gates={"DRAWorkloadResourceClaims": on})
    pod = using("web")
    pod.spec.resource_claims = [PodResourceClaim(name="c", resource_claim_template_name="t")]
    pod.spec.scheduling_group = PodSchedulingGroup(pod_group_name=group) if group else None
    pod.status = PodStatus(resource_claim_statuses=[PodResourceClaimStatus(name="c", resource_claim_name="made")])
    team = OwnerReference(
        api_version="scheduling.k8s.io/v1alpha2", kind="PodGroup", name="team", uid="g", controller=True
    )
    bed.claim("made", owner_references=[team])
    reserved = ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name="team", uid="g")
    bed.objects.claims["default", "made"].status.reserved_for = [reserved]
    async with bed.life() as manager:
        if problem is None:
            await manager.prepare(pod)
            return
        with pytest.raises(ClaimProblem, match=problem):
            await manager.prepare(pod)


async def test_a_claim_reserved_for_another_group_is_not_the_pods(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path, gates={"DRAWorkloadResourceClaims": True})
    bed.claim("a")
    reserved = ResourceClaimConsumerReference(api_group="scheduling.k8s.io", resource="podgroups", name="others")
    bed.objects.claims["default", "a"].status.reserved_for = [reserved]
    pod = using("web", "a")
    pod.spec.scheduling_group = PodSchedulingGroup(pod_group_name="team")
    async with bed.life() as manager:
        with pytest.raises(ClaimProblem, match="is not allowed to use ResourceClaim a"):
            await manager.prepare(pod)


async def test_slices_of_a_driver_that_left_are_deleted_but_not_during_an_update(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    async with bed.life() as manager:
        assert bed.objects.deleted == [""]
        await manager.drivers.register("d", Path("/new.sock"), ("v1beta1.DRAPlugin", "v1.DRAPlugin"))
        await manager.drivers.deregister("d", ENDPOINT)
        await asyncio.sleep(60)
        assert bed.objects.deleted == [""]
        await manager.drivers.deregister("d", Path("/new.sock"))
        await asyncio.sleep(29)
        assert bed.objects.deleted == [""]
        await asyncio.sleep(2)
        assert bed.objects.deleted == ["", "d"]


async def test_slices_stay_until_a_driver_that_left_again_is_gone_for_long(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    async with bed.life() as manager:
        await manager.drivers.deregister("d", ENDPOINT)
        await asyncio.sleep(10)
        await manager.drivers.register("d", ENDPOINT, ("v1.DRAPlugin",))
        await asyncio.sleep(15)
        await manager.drivers.deregister("d", ENDPOINT)
        await asyncio.sleep(20)
        assert bed.objects.deleted == [""]
        await asyncio.sleep(15)
        assert bed.objects.deleted == ["", "d"]


async def test_slices_of_a_driver_that_does_not_listen_are_deleted(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.driver.listens = False
    async with bed.life():
        await asyncio.sleep(29)
        assert bed.objects.deleted == [""]
        await asyncio.sleep(2)
        assert bed.objects.deleted == ["", "d"]
        bed.driver.listen(True)
        await asyncio.sleep(60)
        bed.driver.listen(False)
        await asyncio.sleep(20)
        bed.driver.listen(True)
        await asyncio.sleep(60)
        assert bed.objects.deleted == ["", "d"]
        bed.driver.listen(False)
        await asyncio.sleep(31)
        assert bed.objects.deleted == ["", "d", "d"]


async def test_an_instance_that_is_connected_is_called_before_a_newer_one_that_is_not(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    async with bed.life() as manager:
        await asyncio.sleep(1)
        old, bed.driver = bed.driver, FakeDraDriver(listens=False)
        await manager.drivers.register("d", Path("/new.sock"), ("v1.DRAPlugin",))
        await asyncio.sleep(1)
        assert manager.drivers.find("d") is old
        bed.driver.listen(True)
        await asyncio.sleep(1)
        assert manager.drivers.find("d") is bed.driver


async def test_who_may_not_register(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path, registers=False)
    bed.table.put(using("web", "a"))
    bed.table.put(a_pod("other"))
    async with bed.life() as manager:
        with pytest.raises(DriverProblem, match="none of the driver's services"):
            await manager.drivers.register("d", ENDPOINT, ("v1alpha3.DRAPlugin",))
        assert bed.retried == []
        await manager.drivers.register("d", ENDPOINT, ("v1.DRAPlugin",))
        assert bed.retried == ["uid-web"], "pods that may wait for it are retried"


async def test_health_of_devices(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    pod = using("web", "a", request="one")
    async with bed.life() as manager:
        await manager.prepare(pod)

        def shown() -> tuple[str | None, str | None, str | None]:
            (status,) = manager.health_statuses(pod, "app")
            (device,) = status.resources
            return status.name, device.resource_id, device.health

        assert shown() == ("claim:c-a/one", "d/a=one", "Unknown")
        bed.driver.news.put_nowait([ClaimedHealth(pool="p", device="a-one", health="Unhealthy", stale_after=10)])
        await asyncio.sleep(1)
        assert shown()[2] == "Unhealthy"
        assert bed.synced == ["uid-web"]
        await asyncio.sleep(10)
        assert shown()[2] == "Unknown"


async def test_health_of_devices_is_known_after_a_restart(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    pod = using("web", "a", request="one")
    async with bed.life() as manager:
        await manager.prepare(pod)
        bed.driver.news.put_nowait([ClaimedHealth(pool="p", device="a-one", health="Unhealthy", stale_after=10)])
        await asyncio.sleep(1)
    async with bed.life() as manager:
        (status,) = manager.health_statuses(pod, "app")
        assert [each.health for each in status.resources] == ["Unhealthy"]


@pytest.mark.parametrize("on", [True, False])
async def test_what_a_driver_says_about_the_health_of_a_device(tmp_path: Path, on: bool) -> None:
    bed = DraFixture(tmp_path, gates={"ResourceHealthStatusMessage": on})
    bed.claim("a", "web")
    pod = using("web", "a", request="one")
    async with bed.life() as manager:
        await manager.prepare(pod)
        sick = ClaimedHealth(pool="p", device="a-one", health="Unhealthy", stale_after=10, message="too hot")
        bed.driver.news.put_nowait([sick])
        await asyncio.sleep(1)
        (status,) = manager.health_statuses(pod, "app")
        assert [(each.health, each.message) for each in status.resources] == [("Unhealthy", "too hot" if on else None)]


async def test_a_damaged_state_file_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "dra_manager_state").write_text('{"Data": "{}", "Checksum": 1}')
    bed = DraFixture(tmp_path)
    async with bed.life() as manager:
        bed.table.mark_synced()
        await manager.sweep()
    assert (tmp_path / "dra_manager_state.damaged").read_text() == '{"Data": "{}", "Checksum": 1}'


async def test_a_pod_with_its_sandbox_needs_neither_the_driver_nor_the_api_server(tmp_path: Path) -> None:
    """As upstream: claims are prepared for a sandbox; what runs in it is restarted also while a driver is away."""
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    pod = using("web", "a")
    async with bed.life() as manager:
        await manager.prepare(pod)
        bed.objects.claims.clear()
        await manager.drivers.deregister("d", ENDPOINT)
        await manager.prepare(pod, has_sandbox=True)
        with pytest.raises(ClaimProblem):
            await manager.prepare(pod, has_sandbox=False)
    bed.registers = False
    async with bed.life() as manager:
        await manager.prepare(pod, has_sandbox=True)
        assert manager.cdi_devices(pod, pod.spec.containers[0]) == ["d/a=one", "d/a=two"]
        with pytest.raises(ClaimProblem):
            await manager.prepare(using("other", "a"), has_sandbox=True)


async def test_a_claim_that_was_half_given_back_is_prepared_again_for_the_next_pod(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "one", "two", drivers=("d", "e"))
    drivers = {Path("/d.sock"): bed.driver, Path("/e.sock"): FakeDraDriver()}
    async with bed.life() as manager:
        bed.others = drivers
        await manager.drivers.register("e", Path("/e.sock"), ("v1.DRAPlugin",))
        await manager.prepare(using("one", "a"))
        drivers[Path("/e.sock")].breaks = "down"
        with pytest.raises(ClaimProblem):
            await manager.unprepare("uid-one")
        assert bed.driver.prepared == set()
        drivers[Path("/e.sock")].breaks = ""
        await manager.prepare(using("two", "a"))
        assert bed.driver.prepared == {"uid-a"}


async def test_giving_back_twice_at_once_leaves_a_new_claim_of_that_name_alone(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    gate = asyncio.Event()

    class Gated(FakeDraDriver):
        async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, str]:
            await gate.wait()
            return await super().unprepare(claims)

    bed.driver = Gated()
    async with bed.life() as manager, TaskSet("test") as tasks:
        await manager.prepare(using("web", "a"))
        tasks.spawn(manager.unprepare("uid-web"), name="first")
        await asyncio.sleep(1)
        bed.claim("a", "other")
        bed.objects.claims["default", "a"].metadata.uid = "uid-new"
        tasks.spawn(manager.prepare(using("other", "a")), name="next pod")
        await asyncio.sleep(1)
        tasks.spawn(manager.unprepare("uid-web"), name="second")
        await asyncio.sleep(1)
        gate.set()
        await asyncio.sleep(1)
        assert bed.driver.prepared == {"uid-new"}
        await manager.unprepare("uid-other")
        assert bed.driver.prepared == set()


async def test_sweeping_asks_all_drivers_at_once(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "one")
    bed.claim("b", "two", drivers=("e",))
    slow = FakeDraDriver()
    async with bed.life() as manager, TaskSet("test") as tasks:
        bed.others[Path("/e.sock")] = slow
        await manager.drivers.register("e", Path("/e.sock"), ("v1.DRAPlugin",))
        await manager.prepare(using("one", "a"))
        await manager.prepare(using("two", "b"))
        for stuck in (slow, bed.driver):
            stuck.hangs, other = True, bed.driver if stuck is slow else slow
            bed.table.mark_synced()
            sweeping = tasks.spawn(manager.sweep(), name="sweep")
            await asyncio.sleep(1)
            assert other.calls[-1][0] == "unprepare"
            sweeping.cancel()
            stuck.hangs = False
            await manager.prepare(using("one", "a"))
            await manager.prepare(using("two", "b"))


async def test_health_that_breaks_oddly_ends_nobody_else(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")

    class Odd(FakeDraDriver):
        async def watch_health(self) -> AsyncGenerator[Sequence[ClaimedHealth], None]:
            raise ValueError("what is this")
            yield []

    bed.driver = Odd()
    async with bed.life() as manager:
        await asyncio.sleep(20)
        await manager.prepare(using("web", "a"))


async def test_health_that_was_stale_is_news_when_it_is_told_again(tmp_path: Path) -> None:
    bed = DraFixture(tmp_path)
    bed.claim("a", "web")
    pod = using("web", "a", request="one")
    well = ClaimedHealth(pool="p", device="a-one", health="Healthy", stale_after=30.0)
    async with bed.life() as manager:
        await manager.prepare(pod)
        for pause, told in ((1, 1), (1, 1), (60, 1), (0, 2)):
            if pause != 60:
                bed.driver.news.put_nowait([well])
            await asyncio.sleep(pause or 1)
            assert len(bed.synced) == told, pause
