"""What only the local socket offers, for the human commands: pods with those that end, events, restarts, images.

Answers are JSON. Only root can reach the socket, so there is nothing to authorize; the routes still name a right, as
every route must. Does not cover: /explain, which both servers have (configz.py), nor anything kubelets have anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from pykubelet.api.types import Pod, PodStatus
from pykubelet.kit.clock import Clock, utc
from pykubelet.model.errors import CriError
from pykubelet.model.pod import deletion_requested, uid_of
from pykubelet.model.runtime_status import Image
from pykubelet.server.calls import Answer, Call, Refused, Reply
from pykubelet.server.pods import pod_list
from pykubelet.server.restart import CannotRestart
from pykubelet.server.routing import PROXY, Route
from pykubelet.wire import cri_pb2

PULL_BODY = 64 * 1024


class LocalPods(Protocol):
    """Pods of this node with those that are still ending (explain/service.py)."""

    def pods(self) -> Sequence[Pod]: ...

    def find(self, namespace: str, name: str, /) -> Pod | None: ...


class Restarts(Protocol):
    async def restart(self, pod: Pod, container: str = "") -> Sequence[str]:
        """Stop in place, by the grace; the pod's worker starts again. Names of what was stopped."""
        ...


class Images(Protocol):
    async def list_images(self, image: str | None = None) -> Sequence[Image]: ...

    async def image_status(self, image: str) -> Image | None: ...

    async def pull_image(
        self,
        spec: cri_pb2.ImageSpec,
        auth: cri_pb2.AuthConfig | None = None,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
    ) -> str: ...

    async def remove_image(self, image: str) -> None: ...


class LocalRoutes:
    def __init__(
        self,
        *,
        pods: LocalPods,
        status: Callable[[str], PodStatus | None],
        is_ending: Callable[[str], bool],
        events: Callable[[], Iterable[Any]],
        restarts: Restarts,
        images: Images,
        about: Callable[[], dict[str, Any]],
        clock: Clock,
    ) -> None:
        """`events` are values with namespace and name, oldest first; `about` is what `status` shows of the agent."""
        self._pods = pods
        self._status = status
        self._is_ending = is_ending
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

    async def about(self, call: Call) -> Reply:
        return _json(self._about())

    async def pods(self, call: Call) -> Reply:
        return Answer.json(pod_list(self._shown(pod) for pod in self._pods.pods()))

    def _shown(self, pod: Pod) -> Pod:
        told = self._status(uid_of(pod))
        if told is not None:
            pod = msgspec.structs.replace(pod, status=told)
        if self._is_ending(uid_of(pod)) and not deletion_requested(pod):
            # A static pod that lost its manifest has no such mark; people are to see that it ends all the same.
            marked = msgspec.structs.replace(pod.metadata, deletion_timestamp=utc(self._clock.now()))
            pod = msgspec.structs.replace(pod, metadata=marked)
        return pod

    async def events(self, call: Call) -> Reply:
        found = list(self._events())
        namespace, pod = call.get("namespace"), call.get("pod")
        if namespace:
            found = [event for event in found if event.namespace in (namespace, "")]
        if pod:
            found = [event for event in found if event.name == pod]
        return _json({"items": found})

    async def restart(self, call: Call) -> Reply:
        namespace, name = call.params["namespace"], call.params["pod"]
        pod = self._pods.find(namespace, name)
        if pod is None:
            raise Refused(404, f"this node knows no pod {namespace}/{name}")
        try:
            stopped = await self._restarts.restart(pod, call.params.get("container", ""))
        except CannotRestart as problem:
            raise Refused(problem.status, str(problem)) from problem
        return _json({"stopped": list(stopped)})

    async def list_images(self, call: Call) -> Reply:
        return _json({"items": await self._images.list_images()})

    async def pull(self, call: Call) -> Reply:
        image = _named(call)
        raw = await call.body(PULL_BODY)
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

    async def remove(self, call: Call) -> Reply:
        image = _named(call)
        found = await self._images.image_status(image)
        if found is None:
            raise Refused(404, f"no such image: {image}")
        await self._images.remove_image(found.id)
        return _json({"removed": list(found.tags) or [found.id]})


def _named(call: Call) -> str:
    image = call.get("image")
    if not image:
        raise Refused(400, 'query parameter "image" is required')
    return image


def _json(value: Any) -> Answer:
    return Answer.json(msgspec.json.encode(value) + b"\n")
