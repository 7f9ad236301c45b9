"""The table of all pods: one record per UID, indexes by name, and what others need to know about pods.

A record is there while any of its parts is. Mirror pods are API objects that stand for a static pod, with UIDs of
their own: they are kept beside the records, paired by name. Until the first housekeeping pass (`mark_synced`) not
every source has been read, so questions about unknown pods are answered in the way that removes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType

from pykubelet.api.types import Pod, PodStatus
from pykubelet.model.errors import CriError
from pykubelet.model.pod import (
    HASH_ANNOTATION,
    MIRROR_ANNOTATION,
    PodUID,
    ProbeKey,
    ProbeOutcome,
    full_name,
    is_mirror,
    is_static,
    uid_of,
)
from pykubelet.model.problems import ContainerProblem
from pykubelet.model.runtime_status import Life, PodRuntimeStatus
from pykubelet.pods.record import NEVER, ObservedRuntime, Orphan, PodRecord, PodWorker, ReportedStatus, WorkerState

NOTHING: Mapping[str, ContainerProblem] = MappingProxyType({})
NO_OUTCOMES: Mapping[ProbeKey, ProbeOutcome] = MappingProxyType({})


class PodTable:
    def __init__(self) -> None:
        self._records: dict[str, PodRecord] = {}
        self._desired: dict[str, PodRecord] = {}
        """Records of pods that a source has, in the order they were added."""
        self._names: dict[str, PodRecord] = {}
        self._mirrors: dict[str, Pod] = {}
        self._mirror_names: dict[str, PodUID] = {}
        self._synced = False
        self._listed_at = NEVER
        """When the last full listing of the runtime was started."""
        self._listed_up: frozenset[str] = frozenset()
        self._listed_running: frozenset[str] = frozenset()
        self.undecided: set[PodUID] = set()
        """Pods whose admission failed or waits: neither started nor cleaned up until it is decided. The loop's."""

    def get(self, uid: str) -> PodRecord | None:
        return self._records.get(uid)

    def __iter__(self) -> Iterator[PodRecord]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def _record(self, uid: PodUID) -> PodRecord:
        record = self._records.get(uid)
        if record is None:
            record = self._records[uid] = PodRecord(uid)
        return record

    def _drop_if_empty(self, record: PodRecord) -> None:
        if record.is_empty:
            self._records.pop(record.uid, None)

    # --- desired pods; written by the sync loop -------------------------------------------------

    def put(self, pod: Pod) -> None:
        """Add a pod or mirror, or replace the one of the same UID."""
        if is_mirror(pod):
            self._put_mirror(pod)
            return
        record = self._record(uid_of(pod))
        if record.pod is not None and full_name(record.pod) != full_name(pod):
            self._unname(record, full_name(record.pod))  # a fixed UID given to another name
            del self._desired[record.uid]
        record.pod = pod
        self._desired[record.uid] = record
        self._names[full_name(pod)] = record

    def remove(self, pod: Pod) -> None:
        """Forget a desired pod or mirror. Unknown ones are fine; a newer pod of the same name stays."""
        if is_mirror(pod):
            self._remove_mirror(uid_of(pod))
            return
        record = self._desired.pop(uid_of(pod), None)
        if record is None or record.pod is None:
            return
        name = full_name(record.pod)
        record.pod = None
        self._unname(record, name)
        self._drop_if_empty(record)

    def _unname(self, record: PodRecord, name: str) -> None:
        if self._names.get(name) is not record:
            return
        del self._names[name]
        # Two UIDs of one name can overlap for a moment; the one that is left is found by the name.
        for other in self._desired.values():
            if other is not record and other.pod is not None and full_name(other.pod) == name:
                self._names[name] = other
                return

    def pods(self) -> list[Pod]:
        """All desired pods without mirrors, in the order they were added. May be called from any thread."""
        # Copied first: the loop may add and remove pods while a thread (the OOM watcher's) goes through them.
        return [record.pod for record in list(self._desired.values()) if record.pod is not None]

    def static_pods(self) -> list[Pod]:
        return [pod for pod in self.pods() if is_static(pod)]

    def pod(self, uid: str) -> Pod | None:
        """The pod as its source has it."""
        record = self._desired.get(uid)
        return record.pod if record is not None else None

    def is_desired(self, uid: str) -> bool:
        return uid in self._desired

    def by_full_name(self, name: str) -> Pod | None:
        record = self._names.get(name)
        return record.pod if record is not None else None

    def by_name(self, namespace: str, name: str) -> Pod | None:
        return self.by_full_name(f"{name}_{namespace}")

    # --- mirrors; written by the sync loop ------------------------------------------------------

    def _put_mirror(self, mirror: Pod) -> None:
        uid, name = uid_of(mirror), full_name(mirror)
        old = self._mirrors.get(uid)
        if old is not None and full_name(old) != name:
            self._remove_mirror(uid)
        self._mirrors[uid] = mirror
        self._mirror_names[name] = uid

    def _remove_mirror(self, uid: str) -> None:
        mirror = self._mirrors.pop(uid, None)
        if mirror is None:
            return
        name = full_name(mirror)
        if self._mirror_names.get(name) == uid:
            del self._mirror_names[name]
            left = next((each for each in self._mirrors.values() if full_name(each) == name), None)
            if left is not None:
                self._mirror_names[name] = uid_of(left)

    def mirrors(self) -> list[Pod]:
        return list(self._mirrors.values())

    def mirror_of(self, pod: Pod) -> Pod | None:
        """The mirror that has the name of this static pod."""
        uid = self._mirror_names.get(full_name(pod))
        return self._mirrors.get(uid) if uid is not None else None

    def static_of(self, mirror: Pod) -> Pod | None:
        """The static pod that this mirror stands for."""
        return self.by_full_name(full_name(mirror))

    def orphan_mirrors(self) -> list[Pod]:
        """Mirrors whose static pod is gone."""
        return [self._mirrors[uid] for name, uid in self._mirror_names.items() if name not in self._names]

    def translate(self, uid: PodUID) -> PodUID:
        """The UID the agent works with: that of the static pod if a mirror's was given."""
        mirror = self._mirrors.get(uid)
        pod = self.static_of(mirror) if mirror is not None else None
        return uid_of(pod) if pod is not None else uid

    # --- workers; written by the pod workers ----------------------------------------------------

    def add_worker(self, worker: PodWorker) -> None:
        self._record(worker.uid).worker = worker

    def forget_worker(self, uid: str) -> None:
        record = self._records.get(uid)
        if record is not None:
            record.worker = None
            self._drop_if_empty(record)

    def worker(self, uid: str) -> PodWorker | None:
        record = self._records.get(uid)
        return record.worker if record is not None else None

    def workers(self) -> list[PodWorker]:
        return [record.worker for record in self._records.values() if record.worker is not None]

    def is_busy(self, full_name: str) -> bool:
        """Whether a pod of that name has a worker that is not finished."""
        return any(w.full_name == full_name and w.state is not WorkerState.FINISHED for w in self.workers())

    def mark_synced(self) -> None:
        """Every source has been read: a pod without a worker is unwanted from now on."""
        self._synced = True

    def uids_in_use(self) -> set[str]:
        """Pods that may hold something."""
        return {*(worker.uid for worker in self.workers()), *self.undecided}

    def active_pods(self) -> list[Pod]:
        """Desired pods that hold resources on this node: accepted and not yet ended."""
        found = []
        for record in self._desired.values():
            if record.pod is not None and record.worker is not None and record.worker.is_active:
                found.append(record.pod)
        return found

    def any_at_work(self) -> bool:
        """Whether a pod is being started, changed or ended right now."""
        return any(w.state is WorkerState.TERMINATING or w.scope is not None for w in self.workers())

    def could_have_running_containers(self, uid: str) -> bool:
        worker = self.worker(uid)
        return not self._is_unwanted(uid) if worker is None else worker.is_active

    def should_remove_content(self, uid: str) -> bool:
        """Whether logs, containers and volumes of the pod are of no further use."""
        worker = self.worker(uid)
        if worker is None:
            return self._is_unwanted(uid)
        if worker.restart_requested:
            return False  # the next life under this UID goes on counting from this one
        return not worker.is_active and (worker.evicted or worker.deleted)

    def should_remove_runtime(self, uid: str) -> bool:
        worker = self.worker(uid)
        return self._is_unwanted(uid) if worker is None else not worker.is_active

    def is_gone(self, uid: str) -> bool:
        """Whether nothing of the pod is left: it has no worker, or a finished one."""
        worker = self.worker(uid)
        return worker is None or worker.state is WorkerState.FINISHED

    def is_finished(self, uid: str) -> bool:
        worker = self.worker(uid)
        return self._is_unwanted(uid) if worker is None else worker.state is WorkerState.FINISHED

    def _is_unwanted(self, uid: str) -> bool:
        """Whether a pod without a worker is one that no source wants, as far as the agent knows."""
        return self._synced and PodUID(uid) not in self.undecided

    # --- runtime statuses; written by PLEG ------------------------------------------------------

    def observe(self, status: PodRuntimeStatus, listed: Mapping[str, Life]) -> bool:
        """Store the result of an inspection; False when a newer one is there."""
        observed = self._observed(status.uid)
        if status.observed_at < observed.status.observed_at:
            return False
        observed.status, observed.listed = status, listed
        if status.observed_at >= observed.at:
            observed.error = None
            self._inspected(observed, status.observed_at)
        return True

    def observe_failure(self, uid: str, error: CriError, *, started: float) -> None:
        """Note that an inspection failed; the last good status stays readable."""
        observed = self._observed(uid)
        if started >= observed.at:
            observed.error = error
            self._inspected(observed, started)

    def relisted(
        self,
        started: float,
        *,
        changed: Iterable[str],
        up: Iterable[str] = (),
        running: Iterable[str] = (),
        named: Collection[str] = (),
    ) -> None:
        """A full listing that was started at `started` has ended; `changed` pods are yet to be inspected.

        `named`: pods of which it shows anything; `up`: those of which it shows that something runs; `running`: those
        of which a container does."""
        self._listed_up, self._listed_running = frozenset(up), frozenset(running)
        self._listed_at = max(self._listed_at, started)
        for uid in changed:
            self._observed(uid).stale_since = started
        for record in self:
            observed = record.runtime
            if observed is None or record.uid in named:
                continue
            if observed.at <= started and observed.stale_since is None and observed.is_empty:
                record.runtime = None  # the listing says the same about it as about any unknown pod
                self._drop_if_empty(record)

    def _observed(self, uid: str) -> ObservedRuntime:
        record = self._record(PodUID(uid))
        if record.runtime is None:
            record.runtime = ObservedRuntime(PodRuntimeStatus(uid=uid, observed_at=NEVER))
        return record.runtime

    def _inspected(self, observed: ObservedRuntime, at: float) -> None:
        observed.at = at
        # An inspection begun before the relist may have missed what the relist found.
        if observed.stale_since is not None and at >= observed.stale_since:
            observed.stale_since = None

    def observed(self, uid: str) -> ObservedRuntime | None:
        record = self._records.get(uid)
        return record.runtime if record is not None else None

    def runtime_status(self, uid: str) -> PodRuntimeStatus:
        """The newest status that could be read; empty for a pod that the runtime does not know."""
        observed = self.observed(uid)
        return observed.status if observed is not None else PodRuntimeStatus(uid=uid, observed_at=self._listed_at)

    def runtime_statuses(self) -> list[PodRuntimeStatus]:
        """Of all pods of which the runtime knows, or lately knew, something."""
        return [record.runtime.status for record in self._records.values() if record.runtime is not None]

    def observed_at(self, uid: str) -> float:
        """The monotonic time at which the pod was last known to be as the record says."""
        observed = self.observed(uid)
        if observed is None:
            return self._listed_at
        return observed.at if observed.stale_since is not None else max(observed.at, self._listed_at)

    def is_down(self, uid: str) -> bool:
        """Whether nothing of the pod runs, as far as is known; False before the first listing."""
        observed = self.observed(uid)
        if observed is not None and observed.is_empty and observed.listed:
            observed = None  # listed without a status: the listing is all there is
        if observed is not None and observed.error is None and observed.stale_since is None:
            return not (observed.status.running() or observed.status.ready_sandboxes())
        return self._listed_at != NEVER and uid not in self._listed_up

    def has_running_container(self, uid: str) -> bool:
        """As far as is known: by the listing alone until the pod was inspected."""
        status = self.runtime_status(uid)
        if status.observed_at == NEVER:
            return uid in self._listed_running
        return bool(status.running())

    def orphans(self) -> list[Orphan]:
        """Pods that run something although they have no worker and are not waiting for admission."""
        found = []
        for record in self:
            if record.worker is not None or record.runtime is None or record.uid in self.undecided:
                continue
            status = record.runtime.status
            if status.ready_sandboxes() or status.running():
                found.append(Orphan(uid=record.uid, name=status.name, namespace=status.namespace))
        return found

    # --- reported statuses; written by the status manager ---------------------------------------

    def report(self, status: ReportedStatus) -> None:
        self._record(uid_of(status.pod)).reported = status

    def note_probed(self, uid: str, probe: ProbeKey, *, current: Collection[str] | None) -> None:
        """A probe of a static pod has a result. `current`: the containers there are; others are forgotten."""
        record = self._record(PodUID(uid))
        probed = {each for each in record.probed or () if current is None or each[1] in current}
        record.probed = {*probed, probe}

    def forget_reported(self, uid: str) -> None:
        record = self._records.get(uid)
        if record is not None:
            record.reported = record.probed = None
            self._drop_if_empty(record)

    def reported(self, uid: str) -> ReportedStatus | None:
        record = self._records.get(uid)
        return record.reported if record is not None else None

    def reported_status(self, uid: str) -> PodStatus | None:
        reported = self.reported(uid)
        return reported.status if reported is not None else None

    def reports(self) -> list[tuple[str, ReportedStatus]]:
        return [(record.uid, record.reported) for record in self._records.values() if record.reported is not None]

    def keep_termination_messages(self, uid: str, messages: dict[str, str]) -> None:
        self._record(PodUID(uid)).termination_messages = messages

    def termination_messages(self, uid: str) -> Mapping[str, str]:
        """Termination messages that were read already, by container id."""
        record = self._records.get(uid)
        return record.termination_messages or {} if record is not None else {}

    # --- start failures; written by the runtime manager---------------------------------------------

    def start_failed(self, uid: str, problem: ContainerProblem) -> None:
        record = self._record(PodUID(uid))
        record.start_failures = {**(record.start_failures or {}), problem.container: problem}

    def start_succeeded(self, uid: str, container: str) -> None:
        """Nothing is in the way of the container any more."""
        record = self._records.get(uid)
        if record is not None and record.start_failures is not None:
            record.start_failures.pop(container, None)

    def start_failures(self, uid: str) -> Mapping[str, ContainerProblem]:
        """Why containers of the pod could not be started, by name."""
        record = self._records.get(uid)
        return record.start_failures or NOTHING if record is not None else NOTHING

    # --- probe outcomes; written by the probe workers -------------------------------------------

    def set_probe_outcome(self, uid: str, probe: ProbeKey, outcome: ProbeOutcome) -> bool:
        """Keep the newest outcome; whether it differs from the one before."""
        record = self._record(PodUID(uid))
        if record.probe_outcomes is None:
            record.probe_outcomes = {}
        changed = record.probe_outcomes.get(probe) is not outcome
        record.probe_outcomes[probe] = outcome
        return changed

    def forget_probe_outcome(self, uid: str, probe: ProbeKey) -> None:
        record = self._records.get(uid)
        if record is not None and record.probe_outcomes is not None:
            record.probe_outcomes.pop(probe, None)
            self._drop_if_empty(record)

    def probe_outcomes(self, uid: str) -> Mapping[ProbeKey, ProbeOutcome]:
        """The newest outcomes of the pod's probes; those without one are not in it."""
        record = self._records.get(uid)
        return record.probe_outcomes or NO_OUTCOMES if record is not None else NO_OUTCOMES

    # --- the end --------------------------------------------------------------------------------

    def drop_unknown(self) -> None:
        """Forget the results of pods that no source has and no worker knows. For housekeeping."""
        for record in self:
            if record.pod is None and record.worker is None and record.has_results:
                record.reported = record.probed = record.start_failures = record.probe_outcomes = None
                record.termination_messages = None
                self._drop_if_empty(record)


def is_mirror_of(mirror: Pod, pod: Pod) -> bool:
    """Same name, and the mirror was made from exactly this version of the static pod."""
    made_from = mirror.metadata.annotations.get(MIRROR_ANNOTATION)
    return (
        made_from is not None
        and full_name(mirror) == full_name(pod)
        and made_from == pod.metadata.annotations.get(HASH_ANNOTATION, "")
    )
