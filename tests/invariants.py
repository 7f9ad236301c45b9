"""What holds between the parts of every pod's record, at any moment between two steps of the loop."""

from __future__ import annotations

from collections.abc import Iterator

from pykubelet.model.pod import full_name, is_mirror, is_static, uid_of
from pykubelet.pods.record import NEVER, ObservedRuntime, PodRecord, PodWorker, ReportedStatus, WorkerState
from pykubelet.pods.table import PodTable


def check_records(table: PodTable) -> None:
    broken = broken_invariants(table)
    assert not broken, "; ".join(broken)


def broken_invariants(table: PodTable) -> list[str]:
    found = [f"{record.uid}: {text}" for record in table for text in _record(table, record)]
    return found + list(_mirrors(table))


def _record(table: PodTable, record: PodRecord) -> Iterator[str]:
    if record.is_empty:
        yield "an empty record is kept"
    if table.get(record.uid) is not record:
        yield "the record is kept under another UID"
    if record.pod is not None:
        named = table.by_full_name(full_name(record.pod))
        if uid_of(record.pod) != record.uid or is_mirror(record.pod):
            yield "the desired pod is another one"
        if named is None or full_name(named) != full_name(record.pod):
            yield "the desired pod is not found by its name"
    if (record.pod is not None) is not table.is_desired(record.uid):
        yield "the index of desired pods disagrees"
    if record.worker is not None:
        yield from _worker(record, record.worker)
    if record.runtime is not None:
        yield from _runtime(record, record.runtime)
    if record.reported is not None:
        yield from _reported(record, record.reported)
    for name, problem in (record.start_failures or {}).items():
        if not name or problem.container != name:
            yield f"start failure of {name!r} is about {problem.container!r}"
    for kind, container_id in record.probe_outcomes or ():
        if not container_id:
            yield f"{kind.value} outcome of no container"


def _worker(record: PodRecord, worker: PodWorker) -> Iterator[str]:
    if worker.uid != record.uid or (worker.pod is not None and uid_of(worker.pod) != record.uid):
        yield "the worker is about another pod"
    if worker.pod is None and worker.orphan is None and worker.state is not WorkerState.FINISHED:
        yield "the worker has neither a pod nor an orphan"
    if worker.history and worker.history[-1][0] is not worker.state:
        yield "the worker's state is not the last of its history"
    if worker.state is WorkerState.SYNCING and (worker.evicted or worker.restart_requested or worker.grace is not None):
        yield "a pod that should run is evicted, has a grace period or waits for a restart"
    if worker.state is WorkerState.TERMINATING and (worker.grace or 0) < 1:
        yield "a terminating pod has no grace period"
    if not worker.is_active and not all(waiter.done() for waiter in worker.waiters):
        yield "the end of a pod that has stopped is still awaited"
    if worker.state is WorkerState.FINISHED and not (worker.next_run is None and worker.scope is None):
        yield "a finished worker has something to do"


def _runtime(record: PodRecord, observed: ObservedRuntime) -> Iterator[str]:
    if observed.status.uid != record.uid:
        yield "the runtime status is another pod's"
    if observed.at < observed.status.observed_at:
        yield "the runtime status is newer than its last inspection"
    if observed.at == NEVER and observed.stale_since is None:
        yield "the runtime status comes from no inspection and waits for none"


def _reported(record: PodRecord, reported: ReportedStatus) -> Iterator[str]:
    if uid_of(reported.pod) != record.uid:
        yield "the reported status is another pod's"
    if reported.version < 1:
        yield "the reported status has no version"
    if reported.finished and record.worker is not None and record.worker.is_active:
        yield "the reported status is final although containers could run"


def _mirrors(table: PodTable) -> Iterator[str]:
    for mirror in table.mirrors():
        static = table.static_of(mirror)
        if not is_mirror(mirror) or (static is not None and not is_static(static)):
            yield f"{uid_of(mirror)}: a mirror that stands for no static pod"
