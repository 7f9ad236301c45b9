"""Gathers the facts about a pod from all over the agent and explains it: what /explain, `explain` and `up` show.

Every part is a small Protocol; a part that is missing only makes the answer poorer. Also finds pods that their source
has given up and that are still ending. Does not judge anything itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from pykubelet.api.types import ObjectMeta, Pod, PodStatus
from pykubelet.explain.explain import explain
from pykubelet.explain.facts import EventView, NodeFacts, PodFacts, WorkerView, no_log
from pykubelet.explain.view import Explanation
from pykubelet.kit.clock import Clock
from pykubelet.model.life import PodLife
from pykubelet.model.pod import is_static, name_of, namespace_of, uid_of
from pykubelet.model.runtime_status import ContainerState, PodRuntimeStatus

LOG_LINES = 5
LOG_BYTES = 2000


class Pods(Protocol):
    def pods(self) -> Sequence[Pod]: ...


class StateView(Protocol):
    """The node's decision about one pod (pods/record.py)."""

    @property
    def pod(self) -> Pod | None: ...

    @property
    def grace(self) -> int | None: ...

    @property
    def is_ending(self) -> bool: ...


class States(Protocol):
    def worker(self, uid: str, /) -> StateView | None: ...

    def workers(self) -> Sequence[StateView]: ...


class Lives(Protocol):
    def life(self, uid: str, /) -> PodLife | None: ...


class Workers(Protocol):
    def snapshot(self) -> Mapping[str, WorkerView]: ...


class Volumes(Protocol):
    def problems(self, uid: str, /) -> Sequence[str]: ...


class Events(Protocol):
    def of_pod(self, uid: str, /) -> Sequence[EventView]: ...


class UnreadableView(Protocol):
    """A pod that cannot be read (clients/kube/unreadable.py)."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def why(self) -> str: ...


class Runtime(Protocol):
    def is_up(self) -> bool: ...

    def runtime_problem(self) -> str: ...

    def network_problem(self) -> str: ...


class LogTail(Protocol):
    def tail(self, path: Path, *, lines: int, limit_bytes: int) -> str: ...


class Explainer:
    def __init__(
        self,
        *,
        pods: Pods,
        states: States,
        status: Callable[[str], PodStatus | None],
        seen: Callable[[str], PodRuntimeStatus],
        lives: Lives,
        workers: Workers,
        events: Events,
        runtime: Runtime,
        logs: LogTail,
        clock: Clock,
        volumes: Volumes | None = None,
        hanging: Callable[[str], Sequence[tuple[str, float]]] = lambda uid: (),
        unreadable: Callable[[], Sequence[UnreadableView]] = lambda: (),
    ) -> None:
        """`unreadable` are the pods whose newest version at the API server cannot be read."""
        self._pods = pods
        self._states = states
        self._status = status
        self._seen = seen
        self._lives = lives
        self._workers = workers
        self._events = events
        self._runtime = runtime
        self._logs = logs
        self._clock = clock
        self._volumes = volumes
        self._hanging = hanging
        self._unreadable = unreadable

    def pods(self) -> list[Pod]:
        """The pods the sources want, and those that are still ending."""
        wanted = list(self._pods.pods())
        known = {uid_of(pod) for pod in wanted}
        ending = [worker.pod for worker in self._states.workers() if worker.is_ending and worker.pod is not None]
        return wanted + [pod for pod in ending if uid_of(pod) not in known]

    def find(self, namespace: str, name: str) -> Pod | None:
        return find_pod(self.pods(), namespace, name)

    def __call__(self, namespace: str, name: str) -> dict[str, Any] | None:
        """What /explain serves; None for a pod this node does not know."""
        pod = self.find(namespace, name) or self._unread(namespace, name)
        return self.explain(pod).to_json() if pod is not None else None

    def explain(self, pod: Pod) -> Explanation:
        return explain(self.facts(pod))

    def explain_told(self, pod: Pod, status: PodStatus) -> Explanation:
        """As if this status had been told already; without looking into logs, because it is asked often."""
        return explain(replace(self.facts(pod), status=status, last_log=no_log))

    def _unread(self, namespace: str, name: str) -> Pod | None:
        """What is known of a pod that could never be read."""
        for each in self._unreadable():
            if (each.namespace, each.name) == (namespace, name):
                return Pod(metadata=ObjectMeta(name=name, namespace=namespace, uid=each.uid))
        return None

    def facts(self, pod: Pod) -> PodFacts:
        uid = uid_of(pod)
        seen = self._seen(uid)
        life = self._lives.life(uid)
        state = self._states.worker(uid)
        up = self._runtime.is_up()
        return PodFacts(
            pod=pod,
            status=self._status(uid) or pod.status,
            life=list(life.entries) if life is not None else [],
            worker=self._workers.snapshot().get(uid),
            volume_problems=self._volumes.problems(uid) if self._volumes is not None else (),
            events=self._events.of_pod(uid),
            seen=seen,
            node=NodeFacts(
                runtime_up=up,
                runtime_problem="" if up else self._runtime.runtime_problem() or "it does not answer",
                network_problem=self._runtime.network_problem() if up else "",
            ),
            unreadable=next((each.why for each in self._unreadable() if each.uid == uid), ""),
            grace=state.grace if state is not None else None,
            now=self._clock.now(),
            hanging=self._hanging(uid),
            last_log=functools.cache(lambda container, previous: self._tail(seen, container, previous)),
        )

    def _tail(self, seen: PodRuntimeStatus, container: str, previous: bool) -> Sequence[str]:
        ended = [c for c in seen.containers if c.name == container and c.state is ContainerState.EXITED]
        runs = ended if previous else [c for c in seen.containers if c.name == container]
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
