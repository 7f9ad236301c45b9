"""Gathers the facts about a pod and explains it: what /explain, `explain` and `up` show.

Also finds pods that their source has given up and that are still ending. Does not judge anything itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pykubelet.api.types import ObjectMeta, Pod, PodStatus
from pykubelet.clients.kube.port import Unreadable
from pykubelet.context import Context
from pykubelet.explain.explain import explain
from pykubelet.explain.facts import NodeFacts, PodFacts, no_log
from pykubelet.explain.view import Explanation
from pykubelet.kit.host_calls import host_calls
from pykubelet.model.pod import is_static, name_of, namespace_of, uid_of
from pykubelet.model.runtime_status import ContainerState, PodRuntimeStatus
from pykubelet.pleg.runtime_state import RuntimeState
from pykubelet.pods.record import WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.runtime.logs import LogFiles
from pykubelet.volumes.manager import VolumeManager

LOG_LINES = 5
LOG_BYTES = 2000


class Explainer:
    def __init__(
        self,
        ctx: Context,
        table: PodTable,
        volumes: VolumeManager,
        runtime: RuntimeState,
        unreadable: Callable[[], Sequence[Unreadable]] = lambda: (),
        turn: Callable[[str], int | None] = lambda uid: None,
    ) -> None:
        """`unreadable` are the pods whose newest version at the API server cannot be read; `turn` is the place of a
        pod among those that wait for the runtime."""
        self._table = table
        self._volumes = volumes
        self._runtime = runtime
        self._unreadable = unreadable
        self._turn = turn
        self._recorder = ctx.recorder
        self._clock = ctx.clock
        self._logs = LogFiles()

    def pods(self) -> list[Pod]:
        """The pods the sources want, and those that are still ending."""
        wanted = self._table.pods()
        known = {uid_of(pod) for pod in wanted}
        ending = [worker.pod for worker in self._table.workers() if worker.is_ending and worker.pod is not None]
        return wanted + [pod for pod in ending if uid_of(pod) not in known]

    def find(self, namespace: str, name: str) -> Pod | None:
        return find_pod(self.pods(), namespace, name)

    def __call__(self, namespace: str, name: str) -> dict[str, Any] | None:
        """What /explain serves; None for a pod this node does not know."""
        pod = self.find(namespace, name) or self._unread(namespace, name)
        return self.explain(pod).to_json() if pod is not None else None

    def explain(self, pod: Pod) -> Explanation:
        return explain(self.facts(pod))

    def explain_status(self, pod: Pod, status: PodStatus) -> Explanation:
        """As if this status had been reported already; without reading logs, because it is called often."""
        return explain(replace(self.facts(pod), status=status, last_log=no_log))

    def _unread(self, namespace: str, name: str) -> Pod | None:
        """What is known of a pod that could never be read."""
        for each in self._unreadable():
            if (each.namespace, each.name) == (namespace, name):
                return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=each.uid))
        return None

    def facts(self, pod: Pod) -> PodFacts:
        uid = uid_of(pod)
        observed = self._table.runtime_status(uid)
        life = self._recorder.life(uid)
        worker = self._table.worker(uid)
        active = worker if worker is not None and worker.state is not WorkerState.FINISHED else None
        due = active.next_run if active is not None else None
        return PodFacts(
            pod=pod,
            status=self._table.reported_status(uid) or pod.status,
            life=list(life.entries) if life is not None else [],
            worker=active,
            next_run_in=None if due is None else max(0.0, due - self._clock.monotonic()),
            failures=self._table.start_failures(uid),
            volume_problems=self._volumes.problems(uid),
            runtime=observed,
            node=self._node_facts(),
            unreadable=next((each.why for each in self._unreadable() if each.uid == uid), ""),
            grace=worker.grace if worker is not None else None,
            now=self._clock.now(),
            turn=functools.partial(self._turn, uid),
            hanging=[(str(call), call.took) for call in host_calls.stuck(uid)],
            last_log=functools.cache(lambda container, previous: self._tail(observed, container, previous)),
        )

    def _node_facts(self) -> NodeFacts:
        if self._runtime.is_up():
            return NodeFacts(network_problem=self._runtime.network_problem())
        return NodeFacts(runtime_up=False, runtime_problem=self._runtime.runtime_problem() or "it does not answer")

    def _tail(self, observed: PodRuntimeStatus, container: str, previous: bool) -> Sequence[str]:
        ended = [c for c in observed.containers if c.name == container and c.state is ContainerState.EXITED]
        runs = ended if previous else [c for c in observed.containers if c.name == container]
        if not runs or not runs[0].log_path:
            return ()
        text = self._logs.tail(Path(runs[0].log_path), lines=LOG_LINES, limit_bytes=LOG_BYTES)
        return [line.rstrip("\r") for line in text.splitlines() if line.strip()]


def find_pod(pods: Iterable[Pod], namespace: str, name: str) -> Pod | None:
    """By its full name; else a static pod by the name its manifest gives it, without the node's behind it."""
    here = [pod for pod in pods if namespace_of(pod) == namespace]
    for pod in here:
        if name_of(pod) == name:
            return pod
    return next((pod for pod in here if is_static(pod) and name_of(pod) == f"{name}-{pod.spec.node_name}"), None)
