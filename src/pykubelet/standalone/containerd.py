"""A private containerd: own configuration, folders, socket and network, so that it never meets another one.

`PrivateContainerd.start` brings it up or takes over the one that an earlier agent left running; `run` restarts it
when it dies; leaving the agent leaves it alone, because containers must survive the agent; `stop` ends it, on
demand with every container. Does not import images (images.py) and knows no pods.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
import shutil
import socket
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
from pykubelet.standalone import config, daemon
from pykubelet.standalone.cleanup import remove_containers
from pykubelet.standalone.daemon import Daemon
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.images import PAUSE
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.network import PodNetwork
from pykubelet.standalone.programs import RuntimePrograms, run, search_path

logger = logging.getLogger(__name__)

NAMESPACE = "k8s.io"
CAP_SYS_RESOURCE = 24
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LARGEST_LOG = 16 * 1024 * 1024
LAST_LINES, LONGEST_LINE = 12, 400
TROUBLE = re.compile(r"level=(error|fatal)|failed to load plugin|^containerd: |^panic|^Error")
STARTUP_CHECK_PERIOD = 0.02
STEADY = 60.0
"""A containerd that ran this long is not in a crash loop: the next restart is quick again."""


class PrivateContainerd:
    """One containerd of one state folder; a service that restarts it when it dies."""

    name = "containerd"

    def __init__(
        self,
        layout: Layout,
        programs: RuntimePrograms,
        *,
        clock: Clock,
        sandbox_image: str = PAUSE,
        start_within: float = 30.0,
    ) -> None:
        self.layout = layout
        self.network = PodNetwork(layout, programs.iptables)
        self.restarts = 0
        self.adopted = False
        """Whether `start` found it running already."""
        self._programs = programs
        self._clock = clock
        self._sandbox_image = sandbox_image
        self._start_within = start_within
        self._daemon: Daemon | None = None
        self._lock: int | None = None

    @property
    def endpoint(self) -> str:
        return self.layout.endpoint

    @property
    def pid(self) -> int | None:
        return self._daemon.pid if self._daemon is not None else None

    async def __aenter__(self) -> PrivateContainerd:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    async def start(self) -> None:
        """Bring it up, or adopt the running one; returns when it answers CRI calls."""
        if os.geteuid() != 0:
            raise StandaloneError("running containers needs root: start pykubelet as root or with sudo")
        self._prepare()
        try:
            _, facts = await both(self.network.setup(), self._facts())
            await self._write_config_and_adopt(facts)
            if self._daemon is None:
                await self._launch()
        except BaseException:
            self.release()
            raise

    async def run(self) -> None:
        """Restart containerd whenever it ends, until cancelled. Cancelling leaves it running."""
        backoff = Backoff(initial=0.1, maximum=30.0)
        while True:
            if self._daemon is None:
                raise StandaloneError("containerd was not started")
            since = self._clock.monotonic()
            await self._daemon.ended()
            if self._clock.monotonic() - since > STEADY:
                backoff.reset()
            await self._relaunch(backoff)

    async def _relaunch(self, backoff: Backoff) -> None:
        while True:
            delay = backoff.next()
            logger.warning("containerd ended, restarting it", extra={"delay": delay, "log": str(self.layout.log)})
            await self._clock.sleep(delay)
            try:
                await self._launch()
            except StandaloneError as error:
                logger.error("containerd does not come up", extra={"error": str(error)})
            else:
                self.restarts += 1
                return

    async def restart(self) -> None:
        """End and start it; containers go on running."""
        if self._daemon is not None:
            await self._daemon.end(grace=10.0)
        await self._launch()

    async def stop(self, *, containers: bool = False, grace: float = 10.0) -> None:
        """End it. With `containers` also end every container and take the network away; images stay."""
        if self._daemon is None:
            self._daemon = daemon.load(self.layout.pid_file)
        if self._daemon is not None:
            if containers and self._daemon.alive():
                await self._remove_sandboxes()
            await self._daemon.end(grace=grace)
        self._daemon = None
        if containers:
            await remove_containers(self.layout, clock=self._clock)
            await self.network.remove()
        for path in (self.layout.pid_file, self.layout.socket, Path(f"{self.layout.socket}.ttrpc")):
            path.unlink(missing_ok=True)
        self.release()

    def release(self) -> None:
        """Let go of the state folder without ending anything."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def ctr(self, *words: str, stdin: bytes = b"", within: float = 60.0) -> str:
        """Run containerd's own client in the namespace that the CRI uses."""
        command = [str(self._programs.ctr), "-a", str(self.layout.socket), "-n", NAMESPACE, *words]
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

    def _prepare(self) -> None:
        try:
            self.layout.state_dir.mkdir(parents=True, exist_ok=True)
            self.layout.state_dir.chmod(0o711)
            if self._lock is None:
                self._lock = _take_lock(self.layout.lock)
            forget_last_boot(self.layout, BOOT_ID.read_text().strip())
            for folder in self.layout.folders():
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise StandaloneError(f"state folder {self.layout.state_dir}: {error.strerror}") from error

    async def _write_config_and_adopt(self, facts: config.ContainerdFacts) -> None:
        text = config.render(self.layout, facts)
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._daemon = None
        running = daemon.load(self.layout.pid_file)
        self.adopted = running is not None and running.config_digest == self._digest and self._listening()
        if self.adopted:
            self._daemon = running
            logger.info("containerd is running already", extra={"pid": self.pid})
            return
        if running is not None:  # another configuration, or hanging; its containers survive the change
            await running.end(grace=10.0)
        self.layout.config.write_text(text)

    async def _facts(self) -> config.ContainerdFacts:
        _, output = await run([self._programs.containerd, "--version"])
        return config.ContainerdFacts(
            version=parse_version(output),
            sandbox_image=self._sandbox_image,
            runc=self._programs.runc,
            cni_folder=self._programs.cni_folder,
            may_lower_oom_score=has_capability(CAP_SYS_RESOURCE, Path("/proc/self/status").read_text()),
        )

    async def _launch(self) -> None:
        _rotate(self.layout.log)
        begin = self.layout.log.stat().st_size if self.layout.log.exists() else 0
        path = search_path([self._programs.containerd.parent])
        self._daemon = daemon.spawn(
            [self._programs.containerd, "--config", self.layout.config],
            environment={**os.environ, "PATH": path},
            log=self.layout.log,
            config_digest=self._digest,
        )
        self._daemon.save(self.layout.pid_file)
        try:
            async with asyncio.timeout(self._start_within):
                await self._ready(self._daemon)
        except TimeoutError:
            await self._daemon.end(grace=1.0)
            raise self._not_up(f"does not answer after {self._start_within:g} s", begin) from None
        except _Ended:
            raise self._not_up("ended right after its start", begin) from None
        except _NoCri:
            await self._daemon.end(grace=1.0)
            raise self._not_up("could not load its CRI plugin", begin) from None
        except asyncio.CancelledError:
            await self._daemon.end(grace=1.0)
            raise
        logger.info("containerd is up", extra={"pid": self.pid, "socket": str(self.layout.socket)})

    async def _ready(self, process: Daemon) -> None:
        while not (self._listening() and await self._answers_cri()):
            if not process.alive():
                raise _Ended
            await self._clock.sleep(STARTUP_CHECK_PERIOD)

    async def _answers_cri(self) -> bool:
        return await host_calls.run(partial(answers_cri, self.layout.socket), name="asking containerd", within=60.0)

    def _listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as attempt:
            return attempt.connect_ex(str(self.layout.socket)) == 0

    def _not_up(self, what: str, begin: int) -> StandaloneError:
        with self.layout.log.open("rb") as log:
            log.seek(begin)
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


def parse_version(output: str) -> tuple[int, int]:
    """Major and minor from `containerd --version`."""
    for word in output.split():
        if found := re.match(r"v?(\d+)\.(\d+)(\.|$)", word):
            return int(found[1]), int(found[2])
    raise StandaloneError(f"containerd --version says {output.strip()!r}: no version in it")


def has_capability(number: int, status: str) -> bool:
    """From the text of /proc/self/status."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def last_lines(lines: list[str]) -> list[str]:
    """The lines of a log that report errors if there are any, else the last ones."""
    bad = [line for line in lines if TROUBLE.search(line)]
    return [line[:LONGEST_LINE] for line in (bad or lines)[-LAST_LINES:]]


def forget_last_boot(layout: Layout, boot: str) -> None:
    """Remove what describes running containers when the machine was started anew: none of it is true any more."""
    if layout.boot_file.exists() and layout.boot_file.read_text() == boot:
        return
    for folder in (layout.run, layout.ipam_dir):
        shutil.rmtree(folder, ignore_errors=True)
    layout.boot_file.write_text(boot)


def _take_lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise StandaloneError(f"state folder {path.parent}: another pykubelet is using it") from None
    return handle


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.replace(log.with_suffix(".log.1"))
