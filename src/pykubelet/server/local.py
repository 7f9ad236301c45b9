"""Paths of the local socket alone, for the human commands: pods, events, restarts in place, images, shutdown.

Answers are JSON. Only root can reach the socket, so there is nothing to authorize; the routes still name a right, as
every route must. A restart stops containers with their hooks and grace, in the order a pod ends; the sandbox and its
address stay, and the pod's worker starts the containers again without the delay of a crash.
Does not cover: /explain, which both servers have (introspection.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from pykubelet.api.types import Pod
from pykubelet.clients.cri.port import CriImages
from pykubelet.events.broadcaster import EventBroadcaster
from pykubelet.explain.service import Explainer
from pykubelet.kit.clock import Clock, utc
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import CriError, PykubeletError
from pykubelet.model.pod import (
    AnyContainer,
    ContainerKind,
    deletion_requested,
    effective_restart_policy,
    find_container,
    readable,
    uid_of,
)
from pykubelet.model.problems import KillCause
from pykubelet.model.runtime_status import ContainerStatus
from pykubelet.node.shutdown import ShutdownManager, ShutdownPeriod, two_periods
from pykubelet.pleg.pleg import Pleg
from pykubelet.pods.table import PodTable
from pykubelet.runtime.stop import StopOrder, Stopper, Stopping
from pykubelet.server.pods import pod_list
from pykubelet.server.requests import PROXY, Refused, Reply, Request, Response, Route
from pykubelet.settings.kinds import WrongValue, duration_of
from pykubelet.wire import cri_pb2

ASKED = "Stopping container {name}: a restart was asked for"


class CannotRestart(PykubeletError):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """Of the HTTP response."""


class InPlaceRestart:
    def __init__(
        self,
        *,
        pleg: Pleg,
        stopper: Stopper,
        table: PodTable,
        forget_crashes: Callable[[Pod, AnyContainer], None] = lambda pod, container: None,
    ) -> None:
        """`forget_crashes` drops earlier crashes of a container, so that it starts without waiting."""
        self._pleg = pleg
        self._stopper = stopper
        self._table = table
        self._forget_crashes = forget_crashes

    async def restart(self, pod: Pod, container: str = "") -> Sequence[str]:
        """Names of the containers that were stopped. Raises CannotRestart."""
        if container and find_container(pod, container) is None:
            raise CannotRestart(404, f"pod {readable(pod)} has no container {container}")
        if _is_ending(self._table, uid_of(pod)):
            raise CannotRestart(409, f"pod {readable(pod)} is ending")
        observed = await self._pleg.inspect(uid_of(pod), requested=False)
        chosen = [one for run in observed.running() if (one := _stopping(pod, run, container)) is not None]
        if not chosen:
            what = f"container {container} of pod {readable(pod)} does not run"
            raise CannotRestart(409, what if container else f"nothing of pod {readable(pod)} runs")
        for one in chosen:
            if one.container is not None:
                self._forget_crashes(pod, one.container)
        order = StopOrder(pod, chosen)
        await gather_all(*(self._stopper.stop_container(pod, one, order=order) for one in chosen))
        return [one.status.name for one in chosen]


def _stopping(pod: Pod, run: ContainerStatus, wanted: str) -> Stopping | None:
    found = find_container(pod, run.name)
    if found is None or (wanted and run.name != wanted) or found[0] is ContainerKind.EPHEMERAL:
        return None
    kind, container = found
    policy = effective_restart_policy(pod, container)
    if policy != "Always":
        raise CannotRestart(
            409, f"container {run.name} has restartPolicy {policy}: stopped by hand it might not be started again"
        )
    message, cause = ASKED.format(name=run.name), KillCause.RESTART_REQUESTED
    return Stopping(status=run, container=container, kind=kind, message=message, cause=cause)


USUAL = two_periods(30.0, 10.0)


class ShutdownRoutes:
    def __init__(self, *, manager: ShutdownManager, periods: Sequence[ShutdownPeriod]) -> None:
        """`periods`: what the settings say."""
        self._manager = manager
        self._periods = periods

    def routes(self) -> list[Route]:
        path = "/local/shutdown"
        return [
            Route(pattern=path, handler=self.begin, access=PROXY, methods=("POST",), long_running=True),
            Route(pattern=path, handler=self.cancel, access=PROXY, methods=("DELETE",)),
        ]

    async def begin(self, request: Request) -> Reply:
        outcome = await self._manager.shut_down(self._asked(request))
        return Response.json(msgspec.json.encode(outcome) + b"\n")

    def _asked(self, request: Request) -> Sequence[ShutdownPeriod]:
        if not request.has("grace"):
            if request.has("graceCritical"):
                raise Refused(400, "graceCritical needs grace")
            return self._periods or USUAL
        whole, critical = (
            _seconds(request, "grace"),
            _seconds(request, "graceCritical") if request.has("graceCritical") else 0.0,
        )
        if critical > whole:
            raise Refused(400, f"graceCritical {critical:g}s must not exceed grace {whole:g}s")
        return two_periods(whole, critical)

    async def cancel(self, request: Request) -> Reply:
        was = self._manager.shutting_down
        self._manager.cancel()
        return Response.json(msgspec.json.encode({"cancelled": was}) + b"\n")


def _seconds(request: Request, name: str) -> float:
    try:
        seconds = duration_of(request.get(name))
    except WrongValue as error:
        raise Refused(400, f"{name}: {error}") from error
    if seconds < 0:
        raise Refused(400, f"{name}: must not be negative")
    return seconds


PULL_BODY = 64 * 1024


class LocalRoutes:
    def __init__(
        self,
        *,
        table: PodTable,
        pods: Explainer,
        events: EventBroadcaster,
        restarts: InPlaceRestart,
        images: CriImages,
        about: Callable[[], dict[str, Any]],
        clock: Clock,
    ) -> None:
        """`pods` knows those that are still ending, too; `about` is what `status` shows of the agent."""
        self._table = table
        self._pods = pods
        self._events = events
        self._restarts = restarts
        self._images = images
        self._about = about
        self._clock = clock

    def routes(self) -> list[Route]:
        one = "/local/restart/{namespace}/{pod}"
        images = "/local/images"
        return [
            Route(pattern="/local/about", handler=self.about, access=PROXY),
            Route(pattern="/local/pods", handler=self.pods, access=PROXY),
            Route(pattern="/local/events", handler=self.events, access=PROXY),
            Route(pattern=one, handler=self.restart, access=PROXY, methods=("POST",), long_running=True),
            Route(
                pattern=f"{one}/{{container}}",
                handler=self.restart,
                access=PROXY,
                methods=("POST",),
                long_running=True,
            ),
            Route(pattern=images, handler=self.list_images, access=PROXY),
            Route(pattern=images, handler=self.pull, access=PROXY, methods=("POST",), long_running=True),
            Route(pattern=images, handler=self.remove, access=PROXY, methods=("DELETE",)),
        ]

    async def about(self, request: Request) -> Reply:
        return _json(self._about())

    async def pods(self, request: Request) -> Reply:
        return Response.json(pod_list(self._shown(pod) for pod in self._pods.pods()))

    def _shown(self, pod: Pod) -> Pod:
        status = self._table.reported_status(uid_of(pod))
        if status is not None:
            pod = msgspec.structs.replace(pod, status=status)
        if _is_ending(self._table, uid_of(pod)) and not deletion_requested(pod):
            # A static pod that lost its manifest has no such mark; people are to see that it ends all the same.
            marked = msgspec.structs.replace(pod.metadata, deletion_timestamp=utc(self._clock.now()))
            pod = msgspec.structs.replace(pod, metadata=marked)
        return pod

    async def events(self, request: Request) -> Reply:
        found = self._events.all()
        namespace, pod = request.get("namespace"), request.get("pod")
        if namespace:
            found = [event for event in found if event.namespace in (namespace, "")]
        if pod:
            found = [event for event in found if event.name == pod]
        return _json({"items": found})

    async def restart(self, request: Request) -> Reply:
        namespace, name = request.params["namespace"], request.params["pod"]
        pod = self._pods.find(namespace, name)
        if pod is None:
            raise Refused(404, f"this node knows no pod {namespace}/{name}")
        try:
            stopped = await self._restarts.restart(pod, request.params.get("container", ""))
        except CannotRestart as problem:
            raise Refused(problem.status, str(problem)) from problem
        return _json({"stopped": list(stopped)})

    async def list_images(self, request: Request) -> Reply:
        return _json({"items": await self._images.list_images()})

    async def pull(self, request: Request) -> Reply:
        image = _named(request)
        raw = await request.body(PULL_BODY)
        try:
            login = msgspec.json.decode(raw, type=dict[str, str]) if raw else {}
            auth = cri_pb2.AuthConfig(**login) if login else None
        except (msgspec.DecodeError, ValueError) as error:
            raise Refused(400, f"the body must hold username and password: {error}") from error
        try:
            ref = await self._images.pull_image(cri_pb2.ImageSpec(image=image), auth)
            found = await self._images.image_status(ref)
        except CriError as error:
            raise Refused(502, str(error)) from error
        return _json({"ref": ref, "size_bytes": found.size_bytes if found is not None else 0})

    async def remove(self, request: Request) -> Reply:
        image = _named(request)
        found = await self._images.image_status(image)
        if found is None:
            raise Refused(404, f"no such image: {image}")
        await self._images.remove_image(found.id)
        return _json({"removed": list(found.tags) or [found.id]})


def _is_ending(table: PodTable, uid: str) -> bool:
    worker = table.worker(uid)
    return worker is not None and worker.is_ending


def _named(request: Request) -> str:
    image = request.get("image")
    if not image:
        raise Refused(400, 'query parameter "image" is required')
    return image


def _json(value: Any) -> Response:
    return Response.json(msgspec.json.encode(value) + b"\n")
