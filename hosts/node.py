"""A runtime and an agent on a guest, as an administrator would set them up: Debian's containerd or a newer one from the
payload, our packaged systemd unit, pods from files.
"""

from __future__ import annotations

import base64
import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bed.cluster import Cluster, go_programs

from hosts.image import PAYLOAD
from hosts.machine import Kind, Machine, booted
from hosts.payload import Payload
from pykubelet.standalone import images

MANIFESTS = "/etc/kubernetes/manifests"
CONFIG = "/etc/pykubelet/config.json"
KUBECONFIG = "/etc/pykubelet/kubeconfig"
THIS_MACHINE = "10.0.2.2"
"""The loopback of the machine that runs qemu, as guests see it."""
UNIT = "pykubelet"
READ_ONLY_PORT = 10255
MIRRORS = "/etc/containerd/certs.d"
"""Folders HOST/hosts.toml in here tell the newer containerd where to pull from."""
IMAGES = (images.PAUSE, images.BUSYBOX, images.TESTSERVER)
PATIENCE = 900.0
"""For anything that a pod does in a guest without hardware virtualization."""
Manifest = Mapping[str, Any]
Record = Callable[[str, object], None]
"""pytest's record_property: a figure for the results."""


@contextmanager
def node_on(kind: Kind, *, newer: bool = False) -> Iterator[Node]:
    """A guest of that kind with the images in its payload; `newer` adds containerd 2.x and its runc."""
    programs = [go_programs("containerd2"), go_programs("runc")] if newer else []
    with booted(kind, payload(*programs)) as machine:
        yield Node(machine)


def payload(*programs: Path) -> Payload:
    """The offline images, and what a check brings along."""
    files = {f"images/{number}.tar": archive.data for number, archive in enumerate(images.build(IMAGES))}
    return Payload(programs=programs, files=files)


class Node:
    """The agent of a guest and its runtime."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def start_runtime(self, *, systemd_cgroup: bool = True, newer: bool = False) -> None:
        """Configure and start containerd (`newer`: the one in the payload, else Debian's) and import the images."""
        put = self.machine.put
        put("/etc/containerd/config.toml", containerd_config(systemd_cgroup=systemd_cgroup, newer=newer))
        put("/etc/cni/net.d/10-pods.conflist", json.dumps(NETWORK))
        drop_in = "/etc/systemd/system/containerd.service.d/newer.conf"
        if newer:
            path = f"Environment=PATH={PAYLOAD}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            put(drop_in, f"[Service]\nExecStart=\nExecStart={PAYLOAD}/bin/containerd\n{path}\n")
        self.machine.run(
            f"{'' if newer else f'rm -f {drop_in};'} systemctl daemon-reload; systemctl restart containerd"
        )
        there = self.machine.run("ctr -n k8s.io images ls -q").split()
        for number, name in enumerate(IMAGES):
            if name not in there:
                self.machine.run(f"ctr -n k8s.io images import {PAYLOAD}/images/{number}.tar")

    def start(self, settings: Mapping[str, Any] | None = None, *, flags: Sequence[str] = ()) -> None:
        """Write the configuration, start the packaged unit, and return when systemd has heard that it is ready."""
        self.machine.put(CONFIG, json.dumps(CONFIGURATION | dict(settings or {})))
        command = shlex.join(["/usr/local/bin/pykubelet", f"--config={CONFIG}", "--v=2", *flags])
        # On a busy host a guest stands still for longer than the minute that the packaged unit allows.
        self.machine.put(
            f"/etc/systemd/system/{UNIT}.service.d/alone.conf",
            f"[Service]\nExecStart=\nExecStart={command}\nWatchdogSec={PATIENCE:g}\n",
        )
        self.machine.run(
            f"mkdir -p {MANIFESTS}; cp {PAYLOAD}/packaging/*.service /etc/systemd/system/; systemctl daemon-reload; "
            f"systemctl enable --quiet containerd {UNIT}; "
            f"systemctl restart {UNIT} || (journalctl -u {UNIT} -n 30; false)",
            within=PATIENCE,
        )

    def join(self, cluster: Cluster, settings: Mapping[str, Any] | None = None, *, flags: Sequence[str] = ()) -> str:
        """Start the agent as a node of a control plane on this machine; returns the node's name."""
        name = self.machine.run("hostname").strip()
        self.machine.put(KUBECONFIG, json.dumps(_kubeconfig(cluster, name)), mode="600")
        self.start(settings, flags=[f"--kubeconfig={KUBECONFIG}", *flags])
        return name

    def create(self, cluster: Cluster, *manifests: Manifest) -> None:
        """Make pods at the API server for this node, by its name: no scheduler has to look for one."""
        name = self.machine.run("hostname").strip()
        pods = [{**each, "spec": {**each["spec"], "nodeName": name}} for each in manifests]
        cluster.kubectl("create", "--namespace=default", "-f", "-", stdin=json.dumps(_list(pods)))

    def remove(self, cluster: Cluster, *names: str) -> None:
        """Delete pods at the API server and wait until they are gone."""
        cluster.kubectl("delete", "pod", *names, "--wait=false")
        self.gone(cluster, *names)

    def gone(self, cluster: Cluster, *names: str) -> None:
        """Wait until deleted pods are gone from the API server and from here."""

        def known() -> set[str]:
            return {*self.pods(), *cluster.kubectl("get", "pods", "-o", "custom-columns=:.metadata.name").split()}

        self.wait(lambda: not known() & set(names), f"{', '.join(names)} gone")

    def stop(self) -> None:
        """Stop the agent; pods run on."""
        self.machine.run(f"systemctl stop {UNIT}")

    def apply(self, *manifests: Manifest) -> None:
        """Write static pods, a file each, named like the pod."""
        for manifest in manifests:
            name = manifest["metadata"]["name"]
            # Not through a file in the folder: every file there is a pod.
            self.machine.put(f"/run/manifest-{name}.json", json.dumps(manifest))
            self.machine.run(f"cp /run/manifest-{name}.json {MANIFESTS}/{name}.json")

    def delete(self, *names: str) -> None:
        """Remove static pods and wait until the agent has forgotten them."""
        self.machine.run("rm -f " + " ".join(f"{MANIFESTS}/{name}.json" for name in names))
        self.wait(lambda: not set(names) & set(self.pods()), f"{', '.join(names)} gone")

    def pods(self) -> dict[str, Any]:
        """The pods that the agent knows, by the name in their manifests."""
        printed = self.machine.run(f"curl -sf http://127.0.0.1:{READ_ONLY_PORT}/pods", check=False)
        items = json.loads(printed)["items"] or [] if printed else []
        suffix = "-" + self.machine.run("hostname").strip()
        return {item["metadata"]["name"].removesuffix(suffix): item for item in items}

    def get(self, path: str) -> str:
        """A path of the read-only server: /stats/summary, /metrics …"""
        return self.machine.run(f"curl -sf http://127.0.0.1:{READ_ONLY_PORT}{path}")

    def running(self, name: str) -> Any:
        """The pod's object when all its containers are ready."""
        return self.wait(lambda: _ready(self.pods().get(name)), f"{name} ready")

    def phase(self, name: str, phase: str) -> Any:
        """The pod's object when it is in that phase."""

        def reached() -> Any:
            pod = self.pods().get(name)
            return pod if pod and pod.get("status", {}).get("phase") == phase else None

        return self.wait(reached, f"{name} {phase}")

    def wait(self, probe: Callable[[], Any], what: str, within: float = PATIENCE) -> Any:
        """The first true answer; an AssertionError with the agent's last words when there is none in time."""
        deadline = time.monotonic() + within
        while not (found := probe()):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not {what} after {within:g} s:\n{json.dumps(self.pods())[:3000]}\n{self.log(60)}"
                )
            time.sleep(1)
        return found

    def exec(self, pod: str, container: str, command: str) -> str:
        """Run a shell command in a container."""
        identifier = self.container_id(pod, container)
        task = f"ctr -n k8s.io tasks exec --exec-id x$$ {identifier} sh -c {shlex.quote(command)}"
        return self.machine.run(task)

    def container_id(self, pod: str, container: str) -> str:
        return str(self.container(pod, container)["containerID"]).rpartition("/")[2]

    def container(self, pod: str, container: str) -> Any:
        """The status of a container of any kind; an agent that is too slow to answer is asked again."""
        status = self.wait(lambda: self.pods().get(pod), f"{pod} known")["status"]
        kinds = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
        return next(each for kind in kinds for each in status.get(kind, ()) if each["name"] == container)

    def pid(self, pod: str, container: str) -> int:
        """The process of a container, as the guest's root sees it."""
        identifier = self.container_id(pod, container)

        def found() -> int:
            # 0 while a process is not known: containerd gives up on a slow answer after two seconds.
            listed = self.machine.run("ctr -n k8s.io tasks ls").splitlines()
            return next((int(line.split()[1]) for line in listed if line.startswith(identifier)), 0)

        return int(self.wait(found, f"process of {pod}"))

    def cgroup(self, pid: int) -> str:
        """The folder of a process's cgroup (v2)."""
        return "/sys/fs/cgroup" + self.machine.get(f"/proc/{pid}/cgroup").strip().removeprefix("0::")

    def files(self, folder: str, *names: str) -> dict[str, str]:
        """The contents of small files in a folder of the guest, without the last newline; a missing file is an error.

        Names may be patterns.
        """
        found: dict[str, str] = {}
        for line in self.machine.run(f"cd {shlex.quote(folder)} && grep -H '' {' '.join(names)}").splitlines():
            name, _, content = line.partition(":")
            found[name] = f"{found[name]}\n{content}" if name in found else content
        return found

    def witnessed(self, name: str) -> list[tuple[str, float]]:
        """What a pod of `a_witness` wrote: words and seconds since the boot it wrote them in."""
        lines = self.machine.run(f"cat {WITNESSED}/{name}", check=False).splitlines()
        return [(word, float(up)) for word, up in (line.split() for line in lines)]

    def sandboxes(self) -> list[str]:
        """Ids of all sandboxes that the runtime knows, dead ones too."""
        return self.machine.run("ctr -n k8s.io containers ls -q 'labels.\"io.cri-containerd.kind\"==sandbox'").split()

    def addresses(self) -> list[str]:
        """The pod addresses that the CNI plugin holds as given away; they outlive a boot."""
        return self.machine.run("cd /var/lib/cni/networks/pods && ls | grep '^[0-9]'", check=False).split()

    def journal(self, *options: str) -> list[dict[str, Any]]:
        """Entries of the guest's journal as journald has them."""
        printed = self.machine.run(shlex.join(["journalctl", "-o", "json", "--no-pager", *options]))
        return [json.loads(line) for line in printed.splitlines()]

    def show(self, unit: str, name: str) -> str:
        """A property of a unit, as systemd tells it."""
        return self.machine.run(f"systemctl show --value -p {name} {unit}").strip()

    def events(self, reason: str) -> list[dict[str, Any]]:
        """Events with that reason, as the agent itself remembers them."""
        printed = self.machine.run("curl -sf --unix-socket /run/pykubelet/kubelet.sock http://localhost/local/events")
        return [each for each in json.loads(printed)["items"] if each["reason"] == reason]

    def log(self, lines: int = 200) -> str:
        return self.machine.run(f"journalctl -u {UNIT} -o cat -n {lines}", check=False)


def _list(items: Sequence[Manifest]) -> Manifest:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def _kubeconfig(cluster: Cluster, node: str) -> dict[str, Any]:
    pair = cluster.authority.issue(f"system:node:{node}", ["system:nodes"])

    def data(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    # The certificate is for names of this machine, which has another address in the guest.
    server = {"server": f"https://{THIS_MACHINE}:{cluster.port}", "tls-server-name": "localhost"}
    user = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "beside", "cluster": server | {"certificate-authority-data": data(cluster.ca_file)}},
        ],
        "users": [{"name": node, "user": user}],
        "contexts": [{"name": "beside", "context": {"cluster": "beside", "user": node}}],
        "current-context": "beside",
    }


def a_pod(name: str, command: str = "sleep 1000000", **spec: Any) -> dict[str, Any]:
    """A pod of one busybox container; `spec` adds to the pod, `container` in it to the container."""
    container = {"name": "main", "image": images.BUSYBOX, "command": ["sh", "-c", command]} | spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": spec.pop("annotations", {})},
        "spec": {"terminationGracePeriodSeconds": 5, "containers": [container]} | spec,
    }


WITNESSED = "/var/witness"


def a_witness(name: str, ends_after: int = 0, **spec: Any) -> dict[str, Any]:
    """A pod that writes down, in WITNESSED/NAME, when it started, was asked to end and had ended.

    It needs `ends_after` seconds to end. The times are seconds since the boot, which no clock step changes.
    """
    say = f'say() {{ read up rest </proc/uptime; echo "$1 $up" >>/out/{name}; sync; }}'
    end = f"say term; i=0; while [ $i -lt {ends_after} ]; do sleep 1; i=$((i+1)); done; say ended; exit 0"
    command = f"{say}; trap '{end}' TERM; say started; while :; do sleep 1; done"
    volume = {"name": "out", "hostPath": {"path": WITNESSED, "type": "DirectoryOrCreate"}}
    mounted = {"volumeMounts": [{"name": "out", "mountPath": "/out"}]} | spec.pop("container", {})
    return a_pod(name, command, container=mounted, volumes=[volume], **spec)


def _ready(pod: Any) -> Any:
    conditions = (pod or {}).get("status", {}).get("conditions", ())
    return pod if any(each["type"] == "Ready" and each["status"] == "True" for each in conditions) else None


CONFIGURATION: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "staticPodPath": MANIFESTS,
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "cgroupDriver": "systemd",
    "readOnlyPort": READ_ONLY_PORT,
    "address": "127.0.0.1",
    "authentication": {"webhook": {"enabled": False}, "anonymous": {"enabled": True}},
    "authorization": {"mode": "AlwaysAllow"},
    "resolvConf": "/etc/resolv.conf",
}
NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]},
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


def containerd_config(*, systemd_cgroup: bool, newer: bool) -> str:
    """containerd's configuration, of version 3 for 2.x."""
    driver = str(systemd_cgroup).lower()
    if newer:
        runtime, pause = "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images"
        pinned = f'[plugins."{pause}".pinned_images]\nsandbox = "{images.PAUSE}"\n'
        pinned += f'[plugins."{pause}".registry]\nconfig_path = "{MIRRORS}"\n'
    else:
        runtime = "io.containerd.grpc.v1.cri"
        pinned = f'[plugins."{runtime}"]\nsandbox_image = "{images.PAUSE}"\n'
    return (
        f"version = {3 if newer else 2}\n{pinned}"
        f'[plugins."{runtime}".cni]\nbin_dir = "/usr/lib/cni"\nconf_dir = "/etc/cni/net.d"\n'
        f'[plugins."{runtime}".containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[plugins."{runtime}".containerd.runtimes.runc.options]\nSystemdCgroup = {driver}\n'
    )
