"""Pods from outside the machine: those bound to this node by the API server, and static pods from a URL.

The URL answers with one Pod or a PodList and is polled. A body that did not change is ignored; a bad answer keeps the
pods of the last good one. An empty body is a problem and an empty set: that is how upstream reads it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

from msgspec import Struct

from pykubelet.api.types import Pod
from pykubelet.clients.http.port import Fetch
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.errors import PykubeletError
from pykubelet.model.events import EventRecorder
from pykubelet.model.pod import Source, readable
from pykubelet.model.reasons import WARNING
from pykubelet.sources.manifests import BIG_BYTES, LOAD_WITHIN, MAX_BYTES, LoadPods, in_one_line
from pykubelet.sources.mux import FAILED_VALIDATION, Deliver

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 10.0


def bound_to(node_name: str) -> str:
    """The field selector of the pods a node is responsible for."""
    return f"spec.nodeName={node_name}"


class ApiSource:
    """Hands on the complete set that the pod watch yields after every change.

    It starts only when the Node has been read, because pods judged against an unknown node would be rejected.
    """

    name = "source-api"

    def __init__(
        self,
        *,
        sets: Callable[[], AsyncGenerator[Sequence[Pod], None]],
        wait_node_known: Callable[[], Awaitable[None]],
        deliver: Deliver,
    ) -> None:
        """`sets` yields the full set of this node's pods, now and after every change; it reconnects by itself."""
        self._sets = sets
        self._wait_node_known = wait_node_known
        self._deliver = deliver

    async def run(self) -> None:
        await self._wait_node_known()
        async with aclosing(self._sets()) as sets:
            async for pods in sets:
                self._deliver(Source.API, pods)


class UrlSourceSnapshot(Struct, frozen=True, kw_only=True):
    url: str
    pods: tuple[str, ...]
    problem: str


class BadAnswer(PykubeletError):
    """The address answered, but not with pods."""


class UrlSource:
    name = "source-http"

    def __init__(
        self,
        *,
        url: str,
        headers: Mapping[str, str],
        check_period: float,
        load: LoadPods,
        fetch: Fetch,
        deliver: Deliver,
        events: EventRecorder,
        clock: Clock,
    ) -> None:
        self._url = url
        self._headers = dict(headers)
        self._period = check_period
        self._load = load
        self._fetch = fetch
        self._deliver = deliver
        self._events = events
        self._clock = clock
        self._body: bytes | None = None
        self._body_problem = ""
        self._pods: tuple[Pod, ...] = ()
        self._problem = ""

    async def run(self) -> None:
        while True:
            await self.check()
            await self._clock.sleep(self._period)

    async def check(self) -> None:
        """Request once; a problem is reported once and tried again next time."""
        try:
            body = await self._get()
            if body == self._body:
                self._set_problem(self._body_problem)
                return
            await self._accept(body)
        except Exception as error:  # no answer may end the agent
            self._set_problem(in_one_line(error))
        else:
            self._set_problem("")

    def snapshot(self) -> UrlSourceSnapshot:
        return UrlSourceSnapshot(url=self._url, pods=tuple(readable(pod) for pod in self._pods), problem=self._problem)

    async def _get(self) -> bytes:
        answer = await self._fetch(self._url, self._headers, timeout=TIMEOUT_SECONDS, max_bytes=MAX_BYTES)
        if answer.status != 200:
            raise BadAnswer(f"answered with HTTP status {answer.status}")
        if len(answer.body) > MAX_BYTES:
            raise BadAnswer(f"answered with more than {MAX_BYTES // 1024 // 1024} MiB")
        if not answer.body:
            # Forget the body: the same pods coming back afterwards are a change.
            self._body = None
            self._hand_over(())
            raise BadAnswer("answered with an empty body")
        return answer.body

    async def _accept(self, body: bytes) -> None:
        # Kept even if it turns out bad: reading the same bad body again would fail again.
        self._body, self._body_problem = body, ""
        try:
            work = partial(self._load, body, self._url)
            if len(body) > BIG_BYTES:
                pods = tuple(await host_calls.run(work, name="reading a manifest", within=LOAD_WITHIN))
            else:
                pods = tuple(work())
        except Exception as error:
            self._body_problem = in_one_line(error)
            raise
        self._hand_over(pods)

    def _hand_over(self, pods: tuple[Pod, ...]) -> None:
        self._pods = pods
        self._deliver(Source.HTTP, pods)

    def _set_problem(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        if not problem:
            logger.info("pods are read from the address again", extra={"url": self._url})
            return
        logger.error(
            "cannot use the pods of the address; the last good ones stay",
            extra={"url": self._url, "problem": problem},
        )
        self._events.node_event(WARNING, FAILED_VALIDATION, f"Manifest {self._url}: {problem}")
