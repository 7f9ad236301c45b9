"""Chaos: pods come and go while the agent is killed at random moments, then while containerd is.

Afterwards the world must be exactly what the manifests say: nothing lost, nothing twice, nothing left over. The
random moments come from a fixed seed; the machine adds its own, so a violation may need several runs to come back.
PYKUBELET_CHAOS_SEED, PYKUBELET_CHAOS_ROUNDS and PYKUBELET_CHAOS_RUNTIME_ROUNDS change them.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ContainerRecord, ContainerState, SandboxRecord, SandboxState
from tests.bed.agent import NODE, BedAgent, bed_agent
from tests.bed.parts import blocking
from tests.bed.runtime import BUSYBOX, BedContainerd, running_containerd

pytestmark = [pytest.mark.node, pytest.mark.slow]

SEED = int(os.environ.get("PYKUBELET_CHAOS_SEED", "4"))
ROUNDS = int(os.environ.get("PYKUBELET_CHAOS_ROUNDS", "25"))
RUNTIME_ROUNDS = int(os.environ.get("PYKUBELET_CHAOS_RUNTIME_ROUNDS", "5"))
LONG_LIVED = [f"keep-{number}" for number in range(4)]
CHURN = [f"churn-{number}" for number in range(8)]
WITHIN = 75.0
"""Seconds in which everything must have come to rest: longer than the period of any garbage collection."""
STAY = "trap 'exit 0' TERM; echo up; sleep 100000 & wait"
STUBBORN = "trap '' TERM; echo up; while :; do sleep 1; done"
SHARED_GROUPS = {"kubepods", "kubepods/besteffort", "kubepods/burstable"}
POD_GROUP = re.compile(r"(?:^|/)pod([0-9a-f-]+)(/|$)")
HALF_MADE = re.compile(r"/pause|(\S*/)?runc init|/proc/self/exe init")
OBJECT_ID = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """Everything there is, seen without the agent."""

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


@dataclass(slots=True)
class Chaos:
    """The node under attack, and what is wanted of it."""

    agent: BedAgent
    containerd: BedContainerd
    dice: random.Random = field(default_factory=lambda: random.Random(SEED))
    wanted: dict[str, str] = field(default_factory=dict)
    """Pod name -> generation, a label that tells one pod of a name from the next."""

    def add(self, name: str) -> None:
        # Two generations only: a pod often comes back with the very UID of the one that is just going.
        generation = str(self.dice.randrange(2))
        command = STUBBORN if self.dice.random() < 0.3 else STAY
        self.agent.put(name, manifest(name, generation, command))
        self.wanted[name] = generation

    def churn(self) -> None:
        """Some pods come, some go, some are replaced, all at once."""
        for name in self.dice.sample(CHURN, self.dice.randrange(1, 5)):
            if name in self.wanted and self.dice.random() < 0.7:
                self.agent.drop(name)
                del self.wanted[name]
            else:
                self.add(name)

    def pause(self, least: float, most: float) -> None:
        time.sleep(self.dice.uniform(least, most))

    def kill_agent_round(self, number: int) -> list[str]:
        self.churn()
        self.pause(0.0, 0.8)
        ended = self.agent.status
        self.agent.kill9()
        if self.dice.random() < 0.5:
            self.churn()
        self.agent.start()
        # A third of the time so short that the next kill hits the agent while it starts.
        self.pause(0.0, 0.8) if self.dice.random() < 0.33 else self.pause(0.8, 1.8)
        return [] if ended is None else [f"round {number}: the agent ended by itself with status {ended}"]

    def kill_containerd_round(self, number: int) -> list[str]:
        self.churn()
        self.pause(0.0, 0.6)
        self.containerd.kill()
        if self.dice.random() < 0.5:
            self.churn()
        self.pause(0.0, 1.0)
        self.containerd.restart()
        self.pause(0.3, 1.5)
        ended = self.agent.status
        return [] if ended is None else [f"containerd round {number}: the agent ended by itself with status {ended}"]

    def settled(self, *, runtime_killed: bool = False) -> list[str]:
        """The violations that are still there after all had time to come to rest."""
        began, found = time.monotonic(), ["nothing could be read"]
        while found and time.monotonic() < began + WITHIN and self.agent.status is None:
            time.sleep(0.5)
            try:
                found = violations(self.wanted, self.look(), runtime_killed=runtime_killed)
            except CriError as error:
                found = [f"the runtime cannot be read: {error}"]
        if found:
            found = self.without_refused(runtime_killed)
        if self.agent.status is not None:
            found.append(f"the agent ended by itself with status {self.agent.status}")
        print(f"{len(found)} violations after {time.monotonic() - began:.1f} s, pods wanted: {len(self.wanted)}")
        return found

    def without_refused(self, runtime_killed: bool) -> list[str]:
        """The violations, less the ended containers that the runtime gives to nobody.

        containerd 1.6 whose caller dies in the middle of a start may keep the task of a container it calls ended,
        and then refuses to remove it until it is restarted. Whatever we can remove here the agent could have, too.
        """
        world = self.look()
        found = violations(self.wanted, world, runtime_killed=runtime_killed)
        refused = blocking(refused_removals(self.containerd.endpoint, world.containers))
        if refused:
            print(f"containerd refuses to remove ended containers: {sorted(refused)}")
        boxes = {c.sandbox_id for c in world.containers if c.id in refused}
        return [text for text in found if not any(id[:12] in text for id in refused | boxes)]

    def look(self) -> NodeSnapshot:
        sandboxes, containers = blocking(listing(self.containerd.endpoint))
        return NodeSnapshot(
            sandboxes=sandboxes,
            containers=containers,
            pod_folders=names(self.agent.root / "pods"),
            log_folders=names(self.agent.pod_logs),
            log_links=names(self.agent.folder / "containers"),
            groups=self.agent.cgroups.groups(),
            mounts=mounts_below(self.agent.folder),
            runtime_mounts=mounts_below(self.containerd.state_dir),
        )

    def ids(self) -> dict[str, str]:
        """Running containers of long-lived pods by pod name."""
        running = [c for c in self.look().containers if c.state is ContainerState.RUNNING]
        return {pod: c.id for c in running if (pod := plain(c.pod_name)) in LONG_LIVED}


@pytest.fixture
def own_containerd() -> Iterator[BedContainerd]:
    """Not the shared one: it is going to be killed."""
    with running_containerd() as running:
        yield running


def test_nothing_is_lost_doubled_or_left_over(own_containerd: BedContainerd, tmp_path: Path) -> None:
    with bed_agent(tmp_path, own_containerd) as agent:
        chaos = Chaos(agent, own_containerd)
        for name in LONG_LIVED:
            chaos.add(name)
        fail_on(chaos, "before any harm was done", chaos.settled())
        first = chaos.ids()

        found = [text for number in range(ROUNDS) for text in chaos.kill_agent_round(number)]
        found += chaos.settled() + changed(first, chaos.ids())
        fail_on(chaos, f"after {ROUNDS} kills of the agent", found)

        found = [text for number in range(RUNTIME_ROUNDS) for text in chaos.kill_containerd_round(number)]
        found += chaos.settled(runtime_killed=True) + changed(first, chaos.ids())
        fail_on(chaos, f"after {RUNTIME_ROUNDS} kills of containerd", found)

        for name in list(chaos.wanted):
            agent.drop(name)
            del chaos.wanted[name]
        fail_on(chaos, "after the last manifest went", chaos.settled(runtime_killed=True))
        assert agent.stop() == 0


def fail_on(chaos: Chaos, when: str, found: list[str]) -> None:
    if found:
        listed = "".join(f"\n  - {text}" for text in found)
        pytest.fail(
            f"{len(found)} violations {when} (seed {SEED}):{listed}\nthe agent's last lines:\n{chaos.agent.tail()}",
            pytrace=False,
        )


def violations(wanted: dict[str, str], world: NodeSnapshot, *, runtime_killed: bool) -> list[str]:
    """How the world differs from what is wanted."""
    found = []
    uids: set[str] = set()
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
    return found + left_overs(uids, world, runtime_killed)


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


def changed(first: dict[str, str], now: dict[str, str]) -> list[str]:
    return [
        f"pod {name} was restarted: {id[:12]} became {now.get(name, 'nothing')[:12]}"
        for name, id in first.items()
        if now.get(name) != id
    ]


def manifest(name: str, generation: str, command: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "chaos", "labels": {"generation": generation}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command]}],
        },
    }


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
