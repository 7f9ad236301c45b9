"""The agent about itself: /healthz, /configz, /flagz, /statusz, /explain and /debug.

A health check is a name and a function that returns the problem, or nothing; reasons are logged, not returned, as the
caller may know only that something is wrong. /debug has upstream's paths with Python's contents: stacks as text
instead of Go profiles. `profile` samples the event loop's thread from another one, so it costs nothing when unused.
"""

from __future__ import annotations

import asyncio
import logging
import platform
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from pykubelet.api.codec import encode_json
from pykubelet.kit import log
from pykubelet.kit.clock import Clock, utc
from pykubelet.kit.host_calls import host_calls
from pykubelet.server.profiles import collapsed, heap_objects
from pykubelet.server.requests import Refused, Reply, Request, Response

logger = logging.getLogger(__name__)


class HealthCheck(Struct, frozen=True):
    name: str
    problem: Callable[[], str]
    """Empty when all is well. Must be quick."""


PING = HealthCheck("ping", lambda: "")
LOG = HealthCheck("log", log.problem)


class HealthRoutes:
    def __init__(self, checks: Iterable[HealthCheck]) -> None:
        self.checks: Sequence[HealthCheck] = tuple(checks)

    def problems(self) -> dict[str, str]:
        """Check name to problem, all checks, well or not."""
        return {check.name: _ask(check) for check in self.checks}

    async def all(self, request: Request) -> Reply:
        excluded = set(request.all("exclude"))
        lines, failed = [], []
        for check in self.checks:
            if check.name in excluded:
                excluded.discard(check.name)
                lines.append(f"[+]{check.name} excluded: ok")
            elif problem := _ask(check):
                failed.append((check.name, problem))
                lines.append(f"[-]{check.name} failed: reason withheld")
            else:
                lines.append(f"[+]{check.name} ok")
        if excluded:
            unknown = ", ".join(f'"{name[:40]}"' for name in sorted(excluded))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {unknown}")
        if failed:
            logger.error("health check failed", extra={"checks": "; ".join(f"{name}: {why}" for name, why in failed)})
            return Response.text("\n".join([*lines, "healthz check failed"]) + "\n", 500)
        if request.has("verbose"):
            return Response.text("\n".join([*lines, "healthz check passed"]) + "\n")
        return Response.text("ok")

    async def one(self, request: Request) -> Reply:
        name = request.params["check"]
        check = next((each for each in self.checks if each.name == name), None)
        if check is None:
            raise Refused(404, "404 page not found\n")
        if problem := _ask(check):
            logger.error("health check failed", extra={"checks": f"{name}: {problem}"})
            return Response.text(f"internal server error: {name} check failed: reason withheld\n", 500)
        return Response.text("ok")


def _ask(check: HealthCheck) -> str:
    try:
        return check.problem()
    except Exception as error:  # a check that breaks is a check that fails
        logger.exception("health check broke", extra={"check": check.name})
        return f"{type(error).__name__}: {error}"


WARNING = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees "
    "and is for debugging purposes only."
)

Explain = Callable[[str, str], Any]
"""(namespace, pod name) to something JSON can hold; None for a pod this node does not know."""


class ConfigRoutes:
    def __init__(
        self,
        *,
        configz: Callable[[], Mapping[str, Any]],
        flags: Callable[[], Mapping[str, str]],
        explain: Explain | None,
        version: str,
        started: float,
        clock: Clock,
    ) -> None:
        """`started` is the agent's start in unix seconds."""
        self._configz = configz
        self._flags = flags
        self._explain = explain
        self._version = version
        self._started = started
        self._clock = clock

    async def configz(self, request: Request) -> Reply:
        return Response.json(encode_json({"kubeletconfig": dict(self._configz())}) + b"\n")

    async def flagz(self, request: Request) -> Reply:
        lines = [f"{name}={value}" for name, value in sorted(self._flags().items())]
        return Response.text("\n".join(["", "kubelet flagz", WARNING, "", *lines, ""]))

    async def statusz(self, paths: Sequence[str], request: Request) -> Reply:
        up = max(0, int(self._clock.now() - self._started))
        lines = [
            "",
            "kubelet statusz",
            WARNING,
            "",
            f"Started: {utc(self._started):%a %b %d %H:%M:%S UTC %Y}",
            f"Up: {up // 3600} hr {up % 3600 // 60:02} min {up % 60:02} sec",
            f"Python version: {platform.python_version()}",
            f"Binary version: {self._version}",
            f"Paths: {' '.join(paths)}",
            "",
        ]
        return Response.text("\n".join(lines))

    async def explain(self, request: Request) -> Reply:
        if self._explain is None:
            raise Refused(404, "404 page not found\n")
        namespace, name = request.params["namespace"], request.params["pod"]
        found = self._explain(namespace, name)
        if found is None:
            raise Refused(404, f"this node knows no pod {namespace}/{name}\n")
        return Response.json(msgspec.json.encode(found, enc_hook=str) + b"\n")


PROFILES = ("block", "cmdline", "goroutine", "heap", "profile", "threads")
MEANINGS = """block: stacks that held the event loop up, with milliseconds (enableContentionProfiling)
goroutine: stacks of all tasks
heap: objects by type, their number and bytes
profile?seconds=N: samples, one stack a line
"""
SAMPLE_EVERY = 0.01
MAX_SECONDS = 300.0
DEFAULT_SECONDS = 10.0
STACK_LIMIT = 30


class DebugRoutes:
    def __init__(
        self, *, set_verbosity: Callable[[int], None], clock: Clock, stalls: Callable[[], str] | None = None
    ) -> None:
        """`stalls` is what held the event loop up; None when that is not watched."""
        self._set_verbosity = set_verbosity
        self._clock = clock
        self._stalls = stalls

    async def index(self, request: Request) -> Reply:
        lines = "".join(f"/debug/pprof/{name}\n" for name in PROFILES)
        return Response.text(f"{lines}\n{MEANINGS}")

    async def profile(self, request: Request) -> Reply:
        match request.params["name"]:
            case "block":
                return Response.text(self._stalls() if self._stalls else "enableContentionProfiling is off\n")
            case "heap":
                return Response.text(await host_calls.run(heap_objects, name="counting objects", within=60.0))
            case "cmdline":
                return Response.text("\0".join(sys.argv))
            case "goroutine":
                return Response.text(task_stacks())
            case "threads":
                return Response.text(thread_stacks())
            case "profile":
                return Response.text(await self._samples(_seconds(request)))
        raise Refused(404, "Unknown profile\n")

    async def _samples(self, seconds: float) -> str:
        """Collapsed stacks with counts, the form flame graph tools read."""
        found: Counter[str] = Counter()
        stop = threading.Event()
        watched = threading.get_ident()

        def sample() -> None:
            while not stop.wait(SAMPLE_EVERY):
                if frame := sys._current_frames().get(watched):
                    found[collapsed(frame)] += 1

        thread = threading.Thread(target=sample, name="profile", daemon=True)
        thread.start()
        try:
            await self._clock.sleep(seconds)
        finally:
            stop.set()
        await host_calls.run(thread.join, name="ending a profile", within=10.0)
        return "".join(f"{stack} {count}\n" for stack, count in found.most_common())

    async def verbosity(self, request: Request) -> Reply:
        text = (await request.body(64)).decode(errors="replace").strip()
        if not (text.isascii() and text.isdigit()):
            raise Refused(400, f'error when setting value: strconv.ParseInt: parsing "{text[:20]}": invalid syntax\n')
        self._set_verbosity(int(text))
        return Response.text(f"successfully set klog.logging.verbosity to {int(text)}")


def _seconds(request: Request) -> float:
    text = request.get("seconds")
    if not text:
        return DEFAULT_SECONDS
    if not (text.isascii() and text.isdigit() and 0 < int(text[:9]) <= MAX_SECONDS):
        raise Refused(400, f"seconds must be 1 to {MAX_SECONDS:g}\n")
    return float(text)


def task_stacks() -> str:
    """Every task by name with the chain of what it waits for, outermost first."""
    parts: list[str] = []
    for task in sorted(asyncio.all_tasks(), key=lambda each: each.get_name()):
        parts.append(f"task {task.get_name()}\n" + "".join(f"  {line}\n" for line in _awaited(task.get_coro())))
    return "\n".join(parts)


def _awaited(waiting: Any) -> Iterator[str]:
    for _ in range(STACK_LIMIT):
        frame = next((f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(waiting, name, None))), None)
        if frame is None:
            if waiting is not None:
                yield f"waits for {type(waiting).__name__}"
            return
        yield f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_qualname}"
        links = ("cr_await", "gi_yieldfrom", "ag_await")
        waiting = next((w for name in links if (w := getattr(waiting, name, None)) is not None), None)


def thread_stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts: list[str] = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(ident, ident)}\n" + "".join(traceback.format_stack(frame, STACK_LIMIT)))
    return "\n".join(parts)
