"""The probe workers of all pods: made in the pod's sync, woken by changes of the pod, ended with it.

`container_changed` is to be called after each change of a pod's status; it is what makes probes begin the moment
a container runs or has started. Results go into the pod's record; nothing is decided from them here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from pykubelet.api.types import Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.clients.http.port import PodNetwork
from pykubelet.context import Context
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.pod import AnyContainer, ContainerKind, ProbeKind, is_sidecar, probes_of, uid_of
from pykubelet.pods.table import PodTable
from pykubelet.probes.executors import ProbeExecutor
from pykubelet.probes.worker import ProbeMetrics, ProbeTools, ProbeWorker, WorkerSnapshot

logger = logging.getLogger(__name__)

_Key = tuple[str, ProbeKind]


class ProbeManager:
    name = "probes"

    def __init__(
        self,
        ctx: Context,
        *,
        cri: CriClient,
        network: PodNetwork,
        table: PodTable,
        spread: Callable[[], float] = random.random,
    ) -> None:
        self.metrics = ProbeMetrics()
        self._tools = ProbeTools(
            ctx=ctx,
            executor=ProbeExecutor(cri, network),
            table=table,
            metrics=self.metrics,
            agent_started=ctx.started,
            keep_reported=not ctx.settings.gates.enabled("ChangeContainerStatusOnKubeletRestart"),
            spawn=self._spawn,
            spread=spread,
        )
        self._pods: dict[str, dict[_Key, ProbeWorker]] = {}
        self._tasks: TaskSet | None = None
        self._changed: set[str] = set()

    async def run(self) -> None:
        async with TaskSet("probes") as tasks:
            self._tasks = tasks
            self._check_soon(self._pods)
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self._tasks = None
                for uid in list(self._pods):
                    self.remove_pod(uid)

    # --- pods -------------------------------------------------------------------------------------

    def add_pod(self, pod: Pod) -> None:
        """Make the workers the pod lacks and give the others its newest version. Safe to repeat."""
        uid = uid_of(pod)
        workers = self._pods.get(uid, {})
        for container_kind, container in _probed(pod):
            for kind, probe in probes_of(container).items():
                key = (container.name or "", ProbeKind(kind))
                if key not in workers:
                    workers[key] = ProbeWorker(
                        tools=self._tools,
                        pod=pod,
                        container=container,
                        container_kind=container_kind,
                        kind=key[1],
                        probe=probe,
                    )
        if not workers:
            return
        for worker in workers.values():
            worker.pod = pod
        self._pods[uid] = workers
        self._check_soon((uid,))

    def stop_for_termination(self, pod: Pod) -> None:
        """End liveness and startup probes; readiness goes on so that the pod is taken out of service."""
        workers = self._pods.get(uid_of(pod), {})
        for worker in workers.values():
            worker.pod = pod
            if worker.kind is not ProbeKind.READINESS:
                worker.stop()

    def remove_pod(self, uid: str) -> None:
        for worker in self._pods.pop(uid, {}).values():
            worker.stop()

    def keep_only(self, uids: Iterable[str]) -> None:
        wanted = set(uids)
        for uid in [uid for uid in self._pods if uid not in wanted]:
            self.remove_pod(uid)

    # --- changes -------------------------------------------------------------------------------------

    def container_changed(self, uid: str) -> None:
        """Handle a change of the pod's status: a container runs, started, ended, or is another one. Quick."""
        if uid in self._pods:
            self._check_soon((uid,))

    def snapshot(self) -> dict[str, list[WorkerSnapshot]]:
        return {uid: [worker.snapshot() for worker in workers.values()] for uid, workers in self._pods.items()}

    def _check_soon(self, uids: Iterable[str]) -> None:
        """Check once the caller is done: changes come in bursts, and often from a worker's own result."""
        if self._tasks is None:
            return
        if not self._changed:
            asyncio.get_running_loop().call_soon(self._check)
        self._changed.update(uids)

    def _check(self) -> None:
        changed, self._changed = self._changed, set()
        for uid in changed:
            for worker in list(self._pods.get(uid, {}).values()):
                worker.check()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        if self._tasks is None:
            work.close()
            raise RuntimeError(f"probes are not running, cannot start {name}")
        return self._tasks.spawn(work, name=name)


def _probed(pod: Pod) -> Iterator[tuple[ContainerKind, AnyContainer]]:
    """Containers whose probes are run: regular ones and sidecars."""
    for container in pod.spec.containers:
        yield ContainerKind.REGULAR, container
    for container in pod.spec.init_containers:
        if is_sidecar(container):
            yield ContainerKind.INIT, container
