"""The node under attack: plays rounds of `plan.py` on a real agent and runtime and waits until all came to rest.

Used by the quick test (tests/node/test_chaos.py) and by the long run (bench/endurance.py). The agent's pods and their
logs are on a small disk that can be filled, its wall clock can be set, and in a cluster there is a wire to the API
server that can go silent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pykubelet.model.errors import CriError
from pykubelet.model.runtime_status import ContainerState
from tests.bed.agent import NODE, BedAgent, bed_agent
from tests.bed.chaos.plan import ALONE, CLUSTER, Round, Step, is_api_pod
from tests.bed.chaos.world import NodeSnapshot, Pod, changed, look, plain, refused_removals, violations
from tests.bed.cluster import Cluster
from tests.bed.parts import blocking
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.bed.silence import SilentWire, silent_wire
from tests.bed.small_disk import small_disk
from tests.bed.stepped_clock import SteppedClock
from tests.bed.watching import Watching, watching

WITHIN = 75.0
"""Seconds in which everything must have come to rest: longer than the period of any garbage collection."""
LOOK_PAUSE = 0.3
DISK = 48
"""Size of the agent's disk in megabytes."""
STAY = "trap 'exit 0' TERM; echo up; sleep 100000 & wait"
STUBBORN = "trap '' TERM; echo up; while :; do sleep 1; done"
NAMESPACE = "default"
SETTINGS = {
    # A container that is made to crash again and again must not hold up the round.
    "featureGates": {"KubeletCrashLoopBackOffMax": True},
    "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
}


class ApiSide:
    """The API server of the node, the wire to it, and what it says."""

    def __init__(self, cluster: Cluster, wire: SilentWire, pods: Watching, nodes: Watching) -> None:
        self.cluster, self.wire, self._pods, self._nodes = cluster, wire, pods, nodes

    def pods(self) -> list[Pod]:
        return list(self._pods.objects.values())

    def problems(self) -> list[str]:
        conditions = self._nodes.objects.get(NODE, {}).get("status", {}).get("conditions", ())
        ready = [each["status"] for each in conditions if each["type"] == "Ready"]
        return [] if ready == ["True"] else [f"the API server says about the node: Ready {ready}"]


class Chaos:
    """The node, and what is wanted of it."""

    def __init__(self, agent: BedAgent, containerd: BedContainerd, clock: SteppedClock, api: ApiSide | None) -> None:
        self.agent, self.containerd, self.clock, self.api = agent, containerd, clock, api
        self.troubles = ALONE if api is None else (*ALONE, *CLUSTER)
        self.wanted: dict[str, str] = {}
        self.runtime_killed = False
        """From then on what the runtime forgot is not looked for."""
        self.refused = 0
        """Ended containers that the runtime would not let go until it was restarted."""
        self.awaited: list[str] = []
        """What the last rest had to wait for to the end."""
        self._ids: dict[str, str] = {}
        """Running containers by pod name, when all was at rest."""
        self._disturbed: set[str] = set()
        """Pods whose containers may be others since then."""
        self._ended: list[str] = []
        self._filling = agent.disk / "filling"
        self._actions: Mapping[str, Callable[[], object]] = {
            "kill agent": self._kill_agent,
            "start agent": self.agent.start,
            "kill runtime": self._kill_runtime,
            "start runtime": self.containerd.restart,
            "freeze runtime": lambda: os.kill(self.containerd.pid, signal.SIGSTOP),
            "thaw runtime": lambda: os.kill(self.containerd.pid, signal.SIGCONT),
            "fill disk": self._fill,
            "empty disk": self._empty,
            "cut network": lambda: self._api.wire.cut(hold=True),
            "mend network": lambda: self._api.wire.mend(reset=True),
            "freeze API server": lambda: self._api.cluster.apiserver.signal(signal.SIGSTOP),
            "thaw API server": lambda: self._api.cluster.apiserver.signal(signal.SIGCONT),
        }

    @property
    def _api(self) -> ApiSide:
        assert self.api is not None, "this node has no API server"
        return self.api

    # --- what happens -------------------------------------------------------------------------------

    def want(self, pods: Mapping[str, str]) -> None:
        """Begin with these."""
        for name, generation in pods.items():
            self._add(Step(0.0, "add", name, generation))

    def drop_all(self) -> None:
        for name in list(self.wanted):
            self._drop(name)

    def play(self, round: Round) -> list[str]:
        """All steps at their times; what went wrong already."""
        began = time.monotonic()
        for step in round.steps:
            time.sleep(max(0.0, began + step.at - time.monotonic()))
            self._act(step)
        if (ended := self.agent.status) is not None:
            self._ended.append(f"the agent ended by itself with status {ended}")
            self.agent.kill9()
            self.agent.start()
        found, self._ended = self._ended, []
        return found

    def _act(self, step: Step) -> None:
        if step.what == "add":
            self._add(step)
        elif step.what == "drop":
            self._drop(step.name)
        elif step.what == "crash":
            self._crash(step.name)
        elif step.what == "step clock":
            self.clock.set(step.seconds)
        else:
            self._actions[step.what]()

    def _add(self, step: Step) -> None:
        pod = manifest(step.name, step.generation, step.flavour)
        if is_api_pod(step.name):
            pod["spec"]["nodeName"] = NODE
            self._api.cluster.apply(pod)
        else:
            self.agent.put(step.name, pod)
        self.wanted[step.name] = step.generation
        self._disturbed.add(step.name)

    def _drop(self, name: str) -> None:
        if is_api_pod(name):
            self._api.cluster.kubectl("delete", "pod", name, "--wait=false")
        else:
            self.agent.drop(name)
        del self.wanted[name]
        self._disturbed.add(name)

    def _crash(self, name: str) -> None:
        self._disturbed.add(name)
        if name not in self._ids:
            return  # it came after the last time of rest
        for pid in self.agent.cgroups.processes(self._ids[name]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _kill_agent(self) -> None:
        if (ended := self.agent.status) is not None:
            self._ended.append(f"the agent ended by itself with status {ended}")
        self.agent.kill9()

    def _kill_runtime(self) -> None:
        self.runtime_killed = True
        self.containerd.kill()

    def _fill(self) -> None:
        with self._filling.open("wb") as file:
            step = 1 << 20
            size = 0
            while step >= 512:
                try:
                    os.posix_fallocate(file.fileno(), size, step)
                    size += step
                except OSError:
                    step //= 2

    def _empty(self) -> None:
        self._filling.unlink(missing_ok=True)
        folder = os.open(self.agent.disk, os.O_RDONLY)
        try:
            os.fsync(folder)  # what is freed can be used when the journal has it
        finally:
            os.close(folder)

    # --- whether all is well ------------------------------------------------------------------------

    def settled(self) -> list[str]:
        """The violations that are still there after all had time to come to rest."""
        deadline = time.monotonic() + WITHIN
        self.awaited = []
        while (found := self.violations()) and time.monotonic() < deadline and self.agent.status is None:
            self.awaited = found
            time.sleep(LOOK_PAUSE)
        if found and self.agent.status is None:
            found = self._without_refused(found)
        if self.agent.status is not None:
            found.append(f"the agent ended by itself with status {self.agent.status}")
        now = self.ids()
        kept = {name: id for name, id in self._ids.items() if name in self.wanted and name not in self._disturbed}
        self._ids = now
        self._disturbed.clear()
        return found + changed(kept, now)

    def violations(self) -> list[str]:
        try:
            found = violations(self.wanted, self.look(), runtime_killed=self.runtime_killed)
        except CriError as error:
            return [f"the runtime cannot be read: {error}"]
        except OSError as error:
            return [f"the agent does not answer: {error}"]
        return found + (self.api.problems() if self.api is not None else [])

    def _without_refused(self, found: list[str]) -> list[str]:
        """The violations, less the ended containers that the runtime gives to nobody.

        containerd 1.6 whose caller dies in the middle of a start may keep the task of a container it calls ended,
        and then refuses to remove it until it is restarted. Whatever we can remove here the agent could have, too.
        """
        containers = self.look().containers
        refused = blocking(refused_removals(self.containerd.endpoint, containers))
        if refused:
            self.refused += len(refused)
            print(f"containerd refuses to remove ended containers: {sorted(refused)}")
            self.runtime_killed = True
            self.containerd.restart()
        boxes = {c.sandbox_id for c in containers if c.id in refused}
        return [text for text in found if not any(id[:12] in text for id in refused | boxes)]

    def look(self) -> NodeSnapshot:
        return look(self.agent, self.containerd, self.api.pods() if self.api is not None else None)

    def ids(self) -> dict[str, str]:
        """Running containers by pod name."""
        try:
            containers = self.look().containers
        except (CriError, OSError):
            return {}  # told as a violation already
        return {plain(c.pod_name): c.id for c in containers if c.state is ContainerState.RUNNING}


def manifest(name: str, generation: str, flavour: str = "") -> dict[str, Any]:
    command = STUBBORN if flavour == "stubborn" else STAY
    container: dict[str, Any] = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", command]}
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    if flavour == "volumes":
        labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
        spec["volumes"] = [
            {"name": "disk", "emptyDir": {}},
            {"name": "memory", "emptyDir": {"medium": "Memory"}},
            {"name": "about", "downwardAPI": {"items": [labels]}},
        ]
        container["volumeMounts"] = [{"name": v["name"], "mountPath": f"/{v['name']}"} for v in spec["volumes"]]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"generation": generation}},
        "spec": spec,
    }


@contextmanager
def chaos_node(containerd: BedContainerd, cluster: Cluster | None = None) -> Iterator[Chaos]:
    """A started agent, in the cluster if there is one, that wants no pods yet."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pkc-")))
        disk = stack.enter_context(small_disk(DISK))
        clock = SteppedClock(folder)
        api, kubeconfig = None, None
        if cluster is not None:
            wire = stack.enter_context(silent_wire(cluster.port))
            kubeconfig = cluster.node_kubeconfig(NODE, port=wire.port)
            pods = stack.enter_context(watching(cluster, "/api/v1/pods"))
            nodes = stack.enter_context(watching(cluster, "/api/v1/nodes"))
            stack.callback(_leave_cluster, cluster)
            api = ApiSide(cluster, wire, pods, nodes)
        agent = stack.enter_context(
            bed_agent(folder, containerd, kubeconfig=kubeconfig, program=clock.program, disk=disk, **SETTINGS)
        )
        yield Chaos(agent, containerd, clock, api)


def _leave_cluster(cluster: Cluster) -> None:
    cluster.kubectl("delete", "pod", "--all", "--force", "--grace-period=0", check=False)
    cluster.kubectl("delete", "node", NODE, "--ignore-not-found")
