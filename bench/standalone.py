"""How soon the four containers of one pod run with `pykubelet up`, beside `podman kube play` with the same pod.

Each container's first act is to touch a file in a host folder; the time of the youngest file counts, so both are seen
from outside and in the same way. Three starts of ours: a manifest dropped into the folder of a running `up`, the
command `up` with the private containerd still there, and `up` that must start containerd first. podman (Debian's, if it
is installed) has its storage, network and state in a temporary folder, and gets the same images. And how long each
command takes while that `up` runs with its pod, from its start to its end.
`python -m bench.standalone [ROUNDS] [--markdown] [--source FOLDER]`; `make bench` runs it. What was measured is added
to bench/standalone.json, which the tables are made from. Ends with 1 when a budget does not hold.
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

from bench.report import commit, containerd_version, machine, update_document
from tests.bed.parts import scratch_folder

from pykubelet.cli.errors import TROUBLE
from pykubelet.standalone.cleanup import unmount_below
from pykubelet.standalone.images import BUSYBOX, PAUSE, build
from pykubelet.standalone.network import POOL
from pykubelet.standalone.programs import find_runtime

ROUNDS = 5
CONTAINERS = ("writer", "server", "client", "watcher")
DROPPED, WARM, COLD = "manifest into a running `up`", "`up`, containerd runs", "`up`, starts containerd"
PODMAN = "`podman kube play`"
GOALS = {DROPPED: 1.0, WARM: 0.5, COLD: 0.5}
"""Seconds until all four run."""
COMMAND_GOAL = 0.15
WAITS_FOR_OTHERS = "exec four -- true"
"""Has no budget: most of its time is the process that the runtime starts in the container."""
COMMANDS = (
    *("--version", "--help", "help", "status", "get pods", "get pods -o yaml", "describe pod four", "explain four"),
    *("logs four", "events", "top", "image ls", WAITS_FOR_OTHERS, "check FILE", "completion bash"),
)
"""FILE is the manifest."""
ASK_EACH = 3
"""Times in each round."""
WITHIN = 60.0
MARKS = ("<!-- standalone:begin -->", "<!-- standalone:end -->")
RESULTS = Path(__file__).with_suffix(".json")

Samples = dict[str, list[float]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.standalone", description=__doc__.splitlines()[0])
    parser.add_argument("rounds", nargs="?", type=int, default=ROUNDS)
    parser.add_argument("--markdown", action="store_true", help="put the tables into docs/performance.md")
    parser.add_argument("--source", type=Path, help="the checkout to measure, if it is not this one")
    options = parser.parse_args()
    where = machine(containerd_version(find_runtime().containerd))
    taken: Samples = {DROPPED: [], WARM: [], COLD: []}
    asked: Samples = {words: [] for words in COMMANDS}
    with scratch_folder("pkls-") as folder:
        ours = Ours(folder, options.source)
        other = Podman(folder) if shutil.which("podman") else None
        try:
            ours.warm_up()
            if other is not None:
                taken[PODMAN] = []
                other.warm_up()
            for _ in range(options.rounds):
                ours.measure(taken, asked)
                if other is not None:
                    taken[PODMAN].append(other.measure())
        finally:
            ours.clean()
            if other is not None:
                other.clean()
    podman = Podman.version() if other is not None else "no podman"
    found = {"commit": commit(options.source), "machine": where, "podman": podman, "rounds": options.rounds}
    run = found | {"seconds": _rounded(taken), "commands": _rounded(asked)}
    runs = [each for each in known_runs() if each["commit"] != run["commit"]] + [run]
    RESULTS.write_text(json.dumps({"runs": runs}, indent=1, ensure_ascii=False) + "\n")
    if options.markdown:
        update_document(markdown(runs), marks=MARKS)
    print(markdown([run]))
    return report(taken, asked)


def known_runs() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(RESULTS.read_text())["runs"]
    return runs


def _rounded(samples: Samples) -> Samples:
    return {title: [round(value, 4) for value in values] for title, values in samples.items()}


def report(taken: Samples, asked: Samples) -> int:
    """Say which budgets hold; the exit status."""
    goals = [(title, taken[title], goal) for title, goal in GOALS.items()]
    goals += [(words, values, COMMAND_GOAL) for words, values in asked.items() if words != WAITS_FOR_OTHERS]
    missed = 0
    for title, values, goal in goals:
        holds = statistics.median(values) <= goal
        missed += not holds
        print(f"{title}: {statistics.median(values):.3f} s of {goal:g} s: {'pass' if holds else 'FAIL'}")
    if PODMAN not in taken:
        print("podman is not installed: nothing to compare with (apt-get install --no-install-recommends podman)")
    return 1 if missed else 0


def markdown(runs: list[dict[str, Any]]) -> str:
    """One column for each checkout that was measured: median (least to most)."""
    lines = [
        f"- {run['commit']}, {where['date']}: {where['cpus']} × {where['cpu']}, {where['memory']}, "
        f"containerd {where['containerd']}, {run['podman']}, {run['rounds']} rounds, load before {where['load']}."
        for run in runs
        for where in (run["machine"],)
    ]
    names = [run["commit"] for run in runs]
    for key, head in (("seconds", "all four containers run after"), ("commands", "command, from start to end")):
        lines += ["", f"| {head} | {' | '.join(names)} | budget |", "|---|" + "---|" * (len(names) + 1)]
        for title in runs[-1][key]:
            cells = [_spread(run[key].get(title, [])) for run in runs]
            goal = GOALS.get(title, None if key == "seconds" or title == WAITS_FOR_OTHERS else COMMAND_GOAL)
            shown = title if key == "seconds" else f"`{title}`"
            lines.append(f"| {shown} | {' | '.join(cells)} | {f'{goal:g} s' if goal else ''} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


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
    def __init__(self, folder: Path, source: Path | None = None) -> None:
        """`source`: a checkout to run instead of the installed one."""
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
        if source is not None:
            self._environment["PYTHONPATH"] = str(source.resolve() / "src")

    def warm_up(self) -> None:
        """The images are packed and imported once and for all."""
        self._start()
        self._put()
        self._marks.complete_at()
        self._down()

    def measure(self, taken: Samples, asked: Samples) -> None:
        self._marks.clear()
        self._put()
        begun = self._start()
        taken[COLD].append(self._marks.complete_at() - begun)
        self._ask(asked)
        self._remove()
        begun = self._put()
        taken[DROPPED].append(self._marks.complete_at() - begun)
        self._remove()
        self._leave()
        self._put()
        begun = self._start()
        taken[WARM].append(self._marks.complete_at() - begun)
        self._down()

    def _ask(self, asked: Samples) -> None:
        """Every command by turns; the first answer of an agent loads its server, so one question comes before."""
        program, environment = self._command("")[0], self._environment | {"PYKUBELET_STATE_DIR": str(self._state)}
        for words in ("status", *(words for _ in range(ASK_EACH) for words in COMMANDS)):
            command = [program, *words.replace("FILE", str(self._manifests / "four.json")).split()]
            begun = time.monotonic()
            done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment)
            took = time.monotonic() - begun
            if done.returncode not in (0, TROUBLE):
                raise SystemExit(f"bench: pykubelet {words}: status {done.returncode}: {done.stderr.strip()}")
            asked[words].append(took)
        del asked["status"][-ASK_EACH - 1]

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
