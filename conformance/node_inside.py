"""`python -m conformance.node_inside JOB`: the part of the node suite's bed that runs inside its namespaces.

Makes the namespaces habitable (mounts, cgroups, a network card), starts containerd, imports the images and runs
ginkgo; its exit status is ginkgo's. Nothing is taken away at the end: all of it ends with the namespaces.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from conformance import node_images
from conformance.bed import import_images
from conformance.node_bed import NODE, STAND_INS, Job, ginkgo_command
from tests.bed.runtime import BedContainerd, running_containerd

from pykubelet.standalone import daemon

COPIED = ("/etc", "/var/lib")
"""Folders of the machine whose changes stay in the bed."""
PRIVATE = ("/tmp", "/run", "/var/log", "/var/lib/kubelet", "/etc/cni")
"""Folders that the bed has its own of."""
HANDLER = "test-handler"
CARD, OTHER_END = "eth0", "outside"
LOOK_EVERY = 0.5
ADDRESS, GATEWAY = "172.29.0.2/24", "172.29.0.1"


def main() -> int:
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    socket.sethostname(NODE)
    private_mounts(job.home / "private")
    own_cgroups()
    network()
    built = node_images.build(
        Path(job.common), job.home, [Path(job.programs) / "nmeter"], Path(job.plugins) / "sample-device-plugin"
    )
    with running_containerd(Path(job.containerd), runc=Path(job.runc), below=job.home) as containerd:
        add_handler(containerd)
        link_socket(containerd)
        import_images(containerd, built)
        with node_images.serving(containerd, built):
            built.clear()  # 300 MB that nobody needs any more
            return run_ginkgo(job, containerd)


def command(*words: str) -> None:
    subprocess.run(words, check=True)


def private_mounts(home: Path) -> None:
    command("mount", "-t", "proc", "proc", "/proc")
    for name in COPIED:
        upper, work = own_folder(home, name), own_folder(home, f"{name}/overlay-work")
        command("mount", "-t", "overlay", "-o", f"lowerdir={name},upperdir={upper},workdir={work}", "overlay", name)
    for name in PRIVATE:
        Path(name).mkdir(parents=True, exist_ok=True)
        command("mount", "--bind", str(own_folder(home, name)), name)
    Path("/tmp").chmod(0o1777)
    names = home / "resolv.conf"
    names.write_text(f"nameserver {ADDRESS.partition('/')[0]}\n")  # refuses at once, because nobody listens
    command("mount", "--bind", str(names), os.path.realpath("/etc/resolv.conf"))
    # Volumes with mount propagation need shared mounts; nobody outside the bed shares them.
    command("mount", "--make-rshared", "/")


def own_folder(home: Path, name: str) -> Path:
    folder = home / name.strip("/").replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def own_cgroups() -> None:
    """Mount the cgroup file systems anew: in a cgroup namespace that shows the bed's own group as the root."""
    lines = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    found = [(words[1], words[2], words[3].split(",")) for words in lines if words[2] in ("cgroup", "cgroup2")]
    for path, kind, options in found:
        chosen = [each for each in options if each not in ("rw", "relatime", "nosuid", "nodev", "noexec")]
        command("umount", path)
        command("mount", "-t", kind, *(["-o", ",".join(chosen)] if kind == "cgroup" else []), "cgroup", path)


def network() -> None:
    """Loopback and a card with the default route; its other end leads nowhere."""
    for words in (
        "link set lo up",
        f"link add {CARD} type veth peer name {OTHER_END}",
        f"link set {OTHER_END} up",
        f"link set {CARD} up",
        f"address add {ADDRESS} dev {CARD}",
        f"route add default via {GATEWAY} dev {CARD}",
    ):
        command("ip", *words.split())


def link_socket(containerd: BedContainerd) -> None:
    """cAdvisor in the Go kubelet knows containerd by its usual socket alone, whatever the kubelet is told."""
    usual = Path("/run/containerd/containerd.sock")
    usual.parent.mkdir(exist_ok=True)
    usual.symlink_to(containerd.socket)


def add_handler(containerd: BedContainerd) -> None:
    """The runtime handler that specs of runtime classes use; it is runc like the other."""
    file = containerd.state_dir / "containerd.toml"
    before = file.read_text()
    tables = re.findall(r"^\[[^\n]*\.runtimes\.runc\b.*?(?=^\[|\Z)", before, re.MULTILINE | re.DOTALL)
    file.write_text(before + "\n" + "".join(tables).replace(".runtimes.runc", f".runtimes.{HANDLER}"))
    containerd.restart()


def run_ginkgo(job: Job, containerd: BedContainerd) -> int:
    work = job.home / "work"
    work.mkdir()
    program = shutil.copy(Path(job.programs) / "e2e_node.test", work)  # it writes the kubelet's configuration beside it
    before, after = ginkgo_command(
        Path(job.common) / "ginkgo", program, home=job.home, endpoint=containerd.endpoint, node=NODE
    )
    words = [*before, *job.ginkgo, *after, *job.suite]
    environment = {**os.environ, "PATH": f"{STAND_INS}:{os.environ['PATH']}"}
    with (job.home / "ginkgo.log").open("wb") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=work, env=environment, start_new_session=True
        )
        signal.signal(signal.SIGTERM, lambda *_: stop_early(process.pid))
        while (status := process.poll()) is None:
            if daemon.process_start(containerd.pid) is None:  # specs kill it, and a machine's init starts it again
                containerd.restart()
            time.sleep(LOOK_EVERY)
        return status


def stop_early(ginkgo: int) -> None:
    """Ginkgo writes its report when the processes that run specs end; it hands no signal on to them."""
    for pid in (*children(ginkgo), ginkgo):
        os.kill(pid, signal.SIGTERM)


def children(pid: int) -> list[int]:
    """Of all its threads: a program in Go starts processes from any of them."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


if __name__ == "__main__":
    sys.exit(main())
