"""The agent as a process of its own, fed by a folder of manifests, on a given runtime: `pykubelet --config f`.

Starts it, stops it politely or by SIGKILL, and knows where it keeps things, so that tests can look for themselves.
With a kubeconfig it joins that cluster as the node `node`, too; without one it has no API server.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import gather_all
from pykubelet.model.errors import CriError
from pykubelet.standalone.cleanup import unmount_below
from tests.bed.cgroups import CgroupTree
from tests.bed.crio import BedRuntime
from tests.bed.parts import blocking, free_port

logger = logging.getLogger(__name__)
NODE = "bed-node"


class BedAgent:
    """One node agent. Every method blocks."""

    def __init__(
        self,
        folder: Path,
        containerd: BedRuntime,
        cgroups: CgroupTree,
        *,
        node: str = NODE,
        kubeconfig: Path | None = None,
        flags: Sequence[str] = (),
        program: Path | None = None,
        disk: Path | None = None,
        **changes: Any,
    ) -> None:
        self.folder = folder
        self.disk = disk or folder
        """Where it keeps its pods and their logs."""
        self._program = program or Path(sys.executable).with_name("pykubelet")
        self.node = node
        self._flags = list(flags)
        if kubeconfig is not None:
            # Loopback may be no node's address; the gateway of the pod network is the machine's as well.
            self._flags += [f"--kubeconfig={kubeconfig}", f"--node-ip={containerd.gateway_ip}"]
        self.cgroups = cgroups
        self.manifests = folder / "manifests"
        self.root = self.disk / "root"
        """--root-dir; pod folders are in `pods` below it."""
        self.pod_logs = self.disk / "pod-logs"
        self.certificates = folder / "pki"
        self.log_file = folder / "agent.log"
        self.manifests.mkdir(parents=True, exist_ok=True)
        self._drafts = folder / "drafts"
        self._drafts.mkdir(exist_ok=True)
        self._config = folder / "config.json"
        self.settings = self._settings(containerd) | changes
        self._config.write_text(json.dumps(self.settings, indent=2))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise AssertionError("the agent is not started")
        return self._process.pid

    @property
    def status(self) -> int | None:
        """How it ended by itself; None while it runs or when a test stopped it."""
        return self._process.poll() if self._process is not None else None

    @property
    def arguments(self) -> list[str]:
        """What it is started with."""
        own = [f"--config={self._config}", f"--root-dir={self.root}", f"--hostname-override={self.node}"]
        return [*own, f"--cert-dir={self.certificates}", *self._flags]

    def start(self) -> None:
        assert self._process is None, "the agent is started already"
        # The kernel ends the agent when pytest is gone: nothing of ours may outlive a killed run.
        guard = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, str(self._program), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def kill9(self) -> None:
        """End it without a chance to do anything about it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self, grace: float = 20.0) -> int:
        """End it politely; gives its exit status."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(grace)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the agent did not stop within {grace:g} s:\n{self.tail()}") from None

    def put(self, name: str, manifest: Mapping[str, Any]) -> None:
        """Add or replace a manifest, in one step."""
        draft = self._drafts / f"{name}.json"
        draft.write_text(json.dumps(manifest))
        draft.rename(self.manifests / draft.name)

    def drop(self, name: str) -> None:
        (self.manifests / f"{name}.json").unlink()

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def tail(self, count: int = 30) -> str:
        return "\n".join(line[:400] for line in self.log().splitlines()[-count:])

    def _settings(self, containerd: BedRuntime) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": str(self.manifests),
            "podLogsDir": str(self.pod_logs),
            "containerRuntimeEndpoint": containerd.endpoint,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroups.name,
            "failSwapOn": False,
            "failCgroupV1": False,
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,  # tests leave the firewall of the machine alone
            "address": "127.0.0.1",
            "port": free_port(),
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "nodeLeaseDurationSeconds": 8,
        }


@contextmanager
def bed_agent(
    folder: Path,
    containerd: BedRuntime,
    *,
    node: str = NODE,
    kubeconfig: Path | None = None,
    flags: Sequence[str] = (),
    program: Path | None = None,
    disk: Path | None = None,
    **changes: Any,
) -> Iterator[BedAgent]:
    """A started agent with a cgroup of its own; `changes` replace fields of its configuration, `flags` are added.

    `program` is another kubelet to compare with, `disk` where it keeps its pods and their logs if not in `folder`. When
    the block ends, the pods it still runs are removed.
    """
    cgroups = CgroupTree(f"/{containerd.state_dir.name}-{os.getpid()}")
    cgroups.make()
    try:
        others = blocking(_sandboxes(containerd.endpoint))
        login: dict[str, Any] = {"node": node, "kubeconfig": kubeconfig, "flags": flags, "program": program}
        login["disk"] = disk
        agent = BedAgent(folder, containerd, cgroups, **login, **changes)
        agent.start()
        try:
            yield agent
        finally:
            agent.kill9()
            try:
                blocking(remove_pods(containerd.endpoint, keep=others))
            except CriError as error:
                # Must not hide why the test failed; what is left is ended with its cgroup.
                logger.warning("the runtime does not remove the pods of the test", extra={"error": str(error)})
            unmount_below(agent.disk)  # volumes of pods that were still there
    finally:
        cgroups.remove()


async def _sandboxes(endpoint: str) -> set[str]:
    async with GrpcCriClient(endpoint, clock=SystemClock()) as cri:
        return {box.id for box in await cri.list_pod_sandboxes()}


async def remove_pods(endpoint: str, keep: set[str]) -> None:
    """Remove everything the runtime has, but for these sandboxes."""
    async with GrpcCriClient(endpoint, clock=SystemClock()) as cri:
        running = [each for each in await cri.list_containers(running_only=True) if each.sandbox_id not in keep]
        await gather_all(*[cri.stop_container(each.id, 0) for each in running])
        boxes = [box.id for box in await cri.list_pod_sandboxes() if box.id not in keep]
        await gather_all(*[cri.stop_pod_sandbox(box) for box in boxes])
        await gather_all(*[cri.remove_pod_sandbox(box) for box in boxes])
