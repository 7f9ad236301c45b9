"""A node seen from outside, and how it differs from what is wanted: nothing lost, nothing twice, nothing left over.

Looks at the runtime, the agent's folders, cgroups and mounts, at what the agent says about its pods and, in a cluster,
at what the API server says about them. What is wanted is given as pod name -> generation, a label that tells one pod
of a name from the next.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.files import ASIDE
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ContainerRecord, ContainerState, SandboxRecord, SandboxState
from tests.bed.agent import NODE, BedAgent
from tests.bed.parts import blocking
from tests.bed.runtime import BedContainerd

Wanted = Mapping[str, str]
Pod = dict[str, Any]

SHARED_GROUPS = {"kubepods", "kubepods/besteffort", "kubepods/burstable"}
POD_GROUP = re.compile(r"(?:^|/)pod([0-9a-f-]+)(/|$)")
HALF_MADE = re.compile(r"/pause|(\S*/)?runc init|/proc/self/exe init")
OBJECT_ID = re.compile(r"[0-9a-f]{64}")
CHECKPOINTS = ("*_state", "*_checkpoint", "sha256-*")


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """Everything there is, seen without the agent's help but for `told`."""

    sandboxes: list[SandboxRecord]
    containers: list[ContainerRecord]
    pod_folders: set[str]
    log_folders: set[str]
    log_links: set[str]
    groups: dict[str, set[str]]
    """Cgroup -> commands running in it."""
    mounts: list[str]
    """Mount points in the agent's folders."""
    runtime_mounts: list[str]
    files: list[str]
    """Files of the agent that are damaged or half written."""
    told: Sequence[Pod]
    """Pods as the agent's server shows them."""
    api: Sequence[Pod] | None = None
    """Pods as the API server shows them; None without one."""


def look(agent: BedAgent, containerd: BedContainerd, api: Sequence[Pod] | None) -> NodeSnapshot:
    """CriError or OSError when the runtime or the agent does not answer."""
    told = told_pods(agent)
    sandboxes, containers = blocking(listing(containerd.endpoint))
    return NodeSnapshot(
        sandboxes=sandboxes,
        containers=containers,
        pod_folders=names(agent.root / "pods"),
        log_folders=names(agent.pod_logs),
        log_links=names(agent.pod_logs.parent / "containers"),
        groups=agent.cgroups.groups(),
        mounts=mounts_below(agent.root.parent),
        runtime_mounts=mounts_below(containerd.state_dir),
        files=list(spoiled_files(agent.root)),
        told=told,
        api=api,
    )


def told_pods(agent: BedAgent) -> list[Pod]:
    """What its server answers. OSError when it does not."""
    url = f"https://127.0.0.1:{agent.settings['port']}/pods"
    with urllib.request.urlopen(url, context=ssl._create_unverified_context(), timeout=10) as answer:
        found: list[Pod] = json.load(answer)["items"] or []
        return found


def violations(wanted: Wanted, world: NodeSnapshot, *, runtime_killed: bool) -> list[str]:
    """How the world differs from what is wanted."""
    found = []
    uids: set[str] = set()
    running: dict[str, str] = {}
    for name, generation in wanted.items():
        ready = [
            box
            for box in world.sandboxes
            if plain(box.pod_name) == name
            and box.state is SandboxState.READY
            and box.labels.get("generation") == generation
        ]
        uids |= {box.pod_uid for box in ready}
        boxes = {box.id for box in ready}
        inside = [c for c in world.containers if c.sandbox_id in boxes and c.state is ContainerState.RUNNING]
        if len(ready) != 1:
            found.append(f"pod {name}: {len(ready)} ready sandboxes")
        if len(inside) != 1:
            found.append(f"pod {name}: {len(inside)} running containers")
        running.update((name, each.id) for each in inside)
    found += untrue(wanted, running, world.told, "the agent")
    if world.api is not None:
        found += untrue(wanted, running, world.api, "the API server")
    return found + left_overs(uids, world, runtime_killed) + [f"file {path} is damaged" for path in world.files]


def untrue(wanted: Wanted, running: Mapping[str, str], told: Sequence[Pod], who: str) -> Iterator[str]:
    """What somebody says about pods that is not so."""
    counts = Counter(plain(pod["metadata"]["name"]) for pod in told)
    yield from (f"{who} shows {count} pods {name}" for name, count in counts.items() if count > 1)
    yield from (f"{who} shows the pod {name}, which is not wanted" for name in counts.keys() - wanted.keys())
    yield from (f"{who} does not show the pod {name}" for name in wanted.keys() - counts.keys())
    for pod in told:
        name, status = plain(pod["metadata"]["name"]), pod.get("status", {})
        shown = [each for each in status.get("containerStatuses") or () if "running" in each.get("state", {})]
        ids = [each.get("containerID", "").rpartition("/")[2] for each in shown if each.get("ready")]
        if name not in wanted:
            continue
        if (shown_as := pod["metadata"].get("labels", {}).get("generation")) != wanted[name]:
            yield f"{who} shows generation {shown_as} of {name} instead of {wanted[name]}"
        if status.get("phase") != "Running" or ids != [running.get(name)]:
            yield f"{who} says {name} is {status.get('phase')} with {[id[:12] for id in ids]} ready"


def left_overs(uids: set[str], world: NodeSnapshot, runtime_killed: bool) -> list[str]:
    found = [
        f"sandbox {box.id[:12]} of {box.pod_name} ({box.state.name}, uid {box.pod_uid}) is left over"
        for box in world.sandboxes
        if box.pod_uid not in uids
    ]
    dead = [c for c in world.containers if c.pod_uid in uids and c.state is not ContainerState.RUNNING]
    # One dead container of each pod may stay, for its log, and with it the sandbox it is in.
    kept = {c.sandbox_id for c in dead}
    old = [box for box in world.sandboxes if box.pod_uid in uids and box.state is not SandboxState.READY]
    found += [f"sandbox {box.id[:12]} of {box.pod_name} is left over" for box in old if box.id not in kept]
    counts = Counter(c.pod_name for c in dead)
    found += [f"pod {name}: {count} dead containers" for name, count in counts.items() if count > 1]
    found += [
        f"container {c.id[:12]} of {c.pod_name} is left over ({c.state.name})"
        for c in world.containers
        if c.pod_uid not in uids
    ]
    found += [f"pod folder {uid} is left over" for uid in world.pod_folders - uids]
    found += [f"log folder {name} is left over" for name in world.log_folders if name.rpartition("_")[2] not in uids]
    known = {c.id for c in world.containers} | {box.id for box in world.sandboxes}
    found += [f"log link {link} is left over" for link in world.log_links if not known & set(OBJECT_ID.findall(link))]
    found += [f"cgroup {text} is left over" for text in left_groups(uids, known, world, runtime_killed)]
    return found + list(left_mounts(uids, known, world, runtime_killed))


def left_groups(uids: set[str], known: set[str], world: NodeSnapshot, runtime_killed: bool) -> Iterator[str]:
    for group, commands in world.groups.items():
        owner, ids = POD_GROUP.search(group), set(OBJECT_ID.findall(group))
        wanted = owner is not None and owner[1] in uids
        # A runtime that dies while it makes a sandbox forgets it; what it made goes with the cgroup of the pod.
        forgotten = wanted and runtime_killed and all(HALF_MADE.match(command) for command in commands)
        if group not in SHARED_GROUPS and not (wanted and ids <= known) and not forgotten:
            yield f"{group} {sorted(commands) or ''}"


def left_mounts(uids: set[str], known: set[str], world: NodeSnapshot, runtime_killed: bool) -> Iterator[str]:
    own = {point for point in world.mounts if not any(f"/pods/{uid}/" in point for uid in uids)}
    spaces = [point for point in world.runtime_mounts if "/netns/" in point]
    # A runtime that dies while it makes a sandbox forgets its mounts and network namespace; no agent can know them.
    if not runtime_killed:
        own |= {point for point in world.runtime_mounts if set(OBJECT_ID.findall(point)) - known}
        if len(spaces) > len(world.sandboxes):
            yield f"{len(spaces)} network namespaces for {len(world.sandboxes)} sandboxes"
    for point in own:
        yield f"mount {point} is left over"


def changed(first: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    return [
        f"pod {name} was restarted: {id[:12]} became {now.get(name, 'nothing')[:12]}"
        for name, id in first.items()
        if now.get(name) != id
    ]


def spoiled_files(root: Path) -> Iterator[str]:
    """Checkpoints that cannot be read or were set aside, and files whose writing was never finished."""
    for folder, below, files in os.walk(root):
        if folder == str(root) and "pods" in below:
            below.remove("pods")  # what is in there belongs to the pods
        for path in sorted(Path(folder, name) for name in files):
            if path.name.endswith(ASIDE) or (path.name.startswith(".") and path.name.endswith(".tmp")):
                yield str(path.relative_to(root))
            elif any(path.match(pattern) for pattern in CHECKPOINTS):
                try:
                    json.loads(path.read_bytes())
                except FileNotFoundError:
                    continue  # replaced or removed meanwhile
                except ValueError as error:
                    yield f"{path.relative_to(root)} ({error})"


async def listing(endpoint: str) -> tuple[list[SandboxRecord], list[ContainerRecord]]:
    async with GrpcCriClient(endpoint, clock=SystemClock(), request_timeout=10) as cri:
        return list(await cri.list_pod_sandboxes()), list(await cri.list_containers())


async def refused_removals(endpoint: str, containers: list[ContainerRecord]) -> set[str]:
    """Ended containers that cannot be removed by anybody; the others are gone afterwards."""
    refused = set()
    async with GrpcCriClient(endpoint, clock=SystemClock(), request_timeout=10) as cri:
        for container in containers:
            if container.state is ContainerState.EXITED:
                try:
                    await cri.remove_container(container.id)
                except CriError as error:
                    if "cannot delete running task" in str(error):
                        refused.add(container.id)
    return refused


def plain(pod_name: str) -> str:
    """A static pod's name as its manifest has it."""
    return pod_name.removesuffix(f"-{NODE}")


def names(folder: Path) -> set[str]:
    return set(os.listdir(folder)) if folder.exists() else set()


def mounts_below(folder: Path) -> list[str]:
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]
