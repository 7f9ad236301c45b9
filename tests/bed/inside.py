"""Pods whose containers tell what they see: one agent, many small static pods, answers read from their logs.

`pod_manifest` makes a manifest out of a script; `looking_inside` runs a module's pods with one agent, all at once, and
takes them away in the end, when no mount, folder or cgroup of theirs may be left. Every method blocks.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from pykubelet.api.types import PodStatus
from pykubelet.cli.agent_edges import connected_edges
from pykubelet.kubelet import Kubelet, assemble
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.standalone import images
from pykubelet.standalone.packer import File, Image, architecture, pack
from pykubelet.wire import cri_pb2 as cri
from tests.bed.agent import NODE, BedAgent, bed_agent
from tests.bed.crio import BedRuntime
from tests.bed.runtime import BUSYBOX
from tests.grpc_services import Stub

T = TypeVar("T")
Manifest = dict[str, Any]

DONE = "--told--"
REST = "trap 'exit 0' TERM; sleep 100000 & wait"
"""Waits for the end without using up the grace: a first process has no default signal handlers."""
DEADLINE = 120.0
_EVENT = re.compile(
    r'"event" .*?\bobject="(?P<object>[^"]*)" reason="(?P<reason>[^"]*)" message_text=(?P<text>"(?:[^"\\]|\\.)*")'
)


def container_manifest(name: str = "app", script: str = "", *, ends: bool = False, **fields: Any) -> Manifest:
    """A container that runs the script, says that it is done and stays; `ends` lets it end there."""
    # One stream, or what was said before the end may come after it.
    lines = [line for line in ("exec 2>&1", script, f"echo {DONE}", "" if ends else REST) if line]
    container = {"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", "\n".join(lines)]}
    return container | fields


def pod_manifest(
    name: str,
    *containers: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": dict(annotations or {})},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": list(containers), **spec},
    }


@dataclass(frozen=True, slots=True)
class Event:
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a container, as the runtime tells it."""

    id: str
    number: int
    running: bool
    exit_code: int
    started: float
    finished: float


class Inside:
    def __init__(self, agent: BedAgent, containerd: BedRuntime) -> None:
        self.agent = agent
        self.containerd = containerd

    # --- pods -----------------------------------------------------------------------------------

    def put(self, *pods: Manifest) -> None:
        for pod in pods:
            self.agent.put(pod["metadata"]["name"], pod)

    def drop(self, *names: str) -> None:
        for name in names:
            self.agent.drop(name)

    def log(self, pod: str, container: str = "app", run: int = 0) -> str:
        """What a run of a container wrote so far, without the runtime's prefixes."""
        for file in self.agent.pod_logs.glob(f"default_{pod}-{NODE}_*/{container}/{run}.log"):
            try:
                text = file.read_text()
            except FileNotFoundError:  # the agent removes the logs of old runs
                continue
            lines = (line.split(" ", 3) for line in text.splitlines(keepends=True))
            return "".join(words[3] if words[2] == "F" else words[3][:-1] for words in lines if len(words) == 4)
        return ""

    def said(self, pod: str, container: str = "app", run: int = 0) -> str:
        """All that a run of a container said; waits until it is done."""
        self.wait(lambda: f"{DONE}\n" in self.log(pod, container, run), f"{pod}/{container} tells what it sees")
        return self.log(pod, container, run).partition(f"{DONE}\n")[0]

    def told(self, pod: str, container: str = "app", run: int = 0) -> dict[str, str]:
        """The `NAME=value` lines of what was said."""
        lines = (line.partition("=") for line in self.said(pod, container, run).splitlines())
        return {name: value for name, equals, value in lines if equals}

    def has_run(self, pod: str, number: int, container: str = "app") -> bool:
        """Whether that run, or a later one, was begun: only the logs of the newest two are kept."""
        logs = self.agent.pod_logs.glob(f"default_{pod}-{NODE}_*/{container}/*.log")
        return any(int(log.stem) >= number for log in logs)

    # --- events ---------------------------------------------------------------------------------

    def events(self, pod: str) -> list[Event]:
        """Every different event of a pod, in the order they first came."""
        name = f"default/{pod}-{NODE}" if pod else f"node {NODE}"
        found = (match for line in self.agent.log().splitlines() if (match := _EVENT.search(line)))
        return [Event(each["reason"], json.loads(each["text"])) for each in found if each["object"] == name]

    def event(self, pod: str, reason: str, containing: str = "") -> str:
        """The text of the first such event; waits for it."""

        def find() -> list[str]:
            return [each.text for each in self.events(pod) if each.reason == reason and containing in each.text]

        return self.wait(find, f"event {reason} of {pod}, holding {containing!r}; there are {self.events(pod)}")[0]

    def has_event(self, pod: str, reason: str, containing: str = "") -> bool:
        return any(each.reason == reason and containing in each.text for each in self.events(pod))

    # --- the runtime ----------------------------------------------------------------------------

    def runs(self, pod: str, container: str = "app") -> list[Run]:
        """Runs of a container that the runtime still has, oldest first."""
        labels = {"io.kubernetes.pod.name": f"{pod}-{NODE}", "io.kubernetes.container.name": container}
        with grpc.insecure_channel(f"unix:{self.containerd.socket}") as channel:
            stub = Stub(channel, cri, "RuntimeService")
            wanted = cri.ListContainersRequest(filter=cri.ContainerFilter(label_selector=labels))
            found = []
            for each in stub.ListContainers(wanted, timeout=DEADLINE).containers:
                request = cri.ContainerStatusRequest(container_id=each.id)
                try:
                    status = stub.ContainerStatus(request, timeout=DEADLINE).status
                except grpc.RpcError as error:
                    if error.code() is grpc.StatusCode.NOT_FOUND:  # removed since it was listed
                        continue
                    raise
                found.append(
                    Run(
                        id=each.id,
                        number=status.metadata.attempt,
                        running=status.state == cri.ContainerState.CONTAINER_RUNNING,
                        exit_code=status.exit_code,
                        started=status.started_at / 1e9,
                        finished=status.finished_at / 1e9,
                    )
                )
        return sorted(found, key=lambda run: run.number)

    def first_process(self, pod: str, container: str = "app") -> int:
        """The first process of a running container, as this machine numbers it."""

        def running() -> list[str]:  # the program may have spoken before the runtime calls it running
            return [run.id for run in self.runs(pod, container) if run.running]

        ids = self.wait(running, f"{pod}/{container} runs")
        with grpc.insecure_channel(f"unix:{self.containerd.socket}") as channel:
            request = cri.ContainerStatusRequest(container_id=ids[0], verbose=True)
            answer = Stub(channel, cri, "RuntimeService").ContainerStatus(request, timeout=DEADLINE)
        return int(json.loads(answer.info["info"])["pid"])

    # --- waiting --------------------------------------------------------------------------------

    def wait(self, question: Callable[[], T], what: str, within: float = DEADLINE) -> T:
        """The first answer that is not empty."""
        end = time.monotonic() + within
        while True:
            answer = question()
            if answer:
                return answer
            if self.agent.status is not None:
                raise AssertionError(f"the agent ended by itself: {self.agent.tail()}")
            if time.monotonic() > end:
                raise AssertionError(f"not within {within:g} s: {what}\n{self.agent.tail()}")
            time.sleep(0.03)

    def wait_gone(self, pod: str, within: float = DEADLINE) -> None:
        """Until the runtime holds nothing of a pod."""
        self.wait(lambda: not self._sandboxes(pod), f"{pod} is gone", within)

    def _sandboxes(self, pod: str) -> list[str]:
        labels = {"io.kubernetes.pod.name": f"{pod}-{NODE}"}
        with grpc.insecure_channel(f"unix:{self.containerd.socket}") as channel:
            stub = Stub(channel, cri, "RuntimeService")
            wanted = cri.ListPodSandboxRequest(filter=cri.PodSandboxFilter(label_selector=labels))
            return [box.id for box in stub.ListPodSandbox(wanted, timeout=DEADLINE).items]


@contextmanager
def looking_inside(
    folder: Path, containerd: BedRuntime, *pods: Manifest, flags: Sequence[str] = (), **changes: Any
) -> Iterator[Inside]:
    """An agent that runs these pods; when the block ends they go, and nothing of theirs may be left."""
    with bed_agent(folder, containerd, flags=flags, **changes) as agent:
        inside = Inside(agent, containerd)
        inside.put(*pods)
        yield inside
        for manifest in agent.manifests.iterdir():
            manifest.unlink()
        folders = agent.root / "pods"
        inside.wait(lambda: not any(folders.iterdir()), "the folders of all pods are gone")
        inside.wait(lambda: not _pods_among(agent.cgroups.groups()), "the cgroups of all pods are gone")
        left = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folders) in line]
        assert left == [], "mounts left behind"
        assert "Traceback" not in agent.log(), agent.log()


@asynccontextmanager
async def in_this_process(inside: Inside) -> AsyncIterator[Kubelet]:
    """The same agent, but where its statuses can be read; the process of its own takes over again afterwards."""
    inside.agent.stop()
    loaded = load_settings(inside.agent.arguments, environ={})
    assert isinstance(loaded, LoadedSettings)
    try:
        async with connected_edges(loaded.settings) as edges:
            node = assemble(loaded.settings, edges)
            async with node.running():
                yield node
    finally:
        inside.agent.start()


async def status_when(
    node: Kubelet, pod: str, question: Callable[[PodStatus], bool], within: float = 60.0
) -> PodStatus:
    """The status of a pod as soon as the answer is yes."""
    status: PodStatus | None = None
    try:
        async with asyncio.timeout(within):
            while True:
                for each in node.table.pods():
                    if each.metadata.name == f"{pod}-{NODE}":
                        status = node.table.reported_status(each.metadata.uid or "")
                        if status is not None and question(status):
                            return status
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {within:g} s: {pod}; it is {status}") from None


def _pods_among(groups: Mapping[str, set[str]]) -> list[str]:
    return [path for path in groups if re.search(r"/pod[0-9a-f]", f"/{path}")]


def import_image(containerd: BedRuntime, name: str, files: Mapping[str, bytes] | None = None, **fields: Any) -> str:
    """Put a busybox image with changes under `name`; `fields` are those of an image's config."""
    base = images.busybox_image(images.find_busybox())
    entries = base.entries | {path: File(data) for path, data in (files or {}).items()}
    archive = pack(Image(**({"environment": base.environment} | fields), name=name, entries=entries), architecture())
    containerd.load(archive)
    return name
