"""One contract for drivers of dynamic resources: the fake, and Kubernetes' own test driver with a real API server.

A claim is first allocated in the API, as a scheduler does; that is where the driver finds its devices.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from pykubelet.clients.plugins.connection import GrpcRegistrations
from pykubelet.clients.plugins.dra import GrpcDraDriver
from pykubelet.clients.plugins.port import ClaimRef, DraDriver
from pykubelet.model.errors import PluginError
from tests.bed.cluster import Cluster
from tests.bed.device_plugins import DRA_DRIVER, Program, dra_driver, running
from tests.bed.parts import scratch_folder
from tests.fakes.fake_dra import FakeDraDriver

pytestmark = pytest.mark.real_loop

WITHIN = 60.0
NODE = "contract"
REQUESTS = ("one", "two")


class Subject(Protocol):
    driver: DraDriver

    def claim(self, name: str) -> ClaimRef:
        """A claim with the requests one and two that has a device for each."""
        ...

    def leave(self) -> None:
        """The driver is gone."""
        ...


class FakeSubject:
    def __init__(self) -> None:
        self.known: set[str] = set()
        self.fake = FakeDraDriver(known=self.known)
        self.driver: DraDriver = self.fake

    def claim(self, name: str) -> ClaimRef:
        made = ClaimRef(namespace="default", name=name, uid=str(uuid.uuid4()))
        self.known.add(made.uid)
        return made

    def leave(self) -> None:
        self.fake.crash()


class TestDriverSubject:
    __test__ = False

    def __init__(self, cluster: Cluster, program: Program, driver: DraDriver) -> None:
        self._cluster, self._program = cluster, program
        self.driver = driver

    def claim(self, name: str) -> ClaimRef:
        requests = [{"name": each, "exactly": {"deviceClassName": "contract"}} for each in REQUESTS]
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        self._cluster.apply({**kind, "spec": {"devices": {"requests": requests}}})
        results = [
            {"request": each, "driver": DRA_DRIVER, "pool": NODE, "device": f"device-0{number}"}
            for number, each in enumerate(REQUESTS)
        ]
        status: dict[str, Any] = {"status": {"allocation": {"devices": {"results": results}}}}
        change = ["patch", "resourceclaim", name, "--subresource=status", "--type=merge", "-p", json.dumps(status)]
        self._cluster.kubectl(*change)
        uid = self._cluster.get("resourceclaim", name)["metadata"]["uid"]
        return ClaimRef(namespace="default", name=name, uid=uid)

    def leave(self) -> None:
        self._program.kill9()


@asynccontextmanager
async def a_fake(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    yield FakeSubject()


async def first_socket(registry: Path, program: Program) -> Path:
    end = time.monotonic() + WITHIN
    while not (sockets := list(registry.glob("*.sock"))):
        assert time.monotonic() < end, program.tail()
        await asyncio.sleep(0.05)
    return sockets[0]


def a_test_driver(version: str) -> Open:
    @asynccontextmanager
    async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        # Not in pytest's folder: the names of sockets may not have more than 107 characters.
        with scratch_folder("pkldra-") as folder:
            registry = folder / "plugins_registry"
            registry.mkdir()
            with running(dra_driver(folder, folder, cluster.admin_kubeconfig, NODE)) as program:
                socket = await first_socket(registry, program)
                info = await GrpcRegistrations().info(socket)
                assert info.name == DRA_DRIVER and f"{version}.DRAPlugin" in info.versions, program.tail()
                yield TestDriverSubject(cluster, program, GrpcDraDriver(Path(info.endpoint), version))
        cluster.kubectl("delete", "resourceclaims", "--all")
        cluster.kubectl("delete", "node", NODE)

    return opened


Open = Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Subject]]
SUBJECTS = pytest.mark.parametrize(
    "a_subject",
    [
        pytest.param(a_fake, id="fake"),
        pytest.param(a_test_driver("v1"), id="test-driver", marks=pytest.mark.cluster),
        pytest.param(a_test_driver("v1beta1"), id="test-driver-v1beta1", marks=pytest.mark.cluster),
    ],
)


@SUBJECTS
async def test_claims_are_prepared_together_and_every_step_may_be_repeated(
    a_subject: Open, request: pytest.FixtureRequest
) -> None:
    async with a_subject(request) as subject:
        first, second = subject.claim("first"), subject.claim("second")
        for _ in range(2):
            found = await subject.driver.prepare([first, second])
            assert set(found) == {first.uid, second.uid}
            for prepared in found.values():
                assert prepared.error == ""
                assert sorted(device.requests for device in prepared.devices) == [("one",), ("two",)]
                assert all(device.pool and device.device and device.cdi_ids for device in prepared.devices)
        ids = [each for prepared in found.values() for device in prepared.devices for each in device.cdi_ids]
        assert len(set(ids)) == 4 and all("/" in each and "=" in each for each in ids)
        for _ in range(2):
            assert await subject.driver.unprepare([first, second]) == {first.uid: "", second.uid: ""}
        assert await subject.driver.prepare([]) == {} and await subject.driver.unprepare([]) == {}


@SUBJECTS
async def test_a_claim_that_is_gone_or_another_by_now_fails_the_whole_call(
    a_subject: Open, request: pytest.FixtureRequest
) -> None:
    async with a_subject(request) as subject:
        good = subject.claim("good")
        gone = ClaimRef(namespace="default", name="gone", uid=str(uuid.uuid4()))
        other = ClaimRef(namespace="default", name="good", uid=str(uuid.uuid4()))
        for bad in (gone, other):
            with pytest.raises(PluginError, match=f"default/{bad.name}") as caught:
                await subject.driver.prepare([good, bad])
            assert (caught.value.code, caught.value.call) == ("UNKNOWN", "NodePrepareResources")
        assert await subject.driver.unprepare([gone, good]) == {gone.uid: "", good.uid: ""}, "never prepared is fine"
        assert (await subject.driver.prepare([good]))[good.uid].error == ""


@SUBJECTS
async def test_a_driver_that_went_answers_nothing(a_subject: Open, request: pytest.FixtureRequest) -> None:
    async with a_subject(request) as subject:
        claim = subject.claim("left")
        subject.leave()
        with pytest.raises(PluginError) as caught:
            await subject.driver.prepare([claim])
        assert (caught.value.code, caught.value.call) == ("UNAVAILABLE", "NodePrepareResources")
        with pytest.raises(PluginError) as caught:
            await subject.driver.unprepare([claim])
        assert (caught.value.code, caught.value.call) == ("UNAVAILABLE", "NodeUnprepareResources")


@SUBJECTS
async def test_health_is_told_until_the_driver_goes(a_subject: Open, request: pytest.FixtureRequest) -> None:
    async with a_subject(request) as subject:
        async with aclosing(subject.driver.watch_health()) as lists, asyncio.timeout(WITHIN):
            assert list(await anext(lists)) == [], "of a driver that has seen no trouble yet"
            subject.leave()
            with pytest.raises(PluginError) as caught:
                async for _ in lists:
                    pass
        assert (caught.value.code, caught.value.call) == ("UNAVAILABLE", "NodeWatchResources")
