"""The bed's CRI-O: a private one under a short temporary folder, with a pod network of its own and offline images.

The same face as `BedContainerd`, so that whatever runs on one runs on the other. CRI-O itself, pinns and runc come from
tools/build-go.sh, conmon from Debian (its crun is too old: it refuses containers of OCI 1.3). A run that was killed
leaves containers behind; the next run finds them by their unlocked folder and removes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import CriError
from pykubelet.standalone import images, programs
from pykubelet.standalone.cleanup import CGROUPS, children, hierarchies, unmount_below
from pykubelet.standalone.launch import CAP_SYS_RESOURCE, has_capability
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.network import PodNetwork
from pykubelet.standalone.packer import Archive
from tests.bed import leaks
from tests.bed.cluster import go_programs
from tests.bed.parts import abandoned, blocking, cannot, need_program, need_root
from tests.bed.runtime import BedContainerd
from tests.bed.services import Service

PREFIX = "pklcrio-"
PLACE = Path("/var/tmp")
"""Where its folder is: a host path that holds CRI-O's storage gets another mount propagation, and specs use /tmp."""
TOP_CGROUP = "crio"
"""Where CRI-O puts pods that name no parent."""
HOST_PORT_CHAINS = ("KUBE-HOSTPORTS", "KUBE-HP-", "CRIO-HOSTPORTS-MASQ", "CRIO-MASQ-")
REGISTRIES = """\
[[registry]]
prefix = "127.0.0.1"
location = "127.0.0.1"
insecure = true
"""
"""The bed's own registries speak HTTP, each on a port of its own."""
POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}\n'
RUNC = """\
#!/bin/sh
# runc, after what this machine cannot give was taken out of the container's configuration.
previous=
for word in "$@"; do
  [ "$previous" != --bundle ] || sed -z -i -e {edits} "$word/config.json"
  previous=$word
done
exec {runc} "$@"
"""
WITHOUT_HUGE_PAGES = r's/,\s*"hugepageLimits":\s*\[[^]]*\]//; s/"hugepageLimits":\s*\[[^]]*\],\?//'
WITHOUT_SYS_RESOURCE = (
    r's/,\s*"CAP_SYS_RESOURCE"//g; s/"CAP_SYS_RESOURCE",\?//g; s/"oomScoreAdj":\s*-[0-9]*/"oomScoreAdj": 0/'
)
CONFIG = """\
[crio]
root = "{folder}/root"
runroot = "{folder}/run/storage"
storage_driver = "overlay"
log_dir = "{folder}/logs"
version_file = "{folder}/run/version"
clean_shutdown_file = "{folder}/clean.shutdown"

[crio.api]
listen = "{socket}"

[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
pinns_path = "{pinns}"
container_exits_dir = "{folder}/run/exits"
container_attach_socket_dir = "{folder}/at"
namespaces_dir = "{folder}/run/ns"
enable_pod_events = {events}
irqbalance_config_restore_file = "disable"

[crio.runtime.runtimes.runc]
runtime_path = "{runc}"
runtime_root = "{folder}/run/runc"
monitor_path = "{conmon}"
monitor_cgroup = "pod"

[crio.image]
pause_image = "{pause}"
signature_policy = "{folder}/policy.json"
signature_policy_dir = "{folder}/policies"

[crio.network]
network_dir = "{cni_conf}"
plugin_dirs = ["{cni}"]

[crio.stats]
included_pod_metrics = ["all"]

[crio.nri]
enable_nri = false
"""


class BedCrio:
    """What tests see of the runtime. Every method blocks and may be called from any test."""

    def __init__(self, state_dir: Path, folder: Path, *, events: bool) -> None:
        self.state_dir = state_dir
        self.socket = state_dir / "crio.sock"
        self.endpoint = f"unix://{self.socket}"
        self._programs = folder
        layout = Layout(state_dir)
        for each in (layout.cni_conf_dir, layout.ipam_dir):
            each.mkdir(exist_ok=True)
        self.network = PodNetwork(layout, need_program("iptables", "iptables"))
        (state_dir / "policy.json").write_text(POLICY)
        config = state_dir / "crio.conf"
        config.write_text(self._config(layout, events))
        registries = state_dir / "registries.conf"
        registries.write_text(REGISTRIES)
        none = state_dir / "none"
        command: list[str | Path] = [folder / "crio", "--config", config, "--config-dir", none]
        command += ["--registries-conf", registries, "--registries-conf-dir", none]
        self._service = Service("crio", command, state_dir)

    @property
    def gateway_ip(self) -> str:
        """The node's address on the pod network; it exists as long as the bed runs."""
        return self.network.gateway_ip

    @property
    def log(self) -> str:
        return self._service.log_file.read_text(errors="replace")

    @property
    def version(self) -> str:
        return f"cri-o {blocking(self._asked_version())}"

    def start(self) -> None:
        """Start it; returns when it answers."""
        self._service.start()
        self._service.wait_for("answer", self._answers)

    def kill(self) -> None:
        """End CRI-O the hard way; containers go on running. Follow with `restart`."""
        self._service.kill()

    def restart(self) -> None:
        """End CRI-O, if it is still there, and start it again; returns when it answers."""
        self._service.stop()
        self.start()

    def load(self, archive: Archive, others: Sequence[str] = ()) -> None:
        """Put an image into its storage under the archive's name and `others`; CRI-O knows it at once."""
        with tempfile.NamedTemporaryFile(dir=self.state_dir, suffix=".tar") as file:
            file.write(archive.data)
            file.flush()
            self._copy_image(archive.name, "--import-from", f"oci-archive:{file.name}")
        for other in others:
            self._copy_image(archive.name, "--add-name", other)

    def container_ids(self) -> frozenset[str]:
        """Of all containers it knows, and of all sandboxes."""
        return blocking(self._ids())

    def remove(self) -> None:
        """End every pod, CRI-O itself and take away what belongs to them outside of the folder."""
        if self._service.running:
            try:
                blocking(self._remove_pods())
            except (CriError, TimeoutError) as error:
                print(f"CRI-O does not remove its pods: {error}")
        self._service.stop()
        remove_containers(self.state_dir)
        blocking(self.network.remove())

    def _copy_image(self, name: str, *words: str) -> None:
        storage: list[str | Path] = ["--root", self.state_dir / "root", "--runroot", self.state_dir / "run" / "storage"]
        policy: list[str | Path] = ["--signature-policy", self.state_dir / "policy.json"]
        command = [self._programs / "copyimg", *storage, "--storage-driver", "overlay", *policy, "--image-name", name]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            cannot(f"image {name} cannot be put into CRI-O's storage: {done.stderr.strip()}")

    def _config(self, layout: Layout, events: bool) -> str:
        cni = programs.find_cni_folder()
        if cni is None:
            cannot("the CNI plugins are missing; run tools/setup.sh test")
        return CONFIG.format(
            folder=self.state_dir,
            socket=self.socket,
            pinns=self._programs / "pinns",
            runc=self._runc(),
            conmon=need_program("conmon", "conmon"),
            pause=images.PAUSE,
            events=str(events).lower(),
            cni_conf=layout.cni_conf_dir,
            cni=cni,
        )

    def _runc(self) -> Path:
        """The program, or a script that lets it run where CRI-O expects more of the machine than containerd does."""
        runc = go_programs("runc") / "runc"
        edits = []
        if not ((CGROUPS / "cgroup.controllers").exists() or (CGROUPS / "hugetlb").exists()):
            # It takes the kernel's word for the controller, also where its hierarchy (v1) is not mounted.
            edits.append(WITHOUT_HUGE_PAGES)
        if not has_capability(CAP_SYS_RESOURCE, Path("/proc/self/status").read_text()):
            # It gives privileged containers all that the kernel knows, not what it has itself; and the capability is
            # needed to save a container from being killed when memory is out.
            edits.append(WITHOUT_SYS_RESOURCE)
        if not edits:
            return runc
        script = self.state_dir / "runc"
        script.write_text(RUNC.format(runc=runc, edits=shlex.quote("; ".join(edits))))
        script.chmod(0o755)
        return script

    def _answers(self) -> bool:
        # A pool of its own: a new attempt must not inherit the back-off of the one before.
        with grpc.insecure_channel(f"unix:{self.socket}", [("grpc.use_local_subchannel_pool", 1)]) as channel:
            try:
                channel.unary_unary("/runtime.v1.RuntimeService/Status", None, None)(b"", timeout=5.0)
            except grpc.RpcError:
                return False
            return True

    async def _asked_version(self) -> str:
        async with GrpcCriClient(self.endpoint, clock=SystemClock()) as cri:
            return (await cri.version()).version

    async def _ids(self) -> frozenset[str]:
        async with GrpcCriClient(self.endpoint, clock=SystemClock()) as cri:
            sandboxes, containers = await cri.list_pod_sandboxes(), await cri.list_containers()
        return frozenset([sandbox.id for sandbox in sandboxes] + [container.id for container in containers])

    async def _remove_pods(self, within: float = 30.0) -> None:
        async with asyncio.timeout(within), GrpcCriClient(self.endpoint, clock=SystemClock()) as cri:
            # Asked to stop a sandbox, CRI-O waits for its containers as long as the call may take.
            await gather_all(*[cri.stop_container(each.id, 0) for each in await cri.list_containers(running_only=True)])
            sandboxes = await cri.list_pod_sandboxes()
            await gather_all(*[cri.stop_pod_sandbox(sandbox.id) for sandbox in sandboxes])
            await gather_all(*[cri.remove_pod_sandbox(sandbox.id) for sandbox in sandboxes])


BedRuntime = BedContainerd | BedCrio


@contextmanager
def running_crio(*, events: bool = True) -> Iterator[BedCrio]:
    """A CRI-O for as long as the block lasts; with `events` it tells of what happens to containers."""
    need_root()
    sweep()
    before, chains, groups = leaks.snapshot(), host_port_rules(), top_cgroups()
    state_dir = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PLACE))
    state_dir.chmod(0o711)
    with (state_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        crio = BedCrio(state_dir, go_programs("crio"), events=events)
        try:
            blocking(crio.network.setup())
            crio.start()
            for archive in images.build([images.PAUSE, images.BUSYBOX, images.TESTSERVER]):
                crio.load(archive)
            yield crio
        finally:
            crio.remove()
            if not chains:
                remove_host_port_chains()
            for group in top_cgroups() - groups:
                _remove_group(group)
            shutil.rmtree(state_dir)
    leaks.check(state_dir, crio.network.name, before)


def sweep() -> None:
    """Remove what killed runs left: folders of ours whose lock nobody holds."""
    for folder in PLACE.glob(f"{PREFIX}*"):
        if abandoned(folder / "lock"):
            remove_containers(folder)
            blocking(PodNetwork(Layout(folder), need_program("iptables", "iptables")).remove())
            shutil.rmtree(folder, ignore_errors=True)


def remove_containers(state_dir: Path, within: float = 30.0) -> None:
    """End every container without asking CRI-O: what the monitors of this folder started, then the monitors."""
    deadline = time.monotonic() + within
    while found := [int(line.split()[0]) for line in leaks.processes_naming(f"{state_dir}/")]:
        if time.monotonic() > deadline:
            cannot(f"processes of {state_dir} do not end: {found}")
        inner = [pid for process in found for pid in children(process)]
        for pid in inner or found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    unmount_below(state_dir)


def host_port_rules() -> list[str]:
    """The rules and chains that CRI-O makes for host ports, as iptables lists them."""
    listed = subprocess.run(["iptables", "-w", "-t", "nat", "-S"], capture_output=True, text=True, check=False)
    return [line for line in listed.stdout.splitlines() if any(chain in line for chain in HOST_PORT_CHAINS)]


def remove_host_port_chains() -> None:
    """CRI-O takes away the rules of a pod with the pod; what leads to them stays until the next boot."""
    rules = [line.split() for line in host_port_rules()]
    for words in [words for words in rules if words[0] == "-A"]:
        subprocess.run(["iptables", "-w", "-t", "nat", "-D", *words[1:]], check=True)
    for words in [words for words in rules if words[0] == "-N"]:
        subprocess.run(["iptables", "-w", "-t", "nat", "-X", words[1]], check=True)


def top_cgroups() -> frozenset[Path]:
    return frozenset(group for each in hierarchies() if (group := each / TOP_CGROUP).is_dir())


def _remove_group(top: Path) -> None:
    """Another run on this machine may be using it, too: then it is not empty and stays."""
    for folder, _, _ in os.walk(top, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)
