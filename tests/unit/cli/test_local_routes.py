"""What the local socket offers: pods that end are marked, events are chosen, restarts refuse what would not return."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pykubelet.api.types import Pod, PodStatus
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.kit.clock import LoopClock
from pykubelet.model.errors import CriError
from pykubelet.model.pod import AnyContainer, uid_of
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, Image, PodRuntimeStatus
from pykubelet.runtime.stop import StopOrder, Stopping
from pykubelet.server.local import CannotRestart, InPlaceRestart, LocalRoutes
from pykubelet.server.requests import Refused, Request, Response
from pykubelet.wire import cri_pb2
from tests.builders import a_container, a_pod, a_sidecar


class FakeImages:
    def __init__(self) -> None:
        self.here = {"app:1": Image(id="sha256:1", tags=("app:1",), size_bytes=7)}
        self.pulled: list[tuple[str, str]] = []

    async def list_images(self, image: str | None = None) -> Sequence[Image]:
        return list(self.here.values())

    async def image_status(self, image: str) -> Image | None:
        return self.here.get(image)

    async def pull_image(
        self,
        spec: cri_pb2.ImageSpec,
        auth: cri_pb2.AuthConfig | None = None,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
    ) -> str:
        if spec.image == "bad":
            raise CriError("not found")
        self.pulled.append((spec.image, auth.username if auth else ""))
        return "app:1"

    async def remove_image(self, image: str) -> None:
        self.here = {name: one for name, one in self.here.items() if one.id != image}


class FakeTable:
    def __init__(self, ending: Sequence[str]) -> None:
        self.ending = ending

    def reported_status(self, uid: str) -> PodStatus:
        return PodStatus(phase="Running")

    def worker(self, uid: str) -> SimpleNamespace:
        return SimpleNamespace(is_ending=uid in self.ending)


class Stops:
    def __init__(self, seen: PodRuntimeStatus) -> None:
        self.seen = seen
        self.stopped: list[str] = []
        self.forgiven: list[str] = []

    async def inspect(self, uid: str, *, requested: bool) -> PodRuntimeStatus:
        return self.seen

    async def stop_container(
        self, pod: Pod, one: Stopping, *, grace: int | None = None, order: StopOrder | None = None
    ) -> None:
        assert grace is None and order is not None
        await order.wait_turn(one.status.name)
        self.stopped.append(one.status.name)
        order.is_gone(one.status.name)

    def forgive(self, pod: Pod, container: AnyContainer) -> None:
        self.forgiven.append(container.name or "")

    def restarts(self, *, ending: bool = False) -> InPlaceRestart:
        return InPlaceRestart(
            pleg=self, stopper=self, table=FakeTable(["uid-web"] if ending else []), forget_crashes=self.forgive
        )


def running(*names: str) -> PodRuntimeStatus:
    runs = (ContainerStatus(id=name, name=name, state=ContainerState.RUNNING) for name in names)
    return PodRuntimeStatus(uid="uid-web", containers=tuple(runs))


class LocalRoutesFixture:
    def __init__(self, *pods: Pod, ending: Sequence[str] = ()) -> None:
        self.known = list(pods)
        self.clock = LoopClock()
        self.events = EventBroadcaster(clock=self.clock, node_name="node1")
        self.images = FakeImages()
        self.stops = Stops(running("app"))
        self.routes = LocalRoutes(
            table=FakeTable(ending),
            pods=self,
            events=self.events,
            restarts=self.stops.restarts(),
            images=self.images,
            about=lambda: {"node": "node1"},
            clock=self.clock,
        )

    def pods(self) -> list[Pod]:
        return self.known

    def find(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self.known if pod.metadata.name == name), None)

    async def ask(self, path: str, method: str = "GET", body: bytes = b"", **query: str) -> Any:
        async def read(limit: int) -> bytes:
            return body

        route, params = next(
            (route, found)
            for route in self.routes.routes()
            if method in route.methods and (found := _match(route.pattern, path)) is not None
        )
        call = Request(method=method, path=path, params=params, query=list(query.items()), body=read)
        answer = await route.handler(call)
        assert isinstance(answer, Response)
        return msgspec.json.decode(answer.body)


def _match(pattern: str, path: str) -> dict[str, str] | None:
    names, parts = pattern.split("/"), path.split("/")
    if len(names) != len(parts):
        return None
    pairs = list(zip(names, parts, strict=True))
    if any(not name.startswith("{") and name != part for name, part in pairs):
        return None
    return {name[1:-1]: part for name, part in pairs if name.startswith("{")}


async def test_pods_carry_their_newest_status_and_show_that_they_end() -> None:
    world = LocalRoutesFixture(a_pod("web"), a_pod("gone", static=True), ending=["uid-gone"])
    first, second = (await world.ask("/local/pods"))["items"]
    assert first["status"]["phase"] == "Running"
    assert "deletionTimestamp" not in first["metadata"]
    assert "deletionTimestamp" in second["metadata"]


async def test_events_of_one_pod_or_all() -> None:
    pod = a_pod("web")
    world = LocalRoutesFixture(pod)
    world.events.pod_event(pod, "Normal", "Started", "one")
    world.events.pod_event(a_pod("other", namespace="shop"), "Normal", "Started", "two")
    world.events.node_event("Warning", "Odd", "three")
    assert [e["message"] for e in (await world.ask("/local/events"))["items"]] == ["one", "two", "three"]
    assert [e["message"] for e in (await world.ask("/local/events", namespace="default"))["items"]] == ["one", "three"]
    assert [e["message"] for e in (await world.ask("/local/events", pod="web"))["items"]] == ["one"]


async def test_images() -> None:
    world = LocalRoutesFixture()
    assert (await world.ask("/local/images"))["items"][0]["tags"] == ["app:1"]
    login = b'{"username":"me","password":"x"}'
    assert (await world.ask("/local/images", "POST", login, image="new:1"))["size_bytes"] == 7
    assert world.images.pulled == [("new:1", "me")]
    assert (await world.ask("/local/images", "DELETE", image="app:1"))["removed"] == ["app:1"]
    for method, image, status in (("POST", "bad", 502), ("POST", "", 400), ("DELETE", "none", 404)):
        with pytest.raises(Refused) as refused:
            await world.ask("/local/images", method, image=image)
        assert refused.value.status == status
    with pytest.raises(Refused):
        await world.ask("/local/images", "POST", b"[1]", image="x")


async def test_restart_through_the_route() -> None:
    world = LocalRoutesFixture(a_pod("web"))
    assert await world.ask("/local/restart/default/web", "POST") == {"stopped": ["app"]}
    with pytest.raises(Refused) as refused:
        await world.ask("/local/restart/default/nobody", "POST")
    assert refused.value.status == 404


async def test_a_pod_restarts_in_the_order_it_would_end() -> None:
    pod = a_pod(init=[a_sidecar("side")])
    stops = Stops(running("side", "app"))
    assert set(await stops.restarts().restart(pod)) == {"side", "app"}
    assert stops.stopped == ["app", "side"]
    assert sorted(stops.forgiven) == ["app", "side"]


async def test_one_container_restarts_alone() -> None:
    pod = a_pod(containers=[a_container("a"), a_container("b")])
    stops = Stops(running("a", "b"))
    assert await stops.restarts().restart(pod, "b") == ["b"]
    assert stops.stopped == ["b"]


@pytest.mark.parametrize(
    ("pod", "container", "ending", "status", "says"),
    [
        (a_pod(), "nope", False, 404, "no container nope"),
        (a_pod(), "", True, 409, "is ending"),
        (a_pod(restart_policy="Never"), "", False, 409, "restartPolicy Never"),
        (a_pod(containers=[a_container("x")]), "x", False, 409, "does not run"),
    ],
)
async def test_what_would_not_come_back_is_refused(
    pod: Pod, container: str, ending: bool, status: int, says: str
) -> None:
    stops = Stops(running("app"))
    with pytest.raises(CannotRestart, match=says) as refused:
        await stops.restarts(ending=ending).restart(pod, container)
    assert refused.value.status == status
    assert stops.stopped == []
    assert uid_of(pod)
