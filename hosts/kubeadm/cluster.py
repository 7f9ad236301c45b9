"""Two guests as the nodes of a cluster made with kubeadm: what is installed on them, and how they are asked.

The control plane has what Kubernetes' packages install (kubelet.service, kubeadm's drop-in, the Go kubelet), and our
drop-in on top. The worker has no Go kubelet at first: packaging/pykubelet.service is its kubelet.service.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts.image import PAYLOAD, cache
from hosts.kubeadm.images import CONTROL_PLANE, FIRST, PREFIX, UPGRADED, control_plane_images, node_images
from hosts.machine import CommandFailed, Kind, Machine, booted
from hosts.payload import Payload
from pykubelet.standalone.packer import Archive

FILES = Path(__file__).parent / "files"
PACKAGED = "/usr/lib/systemd/system"
OWN = "/etc/systemd/system"
DROP_IN = f"{OWN}/kubelet.service.d/20-pykubelet.conf"
KUBECTL = "kubectl --kubeconfig=/etc/kubernetes/admin.conf --request-timeout=120s"
LONG = 2400.0
"""Seconds for what takes minutes at full speed."""
TRIES, PAUSE = 10, 20.0
BUSY = ("timed out", "Timeout", "timeout", "deadline exceeded", "connection refused", "unable to handle the request")
"""What kubectl says of an API server that is up and slow, or on its way up."""


class NotAsExpected(Exception):
    """Something in the cluster is not as it should be."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    address: str
    machine: Machine

    def run(self, command: str, *, within: float = 600.0) -> str:
        return self.machine.run(command, within=within)

    def tasks(self) -> dict[str, int]:
        """Running containers and sandboxes as the runtime has them: id -> process id."""
        rows = [line.split() for line in self.run("ctr -n k8s.io tasks ls").splitlines()[1:]]
        return {row[0]: int(row[1]) for row in rows if row[2] == "RUNNING"}

    def agent(self) -> str:
        """Command line of the process that is the kubelet service now."""
        pid = self.run("systemctl show --property=MainPID --value kubelet").strip()
        return self.run(f"tr '\\0' ' ' </proc/{pid}/cmdline").strip()

    def restart_kubelet(self) -> None:
        self.run("systemctl daemon-reload && systemctl restart kubelet", within=LONG)


@dataclass(frozen=True, slots=True)
class Cluster:
    control: Node
    worker: Node

    @property
    def nodes(self) -> tuple[Node, Node]:
        return self.control, self.worker

    def kubectl(self, arguments: str, *, within: float = 600.0) -> str:
        """Repeats what the API server had no time for; give it only what may be done twice."""
        for _ in range(TRIES):
            try:
                return self.control.run(f"{KUBECTL} {arguments}", within=within)
            except CommandFailed as error:
                if not any(word in str(error) for word in BUSY):
                    raise
                time.sleep(PAUSE)
        return self.control.run(f"{KUBECTL} {arguments}", within=within)

    def get(self, arguments: str) -> Any:
        return json.loads(self.kubectl(f"get {arguments} -o json"))

    def containers(self, node: Node) -> dict[str, dict[str, Any]]:
        """Containers of a node as the API server has them: namespace/pod/container -> id and restarts."""
        pods = self.get(f"pods -A --field-selector spec.nodeName={node.name}")["items"]
        return {
            f"{pod['metadata']['namespace']}/{pod['metadata']['name']}/{status['name']}": {
                "id": status.get("containerID", "").rpartition("/")[2],
                "restarts": status["restartCount"],
            }
            for pod in pods
            for status in pod["status"].get("containerStatuses", [])
        }

    def wait_ready(self, node: Node) -> None:
        """Wait until the node's agent has reported Ready after now."""
        began = node.run("date +%s").strip()
        shown = "jsonpath={.status.conditions[?(@.type=='Ready')].status}/{.spec.taints[*].key}"
        lease = "jsonpath={.spec.renewTime}"

        def ready() -> bool:
            status, _, taints = self.kubectl(f'get node {node.name} -o "{shown}"').partition("/")
            renewed = self.kubectl(f"-n kube-node-lease get lease {node.name} -o {lease}").strip()
            fresh = int(node.run(f"date +%s --date={renewed}")) > int(began)
            return status == "True" and "not-ready" not in taints and "unreachable" not in taints and fresh

        until(ready, f"{node.name} is Ready")


def until(true: Callable[[], bool], what: str, within: float = LONG, pause: float = 5.0) -> None:
    """Ask again and again; NotAsExpected when it does not become true. A command that fails is no answer yet."""
    deadline = time.monotonic() + within
    while True:
        why = ""
        try:
            if true():
                return
        except CommandFailed as error:
            why = f"\n{error}"
        if time.monotonic() > deadline:
            raise NotAsExpected(f"not within {within:g} s: {what}{why}")
        time.sleep(pause)


@contextmanager
def two_guests() -> Iterator[Cluster]:
    """Both guests with everything installed that must be there before `kubeadm init` and `kubeadm join`."""
    programs, control_plane = cache() / "kubeadm-v1.36.4/bin", cache() / "controlplane-v1.36.4/bin"
    tools = [programs / "kubeadm", control_plane / "kubectl", control_plane / "kubelet"]
    node = _files(node_images(programs, control_plane))
    static = _files(control_plane_images(programs, control_plane))
    port = _free_port()
    with ExitStack() as stack, ThreadPoolExecutor(2) as threads:
        kind = Kind(name="control", cpus=2, memory="4G", lan=f"listen:{port}", mac=1)
        control = stack.enter_context(booted(kind, Payload(programs=tools, files={**node, **static})))
        kind = Kind(name="worker", cpus=2, memory="3G", lan=f"connect:{port}", mac=2)
        worker = stack.enter_context(booted(kind, Payload(programs=tools, files=node)))
        cluster = Cluster(Node("control", "10.77.0.1", control), Node("worker", "10.77.0.2", worker))
        list(threads.map(lambda each: prepare(each, cluster), cluster.nodes))
        yield cluster


def _files(archives: list[Archive]) -> dict[str, bytes]:
    return {f"images/{re.sub('[/:]', '-', each.name)}.tar": each.data for each in archives}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def prepare(node: Node, cluster: Cluster) -> None:
    """Name, network, runtime with images, programs and the kubelet service."""
    machine = node.machine
    names = "".join(f"{each.address} {each.name}\n" for each in cluster.nodes)
    machine.put("/etc/hosts", f"127.0.0.1 localhost\n{names}")
    lan = f"[Match]\nName=eth1\n[Network]\nAddress={node.address}/24\nLinkLocalAddressing=no\n"
    machine.put("/etc/systemd/network/20-lan.network", lan)
    node.run(f"hostnamectl set-hostname {node.name} && networkctl reload && networkctl reconfigure eth1")
    machine.put("/etc/containerd/config.toml", (FILES / "containerd.toml").read_text())
    node.run(f"systemctl enable --now containerd && ln -s {PAYLOAD}/bin/kubeadm {PAYLOAD}/bin/kubectl /usr/bin/")
    node.run(f"for image in {PAYLOAD}/images/*; do ctr -n k8s.io images import $image || exit 1; done", within=LONG)
    for name in ("kube-proxy", *(CONTROL_PLANE if node is cluster.control else ())):
        node.run(f"ctr -n k8s.io images tag {PREFIX}/{name}:{FIRST} {PREFIX}/{name}:{UPGRADED}")
    if node is cluster.control:
        install_go_kubelet(node)
        install_drop_in(node)
    else:
        install_unit(node)


def install_go_kubelet(node: Node) -> None:
    """What Kubernetes' own kubelet package puts on a node."""
    node.run(f"ln -s {PAYLOAD}/bin/kubelet /usr/bin/kubelet")
    node.machine.put(f"{PACKAGED}/kubelet.service", (FILES / "kubelet.service").read_text())
    node.machine.put(f"{PACKAGED}/kubelet.service.d/10-kubeadm.conf", (FILES / "10-kubeadm.conf").read_text())
    node.run("systemctl daemon-reload && systemctl enable kubelet")


def install_drop_in(node: Node) -> None:
    node.run(f"install -D -m 644 {PAYLOAD}/packaging/20-pykubelet.conf {DROP_IN} && systemctl daemon-reload")


def remove_drop_in(node: Node) -> None:
    node.run(f"rm {DROP_IN} && systemctl daemon-reload")


def install_unit(node: Node) -> None:
    """pykubelet on a node without the Go kubelet."""
    node.run(f"install -m 644 {PAYLOAD}/packaging/pykubelet.service {OWN}/kubelet.service")
    node.run("ln -s pykubelet /usr/local/bin/kubelet && systemctl daemon-reload && systemctl enable kubelet")


def remove_unit(node: Node) -> None:
    node.run(f"systemctl disable kubelet; rm {OWN}/kubelet.service /usr/local/bin/kubelet; systemctl daemon-reload")
