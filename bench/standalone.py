"""How soon the four containers of one pod run with `pykubelet up`, beside `podman kube play` with the same pod.

Each container's first act is to touch a file in a host folder; the time of the youngest file counts, so both are seen
from outside and in the same way. Three starts of ours: a manifest dropped into the folder of a running `up`, the
command `up` with the private containerd still there, and `up` that must start containerd first. podman (Debian's, if it
is installed) has its storage, network and state in a temporary folder, and gets the same images.
`python -m bench.standalone [ROUNDS] [--markdown]`; `make bench` runs it. Ends with 1 when
the first of these takes more than 1 s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import containerd_version, machine, update_document
from tests.bed.parts import scratch_folder

from pykubelet.standalone.cleanup import unmount_below
from pykubelet.standalone.images import BUSYBOX, PAUSE, build
from pykubelet.standalone.network import POOL
from pykubelet.standalone.programs import find_runtime

ROUNDS = 5
CONTAINERS = ("writer", "server", "client", "watcher")
GOAL = 1.0
"""Seconds until all four run."""
WITHIN = 60.0
MARKS = ("<!-- standalone:begin -->", "<!-- standalone:end -->")
DROPPED, WARM, COLD = "manifest into a running `up`", "`up`, containerd runs", "`up`, starts containerd"
PODMAN = "`podman kube play`"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.standalone", description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    parser.add_argument("--markdown", action="store_true", help="put the table into docs/performance.md")
    options = parser.parse_args()
    where = machine(containerd_version(find_runtime().containerd))
    taken: dict[str, list[float]] = {DROPPED: [], WARM: [], COLD: []}
    with scratch_folder("pkls-") as folder:
        ours = Ours(folder)
        other = Podman(folder) if shutil.which("podman") else None
        try:
            ours.warm_up()
            if other is not None:
                taken[PODMAN] = []
                other.warm_up()
            for _ in range(options.rounds):
                ours.measure(taken)
                if other is not None:
                    taken[PODMAN].append(other.measure())
        finally:
            ours.clean()
            if other is not None:
                other.clean()
    report(taken)
    if options.markdown:
        update_document(markdown(taken, where, options.rounds), marks=MARKS)
    for title in (DROPPED, WARM):
        print(f"{title}: all four within {GOAL:g} s: {'pass' if statistics.median(taken[title]) <= GOAL else 'FAIL'}")
    # The command's own time is mostly Python's start, which the machine decides; it is told, but ends nothing.
    return 0 if statistics.median(taken[DROPPED]) <= GOAL else 1


def report(taken: dict[str, list[float]]) -> None:
    print(f"{'four containers run after':32}{'median':>8}{'least':>8}{'most':>8}")
    for title, seconds in taken.items():
        print(f"{title:32}" + "".join(f"{v:6.2f} s" for v in (statistics.median(seconds), min(seconds), max(seconds))))
    if PODMAN not in taken:
        print("podman is not installed: nothing to compare with (apt-get install --no-install-recommends podman)")


def markdown(taken: dict[str, list[float]], where: dict[str, Any], rounds: int) -> str:
    lines = [
        f"{where['date']}: {where['cpus']} × {where['cpu']}, {where['memory']}, containerd {where['containerd']}, "
        f"{Podman.version() if PODMAN in taken else 'no podman'}, {rounds} rounds, load before {where['load']}.",
        "",
        "| all four containers run after | median | least | most |",
        "|---|---|---|---|",
    ]
    for title, seconds in taken.items():
        cells = (f"{value:.2f} s" for value in (statistics.median(seconds), min(seconds), max(seconds)))
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pod_manifest(marks: Path) -> dict[str, Any]:
    def container(name: str) -> dict[str, Any]:
        script = f"touch /marks/{name}; trap 'exit 0' TERM; sleep 100000 & wait"
        mounts = [{"name": "marks", "mountPath": "/marks"}]
        return {"name": name, "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script]} | {
            "volumeMounts": mounts
        }

    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "four", "labels": {"app": "four"}},
        "spec": {
            "terminationGracePeriodSeconds": 2,
            "containers": [container(name) for name in CONTAINERS],
            "volumes": [{"name": "marks", "hostPath": {"path": str(marks), "type": "Directory"}}],
        },
    }


class Marks:
    """The folder in which containers leave their sign."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()

    def clear(self) -> None:
        for mark in self.folder.iterdir():
            mark.unlink()

    def complete_at(self) -> float:
        """When the last container ran, in seconds since the epoch."""
        wait(lambda: len(list(self.folder.iterdir())) == len(CONTAINERS), "all containers run")
        return max(mark.stat().st_mtime_ns for mark in self.folder.iterdir()) / 1e9


def wait(question: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WITHIN
    while not question():
        if time.monotonic() > end:
            raise SystemExit(f"bench: not within {WITHIN:g} s: {what}")
        time.sleep(0.005)


class Ours:
    def __init__(self, folder: Path) -> None:
        self._state = folder / "s"
        self._marks = Marks(folder / "marks-ours")
        self._manifests = folder / "manifests"
        self._manifests.mkdir()
        self._draft = folder / "draft.json"
        self._output = folder / "up.log"
        self._up: subprocess.Popen[bytes] | None = None
        # As for anybody: Python keeps compiled modules. Where it is told not to, every start compiles everything.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environment = kept | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}

    def warm_up(self) -> None:
        """The images are packed and imported once and for all."""
        self._start()
        self._put()
        self._marks.complete_at()
        self._down()

    def measure(self, taken: dict[str, list[float]]) -> None:
        self._marks.clear()
        self._put()
        begun = self._start()
        taken[COLD].append(self._marks.complete_at() - begun)
        self._remove()
        begun = self._put()
        taken[DROPPED].append(self._marks.complete_at() - begun)
        self._remove()
        self._leave()
        self._put()
        begun = self._start()
        taken[WARM].append(self._marks.complete_at() - begun)
        self._down()

    def clean(self) -> None:
        self._run("down")
        if self._up is not None:
            self._up.wait(WITHIN)
        unmount_below(self._state)

    def _start(self) -> float:
        begun = time.time()
        with self._output.open("ab") as output:
            self._up = subprocess.Popen(
                [*self._command("up"), str(self._manifests)], stdout=output, stderr=output, env=self._environment
            )
        return begun

    def _put(self) -> float:
        self._draft.write_text(json.dumps(pod_manifest(self._marks.folder)))
        begun = time.time()
        self._draft.rename(self._manifests / "four.json")
        return begun

    def _remove(self) -> None:
        (self._manifests / "four.json").unlink()
        pods = self._state / "kubelet" / "pods"
        wait(lambda: not any(pods.iterdir()), "the pod is gone")
        self._marks.clear()

    def _leave(self) -> None:
        assert self._up is not None
        self._up.send_signal(signal.SIGINT)
        self._up.wait(WITHIN)

    def _down(self) -> None:
        self._run("down")
        assert self._up is not None
        self._up.wait(WITHIN)

    def _run(self, word: str) -> None:
        subprocess.run(self._command(word), stdout=subprocess.DEVNULL, check=True, env=self._environment)

    def _command(self, word: str) -> list[str]:
        return [str(Path(sys.executable).with_name("pykubelet")), word, "--state-dir", str(self._state)]


class Podman:
    """Debian's podman, with everything it keeps in a folder of ours."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="podman-", dir=folder))
        self._marks = Marks(folder / "marks-podman")
        self._manifest = self._folder / "four.json"
        self._manifest.write_text(json.dumps(pod_manifest(self._marks.folder)))
        config = self._folder / "containers.conf"
        # Our pause image, too: Debian has the program for podman's own in a package that not everybody installs. A
        # network beside ours: the usual one may meet a network of the machine. And limits that may be set everywhere.
        subnet = list(POOL.subnets(new_prefix=24))[-1]
        limits = ["nofile=1024:1024", "nproc=4096:4096"]
        config.write_text(
            f'[containers]\ndefault_ulimits = {json.dumps(limits)}\n[engine]\ninfra_image = "{PAUSE}"\n'
            f'[network]\ndefault_subnet = "{subnet}"\n'
        )
        self._environment = {**os.environ, "CONTAINERS_CONF": str(config)}

    @staticmethod
    def version() -> str:
        return subprocess.run(["podman", "--version"], capture_output=True, text=True, check=True).stdout.strip()

    def warm_up(self) -> None:
        for number, archive in enumerate(build([BUSYBOX, PAUSE])):
            tar = self._folder / f"{number}.tar"
            tar.write_bytes(archive.data)
            self._run("load", "-i", str(tar))
        self.measure()

    def measure(self) -> float:
        self._marks.clear()
        begun = time.time()
        self._run("kube", "play", str(self._manifest))
        took = self._marks.complete_at() - begun
        self._run("pod", "rm", "--force", "--all", "--time", "1")
        return took

    def clean(self) -> None:
        self._run("pod", "rm", "--force", "--all", "--time", "1")
        self._run("network", "prune", "--force")
        unmount_below(self._folder)

    def _run(self, *words: str) -> None:
        own = {"--root": "root", "--runroot": "run", "--tmpdir": "tmp", "--network-config-dir": "net"}
        places = [text for option, name in own.items() for text in (option, str(self._folder / name))]
        command = ["podman", *places, "--cgroup-manager=cgroupfs", "--events-backend=none", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=self._environment, check=False)
        if done.returncode != 0:
            raise SystemExit(f"bench: podman {' '.join(words)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
