"""A node of the test cluster: the agent process, the API server's view of it, and what the runtime says.

Tests create objects as users do (kubectl) and wait on watches. Everything a test made is deleted before the next one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.model.runtime_status import ContainerRecord
from tests.bed.agent import BedAgent, bed_agent
from tests.bed.cluster import Cluster
from tests.bed.parts import blocking
from tests.bed.runtime import BUSYBOX, BedContainerd
from tests.bed.watching import Objects, Watching, watching

Manifest = dict[str, Any]
STAY = "trap 'exit 0' TERM; sleep 100000 & wait"
"""Ends as soon as it is told to. (A bare sleep as first process would not hear it.)"""
WORKLOADS = "deployment,statefulset,daemonset,job,pod"


class Joined:
    """One agent in the cluster. Names of pods are of the namespace default."""

    def __init__(self, cluster: Cluster, containerd: BedContainerd, agent: BedAgent, pods: Watching, nodes: Watching):
        self.cluster = cluster
        self.agent = agent
        self.pods = pods
        self.nodes = nodes
        self._containerd = containerd

    # -- what the API server says

    def wait(self, what: str, holds: Callable[[Objects], Any], within: float = 60.0) -> Any:
        try:
            return self.pods.wait(what, holds, within)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.agent.tail()}") from None

    def wait_pod(self, name: str, holds: Callable[[Manifest], Any], what: str, within: float = 60.0) -> Manifest:
        """The pod as soon as `holds(pod)` is true."""

        def asked(objects: Objects) -> Manifest | None:
            found = objects.get(f"default/{name}")
            return found if found is not None and holds(found) else None

        found: Manifest = self.wait(f"{name}: {what}", asked, within)
        return found

    def wait_running(self, name: str, within: float = 60.0) -> Manifest:
        return self.wait_pod(name, is_ready, "is ready", within)

    def wait_gone(self, *names: str, within: float = 60.0) -> None:
        self.wait(f"{names} gone", lambda pods: not any(f"default/{name}" in pods for name in names), within)

    def wait_node(self, status: str, within: float) -> Manifest:
        def asked(objects: Objects) -> Manifest | None:
            found = objects.get(self.agent.node)
            return found if found is not None and condition(found, "Ready") == status else None

        try:
            found: Manifest = self.nodes.wait(f"node Ready={status}", asked, within)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.agent.tail()}") from None
        return found

    def pod(self, name: str) -> Manifest:
        return self.pods.objects[f"default/{name}"]

    def event_reasons(self, name: str) -> set[str]:
        found = self.cluster.get("events", "--field-selector", f"involvedObject.name={name}")
        return {event["reason"] for event in found["items"]}

    def wait_events(self, name: str, *reasons: str, within: float = 60.0) -> None:
        """Until the API server has them all: events go their own way, statuses may be there before them."""
        deadline = time.monotonic() + within
        while not set(reasons) <= (found := self.event_reasons(name)):
            assert time.monotonic() < deadline, f"{name}: no {set(reasons) - found}\n{self.agent.tail()}"
            time.sleep(0.1)

    # -- what the node says

    def containers(self) -> list[ContainerRecord]:
        """Everything the runtime has on file, also what has ended."""
        return blocking(_containers(self._containerd.endpoint))

    def running_ids(self) -> set[str]:
        return {each.id for each in self.containers() if each.state.name == "RUNNING"}

    def log_of(self, pod: str, container: str = "app", namespace: str = "default") -> str:
        """What the newest run of a container wrote, without the runtime's prefixes."""
        files = self.agent.pod_logs.glob(f"{namespace}_{pod}_*/{container}/*.log")
        newest = max(files, key=lambda path: int(path.stem), default=None)
        if newest is None:
            return ""
        try:
            lines = newest.read_text().splitlines(keepends=True)
        except FileNotFoundError:  # of an earlier pod of that name, gone meanwhile
            return ""
        return "".join(line.split(" ", 3)[3] for line in lines if line.count(" ") >= 3)

    def wait_log(self, pod: str, text: str, container: str = "app", within: float = 60.0) -> str:
        deadline = time.monotonic() + within
        while text not in (found := self.log_of(pod, container)):
            if time.monotonic() > deadline:
                raise AssertionError(f"{pod}/{container} did not write {text!r} but {found!r}\n{self.agent.tail()}")
            time.sleep(0.02)
        return found

    # -- changes

    def apply(self, *objects: Manifest) -> None:
        self.cluster.apply(*objects)

    def delete(self, *words: str) -> None:
        self.cluster.kubectl("delete", *words)

    def clean(self) -> None:
        """Back to an empty node."""
        self.cluster.kubectl("delete", WORKLOADS, "--all", "--wait=false", "--grace-period=1")
        self.wait("all pods gone", lambda pods: not pods, within=60)


async def _containers(endpoint: str) -> list[ContainerRecord]:
    async with GrpcCriClient(endpoint, clock=SystemClock()) as cri:
        return list(await cri.list_containers())


@contextmanager
def joined(
    cluster: Cluster,
    containerd: BedContainerd,
    folder: Path,
    *,
    name: str,
    kubeconfig: Path | None = None,
    ready_within: float = 60.0,
    **changes: Any,
) -> Iterator[Joined]:
    """A node that is ready; it is taken out of the cluster at the end."""
    with watching(cluster, "/api/v1/pods") as pods, watching(cluster, "/api/v1/nodes") as nodes:
        login = kubeconfig or cluster.node_kubeconfig(name)
        try:
            with bed_agent(folder, containerd, node=name, kubeconfig=login, **changes) as agent:
                made = Joined(cluster, containerd, agent, pods, nodes)
                made.wait_node("True", ready_within)
                # The control plane takes its mark off a little later; until then nothing is scheduled here.
                # After an outage its controllers look again only when their own back-off is over, which takes a minute.
                nodes.wait(f"{name} without taints", lambda found: not found[name]["spec"].get("taints"), 120)
                yield made
        finally:
            cluster.kubectl("delete", "pod", "--all", "--force", "--grace-period=0", check=False)
            cluster.kubectl("delete", "node", name, "--ignore-not-found")


def container_manifest(script: str = STAY, name: str = "app", **more: Any) -> Manifest:
    base = {"name": name, "image": BUSYBOX, "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", script]}
    return base | more


def a_spec(script: str = STAY, **more: Any) -> Manifest:
    return {"terminationGracePeriodSeconds": 1, "containers": [container_manifest(script)], **more}


def pod_manifest(
    name: str, script: str = STAY, *, node: str = "", metadata: Manifest | None = None, **spec: Any
) -> Manifest:
    """With `node` the pod is bound from the beginning, without the scheduler."""
    bound = {"nodeName": node} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": a_spec(script) | bound | spec,
    }


def a_workload(kind: str, name: str, script: str = STAY, *, pod: Manifest | None = None, **spec: Any) -> Manifest:
    """A Deployment and the like, whose pods have the label app=NAME."""
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": a_spec(script) | (pod or {})}
    group = "batch/v1" if kind == "Job" else "apps/v1"
    selector = {} if kind == "Job" else {"selector": {"matchLabels": labels}}
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": name},
        "spec": {**selector, "template": template, **spec},
    }


def condition(obj: Manifest, kind: str) -> str:
    """The status of a condition; '' without it."""
    found = [each["status"] for each in obj.get("status", {}).get("conditions", ()) if each["type"] == kind]
    return str(found[0]) if found else ""


def is_ready(pod: Manifest) -> bool:
    return condition(pod, "Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def phase(pod: Manifest) -> str:
    return str(pod["status"].get("phase", ""))


def of_app(objects: Objects, app: str) -> list[Manifest]:
    return [pod for pod in objects.values() if pod["metadata"].get("labels", {}).get("app") == app]


def state_of(pod: Manifest, container: str = "app") -> Manifest:
    """The status of one container of any kind; empty before there is one."""
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        for each in pod["status"].get(kind, ()):
            if each["name"] == container:
                return dict(each)
    return {}


def dumped(obj: object) -> str:
    return json.dumps(obj, indent=1)
