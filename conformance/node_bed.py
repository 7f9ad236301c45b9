"""The bed of Kubernetes' node suite: a set of Linux namespaces of its own with a containerd and one kubelet in it.

`e2e_node.test` starts and stops the kubelet itself and wants a machine for that: fixed ports, /var/lib/kubelet,
systemd-run. Here it gets its own network, mounts, processes, hostname and cgroup root, so that two beds may run side
by side and everything in one ends with its first process. Small stand-ins for systemd-run and systemctl are on PATH.

`run_inside` is called on the host; it starts `python -m conformance.node_inside` in the namespaces.
"""

from __future__ import annotations

import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from conformance.report import GO
from tests.bed.cgroups import CgroupTree, cgroup_mounts
from tests.bed.cluster import go_programs
from tests.bed.parts import REPO

from pykubelet.standalone.cleanup import unmount_below

STAND_INS = Path(__file__).resolve().with_name("stand_ins")
NODE = "node-suite"
NAMESPACES = ("--net", "--mount", "--uts", "--pid", "--ipc", "--cgroup")
MEMORY = 6 * 2**30
LIMITS = {
    # A group has the processor share of one process by default; a bed is many.
    "cpu.shares": "3072",
    "cpu.weight": "300",
    "memory.limit_in_bytes": str(MEMORY),
    "memory.max": str(MEMORY),
    "pids.max": "16384",
}
FIRST_PROCESS = """
{command} & child=$!
trap 'kill -TERM $child' TERM
while kill -0 $child 2>/dev/null; do wait $child; status=$?; done
exit $status
"""
ASK_AGAIN = 300.0
"""Seconds that ginkgo gets to write its report after it was told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run in a bed; travels as JSON to the process inside."""

    agent: str
    folder: str
    """Everything of the run: logs, ginkgo's report, the private folders that are mounted over the machine's."""
    programs: str
    """Folder of e2e_node.test and nmeter."""
    common: str
    """Folder of ginkgo, agnhost and the other programs that images hold."""
    plugins: str
    """Folder of the sample device plugin."""
    containerd: str
    runc: str
    ginkgo: Sequence[str] = ()
    """Options of ginkgo."""
    suite: Sequence[str] = ()
    """Options of e2e_node.test."""

    @property
    def home(self) -> Path:
        return Path(self.folder)

    @property
    def report(self) -> Path:
        return self.home / "ginkgo.json"


def job(agent: str, folder: Path, ginkgo: Sequence[str], suite: Sequence[str]) -> Job:
    """Builds what is missing."""
    bins = folder / "bin"
    bins.mkdir()
    kubelet = go_programs("controlplane") / "kubelet"
    write_kubelet(bins / "kubelet", kubelet if agent == GO else None)
    (folder / "kubelet.json").write_text(json.dumps(base_configuration(), indent=1))
    return Job(
        agent=agent,
        folder=str(folder),
        programs=str(go_programs("node-e2e")),
        common=str(go_programs("e2e")),
        plugins=str(go_programs("plugins")),
        containerd=str(go_programs("containerd2")),
        runc=str(go_programs("runc") / "runc"),
        ginkgo=ginkgo,
        suite=suite,
    )


def write_kubelet(file: Path, program: Path | None) -> None:
    """The script that the suite starts as kubelet; with `program` it is that one, otherwise this checkout's agent."""
    lines = ["#!/bin/bash"]
    if program is None:
        program = named_python(file.parent / "python")
        lines += [
            f"export PYTHONPATH={shlex.quote(str(REPO / 'src'))}",
            f'exec {shlex.quote(str(program))} -m pykubelet "$@"',
        ]
    else:
        lines.append(f'exec {shlex.quote(str(program))} "$@"')
    file.write_text("\n".join(lines) + "\n")
    file.chmod(0o755)


def named_python(folder: Path) -> Path:
    """This Python with this virtual environment's packages as a program called kubelet: specs find it by that name."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)
    program = folder / "bin" / "kubelet"
    program.symlink_to(os.path.realpath(sys.executable))
    return program


def base_configuration() -> dict[str, object]:
    """What Kubernetes' own jobs use, and what this machine makes necessary."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "podCIDR": "10.100.0.0/24",
        "volumeStatsAggPeriod": "10s",
        "fileCheckFrequency": "10s",
        "evictionPressureTransitionPeriod": "30s",
        "evictionHard": {"memory.available": "250Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
        "evictionMinimumReclaim": {"nodefs.available": "5%", "nodefs.inodesFree": "5%"},
        "serializeImagePulls": False,
        "failCgroupV1": False,
        "failSwapOn": False,
        # A Go kubelet may not raise its limit without CAP_SYS_RESOURCE, and does not start then.
        "maxOpenFiles": min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1_000_000),
    }


def ginkgo_command(
    ginkgo: str | Path, suite: str | Path, *, home: str | Path, endpoint: str, node: str
) -> tuple[list[str], list[str]]:
    """How ginkgo is started, and the suite in it; the options of a part come after each of them."""
    before = [str(ginkgo), "run", "--no-color", "-v", f"--output-dir={home}", "--json-report=ginkgo.json"]
    after = [
        str(suite),
        "--",
        f"--k8s-bin-dir={home}/bin",
        f"--kubelet-config-file={home}/kubelet.json",
        f"--container-runtime-endpoint={endpoint}",
        "--container-runtime-process-name=containerd",
        "--container-runtime-pid-file=",  # it is looked for by its name: the bed's file tells more than a number
        "--prepull-images=false",
        f"--node-name={node}",
        f"--report-dir={home}/report",
        "--dump-logs-on-failure=false",
    ]
    return before, after


def private_folder() -> Path:
    """Not below /tmp, because the bed has one of its own; open to the users of pods in user namespaces, whose root file
    systems and volumes are below it."""
    folder = Path(tempfile.mkdtemp(prefix="pklnode-", dir="/var/tmp"))
    folder.chmod(0o711)
    return folder


def run_inside(work: Job) -> int:
    """Run the job in namespaces of its own; gives ginkgo's exit status. SIGINT and SIGTERM end it early, with a report
    of the specs that were over."""
    tree = CgroupTree(f"/{work.home.name}")
    tree.make()
    limit(work.home.name)
    (work.home / "job.json").write_text(json.dumps(asdict(work), indent=1))
    inner = [sys.executable, "-m", "conformance.node_inside", str(work.home / "job.json")]
    # bash is the first process because it takes in orphans; the namespaces end when it does.
    script = FIRST_PROCESS.format(command=shlex.join(inner))
    unshare = [shutil.which("unshare") or "unshare", *NAMESPACES, "--fork", "--kill-child", "--propagation=private"]
    groups = [str(mount / work.home.name / "cgroup.procs") for mount in cgroup_mounts()]
    enter = "".join(f"echo $$ >{shlex.quote(group)} || exit 2; " for group in groups)
    command = ["bash", "-c", f"{enter}exec {shlex.join([*unshare, 'bash', '-c', script])}"]
    environment = {**os.environ, "PYTHONPATH": f"{REPO / 'src'}:{REPO}"}
    try:
        with (work.home / "bed.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=REPO,
                start_new_session=True,
            )
            return wait_politely(process)
    finally:
        tree.remove()
        unmount_below(work.home)


def limit(group: str) -> None:
    """Some specs eat all memory they can get, which must not be the machine's."""
    for mount in cgroup_mounts():
        for file, value in LIMITS.items():
            if (mount / group / file).exists():
                (mount / group / file).write_text(value)


def wait_politely(process: subprocess.Popen[bytes]) -> int:
    """Until it ended; a signal to us is handed on once, then it has ASK_AGAIN seconds."""
    told = False
    with stoppable() as stop:
        while (status := process.poll()) is None:
            if stop.at and not told:
                told = True
                ask_to_stop(process.pid)
            if stop.at and time.monotonic() - stop.at > ASK_AGAIN:
                process.kill()
            time.sleep(0.2)
        return status


@dataclass(slots=True)
class Stop:
    at: float = 0.0
    """When the first signal came; 0 before."""


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Note SIGINT and SIGTERM instead of ending by them."""
    stop = Stop()

    def note(_number: int, _frame: object) -> None:
        stop.at = stop.at or time.monotonic()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ask_to_stop(unshare: int) -> None:
    """SIGTERM to the first process of the namespaces, the only child of unshare."""
    for child in Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split():
        os.kill(int(child), signal.SIGTERM)
