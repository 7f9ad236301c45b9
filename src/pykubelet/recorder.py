"""The life recorder: what happened to each pod, step by step, with times and reasons.

Every component reports its steps here from the first day; `explain`, events, metrics and traces are
views of it. Entries are small and bounded per pod, so the recorder costs a few KiB a pod. It decides
nothing and forgets a pod only on `forget`.
"""

from __future__ import annotations

import contextlib
import enum
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from pykubelet.kit.clock import Clock
from pykubelet.model.problems import KillCause, Problem, ProblemError

ENTRIES_PER_POD = 48
PODS_KEPT = 500
QUICK = 0.5
"""Seconds; a routine step that takes longer is worth a line."""


class Step(enum.Enum):
    """The stations of a pod's life, in the order a healthy pod passes them."""

    SEEN = "seen"
    ADMISSION = "admission"
    CGROUP = "cgroup"
    VOLUMES = "volumes"
    CLAIMS = "claims"
    TURN = "turn"
    SANDBOX = "sandbox"
    PULL = "pull"
    CREATE = "create"
    START = "start"
    HOOK = "hook"
    PROBE = "probe"
    EXIT = "exit"
    BACKOFF = "backoff"
    OOM = "oom"
    EVICTION = "eviction"
    KILL = "kill"
    CLEANUP = "cleanup"
    SYNC = "sync"


class Outcome(enum.Enum):
    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    NOTED = "noted"


class LifeEntry(Struct, kw_only=True):
    """One step of one pod. A begun entry is completed in place, so its duration needs no pairing."""

    at: float
    step: Step
    subject: str = ""
    """Container, volume or image the step is about; empty for the whole pod."""
    outcome: Outcome = Outcome.NOTED
    reason: str = ""
    message: str = ""
    cause: Problem | KillCause | None = None
    """The same as a value, where one was made."""
    seconds: float | None = None
    """How long it took; None while it is under way or for a mere note."""
    repeats: int = 0
    """How often the same thing was noted again; `last_at` is the newest."""
    last_at: float = 0.0


class PodLife(Struct):
    uid: str
    pod: str
    entries: deque[LifeEntry]


Listener = Callable[[str, LifeEntry], None]


class LifeRecorder:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pods: OrderedDict[str, PodLife] = OrderedDict()
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call `listener(uid, entry)` for each entry that is noted, done or failed."""
        self._listeners.append(listener)

    def name_pod(self, uid: str, namespace: str, name: str) -> None:
        self._life(uid).pod = f"{namespace}/{name}"

    def note(self, uid: str, step: Step, subject: str = "", *, reason: str = "", message: str = "") -> None:
        self._add(uid, step, subject, Outcome.NOTED, reason, message)

    def fail(
        self,
        uid: str,
        step: Step,
        subject: str = "",
        *,
        reason: str = "",
        message: str = "",
        cause: Problem | None = None,
    ) -> None:
        self._add(uid, step, subject, Outcome.FAILED, reason, message, cause)

    def fail_with(self, uid: str, step: Step, subject: str, error: ProblemError) -> None:
        """Record that a step could not even be begun."""
        self.fail(uid, step, subject, message=str(error), cause=error.problem)

    @contextlib.contextmanager
    def step(self, uid: str, step: Step, subject: str = "", *, routine: bool = False) -> Iterator[LifeEntry]:
        """Record a step that takes time; an exception marks it failed with its text and passes on.

        A `routine` step is taken at every sync: once it was done, doing it again is not worth a line as long as it is
        quick, or a day of syncs would push out everything else.
        """
        entry = self._append(uid, LifeEntry(at=self._clock.now(), step=step, subject=subject, outcome=Outcome.BEGUN))
        begun = self._clock.monotonic()
        try:
            yield entry
        except BaseException as error:
            entry.outcome = Outcome.FAILED
            entry.message = entry.message or str(error) or type(error).__name__
            if isinstance(error, ProblemError):
                entry.cause = error.problem
            raise
        else:
            entry.outcome = Outcome.DONE
        finally:
            entry.seconds = self._clock.monotonic() - begun
            if routine and entry.seconds < QUICK and self._was_done(uid, entry):
                life = self._life(uid)
                life.entries = deque((each for each in life.entries if each is not entry), maxlen=ENTRIES_PER_POD)
            self._notify(uid, entry)

    def life(self, uid: str) -> PodLife | None:
        return self._pods.get(uid)

    def lives(self) -> list[PodLife]:
        return list(self._pods.values())

    def forget(self, uid: str) -> None:
        self._pods.pop(uid, None)

    def _add(
        self,
        uid: str,
        step: Step,
        subject: str,
        outcome: Outcome,
        reason: str,
        message: str,
        cause: Problem | None = None,
    ) -> None:
        now = self._clock.now()
        life = self._life(uid)
        for last in reversed(life.entries):
            if last.step is step and last.subject == subject:
                if (last.outcome, last.reason, last.message) == (outcome, reason, message):
                    last.repeats += 1
                    last.last_at = now
                    last.cause = cause
                    return
                break
        entry = LifeEntry(
            at=now, step=step, subject=subject, outcome=outcome, reason=reason, message=message, cause=cause
        )
        self._append(uid, entry)
        self._notify(uid, entry)

    def _was_done(self, uid: str, entry: LifeEntry) -> bool:
        """Whether the same step was done before, and this one is, too."""
        earlier = (each for each in reversed(self._life(uid).entries) if each is not entry)
        same = next((each for each in earlier if (each.step, each.subject) == (entry.step, entry.subject)), None)
        return entry.outcome is Outcome.DONE and same is not None and same.outcome is Outcome.DONE

    def _append(self, uid: str, entry: LifeEntry) -> LifeEntry:
        entry.last_at = entry.at
        self._life(uid).entries.append(entry)
        return entry

    def _notify(self, uid: str, entry: LifeEntry) -> None:
        for listener in self._listeners:
            listener(uid, entry)

    def _life(self, uid: str) -> PodLife:
        life = self._pods.get(uid)
        if life is None:
            life = self._pods[uid] = PodLife(uid, "", deque(maxlen=ENTRIES_PER_POD))
            if len(self._pods) > PODS_KEPT:
                self._pods.popitem(last=False)
        return life
