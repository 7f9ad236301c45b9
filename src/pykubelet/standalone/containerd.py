"""A private containerd: own configuration, folders, socket and network, so that it never meets another one.

`PrivateContainerd.start` brings it up or takes over the one that an earlier agent left running; its process is
launch.py's and may have been launched before. `run` restarts it when it dies; leaving the agent leaves it alone,
because containers must survive the agent; `stop` ends it, on demand with every container. Does not import images
(images.py) and knows no pods.
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from pathlib import Path
from types import TracebackType

import grpc

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.backoff import Backoff
from pykubelet.kit.clock import Clock
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import both, gather_all
from pykubelet.model.errors import CriError
from pykubelet.standalone import daemon
from pykubelet.standalone.cleanup import remove_containers
from pykubelet.standalone.daemon import Daemon
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.launch import ContainerdLaunch
from pykubelet.standalone.network import PodNetwork
from pykubelet.standalone.programs import run

logger = logging.getLogger(__name__)

NAMESPACE = "k8s.io"
LAST_LINES, LONGEST_LINE = 12, 400
TROUBLE = re.compile(r"level=(error|fatal)|failed to load plugin|^containerd: |^panic|^Error")
STARTUP_CHECK_PERIOD = 0.02
STEADY = 60.0
"""A containerd that ran this long is not in a crash loop: the next restart is quick again."""


class PrivateContainerd:
    """One containerd of one state folder; a service that restarts it when it dies."""

    name = "containerd"

    def __init__(self, launch: ContainerdLaunch, *, clock: Clock, start_within: float = 30.0) -> None:
        self.layout = launch.layout
        self.network = PodNetwork(launch.layout, launch.programs.iptables)
        self.restarts = 0
        self._launch = launch
        self._clock = clock
        self._start_within = start_within

    @property
    def endpoint(self) -> str:
        return self.layout.endpoint

    @property
    def adopted(self) -> bool:
        """Whether it was running already."""
        return self._launch.adopted

    @property
    def pid(self) -> int | None:
        return self._launch.daemon.pid if self._launch.daemon is not None else None

    async def __aenter__(self) -> PrivateContainerd:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def start(self) -> None:
        """Bring it up, unless that was begun before, or adopt the running one; returns when it answers CRI calls."""
        if not self._launch.is_begun:
            self._launch.begin()
        try:
            await both(self.network.setup(), self._come_up())
        except BaseException:
            await self._end_launched()
            self.release()
            raise

    async def _come_up(self) -> None:
        if self._launch.adopted:
            logger.info("containerd is running already", extra={"pid": self.pid})
        elif self._launch.outdated is not None:  # its containers survive the change
            await self._launch.outdated.end(grace=10.0)
            self._launch.launch()
        await self._until_ready()

    async def run(self) -> None:
        """Restart containerd whenever it ends, until cancelled. Cancelling leaves it running."""
        backoff = Backoff(initial=0.1, maximum=30.0)
        while True:
            if self._launch.daemon is None:
                raise StandaloneError("containerd was not started")
            since = self._clock.monotonic()
            await self._launch.daemon.ended()
            if self._clock.monotonic() - since > STEADY:
                backoff.reset()
            await self._relaunch(backoff)

    async def _relaunch(self, backoff: Backoff) -> None:
        while True:
            delay = backoff.next()
            logger.warning("containerd ended, restarting it", extra={"delay": delay, "log": str(self.layout.log)})
            await self._clock.sleep(delay)
            try:
                await self._relaunched()
            except StandaloneError as error:
                logger.error("containerd does not come up", extra={"error": str(error)})
            else:
                self.restarts += 1
                return

    async def restart(self) -> None:
        """End and start it; containers go on running."""
        if self._launch.daemon is not None:
            await self._launch.daemon.end(grace=10.0)
        await self._relaunched()

    async def stop(self, *, containers: bool = False, grace: float = 10.0) -> None:
        """End it. With `containers` also end every container and take the network away; images stay."""
        running = self._launch.daemon or daemon.load(self.layout.pid_file)
        if running is not None:
            if containers and running.alive():
                await self._remove_sandboxes()
            await running.end(grace=grace)
        self._launch.daemon = None
        if containers:
            await remove_containers(self.layout, clock=self._clock)
            await self.network.remove()
        for path in (self.layout.pid_file, self.layout.socket, Path(f"{self.layout.socket}.ttrpc")):
            path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Let go of the state folder without ending anything."""
        self._launch.release()

    async def ctr(self, *words: str, stdin: bytes = b"", within: float = 60.0) -> str:
        """Run containerd's own client in the namespace that the CRI uses."""
        command = [str(self._launch.programs.ctr), "-a", str(self.layout.socket), "-n", NAMESPACE, *words]
        return (await run(command, stdin=stdin, within=within))[1]

    async def _remove_sandboxes(self, within: float = 20.0) -> None:
        """The polite way to end all pods: containerd forgets them, too. What resists is removed without asking it."""
        try:
            async with asyncio.timeout(within), GrpcCriClient(self.endpoint, clock=self._clock) as cri:
                sandboxes = await cri.list_pod_sandboxes()
                await gather_all(*[cri.stop_pod_sandbox(sandbox.id) for sandbox in sandboxes])
                await gather_all(*[cri.remove_pod_sandbox(sandbox.id) for sandbox in sandboxes])
        except (CriError, TimeoutError) as error:
            logger.warning("containerd does not remove its pods", extra={"error": str(error)})

    async def _relaunched(self) -> None:
        self._launch.launch()
        await self._until_ready()

    async def _until_ready(self) -> None:
        """Wait until the process answers; one that we launched and that does not is ended."""
        process = self._launch.daemon
        assert process is not None
        try:
            async with asyncio.timeout(self._start_within):
                await self._ready(process)
        except TimeoutError:
            await self._end_launched()
            raise self._not_up(f"does not answer after {self._start_within:g} s") from None
        except _Ended:
            raise self._not_up("ended right after its start") from None
        except _NoCri:
            await self._end_launched()
            raise self._not_up("could not load its CRI plugin") from None
        except asyncio.CancelledError:
            await self._end_launched()
            raise
        logger.info("containerd is up", extra={"pid": self.pid, "socket": str(self.layout.socket)})

    async def _end_launched(self) -> None:
        if self._launch.daemon is not None and not self.adopted:
            await self._launch.daemon.end(grace=1.0)

    async def _ready(self, process: Daemon) -> None:
        while not (self._launch.is_listening() and await self._answers_cri()):
            if not process.alive():
                raise _Ended
            await self._clock.sleep(STARTUP_CHECK_PERIOD)

    async def _answers_cri(self) -> bool:
        return await host_calls.run(partial(answers_cri, self.layout.socket), name="asking containerd", within=60.0)

    def _not_up(self, what: str) -> StandaloneError:
        with self.layout.log.open("rb") as log:
            log.seek(self._launch.log_begin)
            lines = log.read().decode(errors="replace").splitlines()
        shown = "".join(f"\n  {line}" for line in last_lines(lines))
        return StandaloneError(f"containerd {what}; the end of {self.layout.log}:{shown or ' (empty)'}")


class _Ended(Exception):
    """The process being waited for is gone."""


class _NoCri(Exception):
    """containerd is up without its CRI part."""


def answers_cri(path: Path, within: float = 5.0) -> bool:
    """Whether the CRI part is up, too: the socket answers a little before it. Blocking.

    containerd goes on without a part that failed to load; without this one it is of no use, and waiting is in vain.
    """
    # A pool of its own: a new attempt must not inherit the back-off of the one before.
    with grpc.insecure_channel(f"unix:{path}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
        status = channel.unary_unary("/runtime.v1.RuntimeService/Status", None, None)  # an empty message is no bytes
        try:
            status(b"", timeout=within)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise _NoCri from None
            return False
        return True


def last_lines(lines: list[str]) -> list[str]:
    """The lines of a log that report errors if there are any, else the last ones."""
    bad = [line for line in lines if TROUBLE.search(line)]
    return [line[:LONGEST_LINE] for line in (bad or lines)[-LAST_LINES:]]
