"""Recorded lives of pods, and what hollow nodes replay of them: how long each step took, what failed, how long it ran.

A record is what `pykubelet explain POD -o json` prints: the timeline of one pod, as its node's recorder kept it. A pod
of the same name lives the same life; any other the life of a recorded one, chosen by chance. What a timeline does not
say: exit codes (a run that was followed by a back-off counts as failed) and probes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from pykubelet.explain.view import Explanation, Moment
from pykubelet.hollow.cri_values import full_name
from pykubelet.model.errors import PykubeletError
from pykubelet.recorder import Outcome, Step

FAILED = 1


class HistoryError(PykubeletError):
    """A recorded history cannot be read."""


class Attempt(Struct, frozen=True):
    """One try of a step."""

    seconds: float = 0.0
    error: str = ""


class Run(Struct, frozen=True, kw_only=True):
    """One run of a container."""

    create: Attempt
    start: Attempt
    seconds: float | None = None
    """To its own end; None: it was still running, or was stopped."""
    exit_code: int = 0


class Life(Struct, frozen=True, kw_only=True):
    pod: str
    sandboxes: tuple[Attempt, ...]
    pulls: Mapping[str, tuple[Attempt, ...]]
    """By full name of the image."""
    containers: Mapping[str, tuple[Run, ...]]
    stops: Mapping[str, float]
    """Seconds that containers took to stop."""

    def run(self, container: str, attempt: int) -> Run | None:
        """What the container does in that run; after the last recorded one it does the same again."""
        runs = self.containers.get(container) or next(iter(self.containers.values()), ())
        return runs[min(attempt, len(runs) - 1)] if runs else None


class Histories:
    def __init__(self, lives: Sequence[Life]) -> None:
        self._lives = tuple(lives)
        self._by_pod = {life.pod: life for life in lives}
        self._pulls: dict[str, list[Attempt]] = {}
        for life in lives:
            for image, attempts in life.pulls.items():
                self._pulls.setdefault(image, []).extend(attempts)
        self._all_pulls = [attempt for attempts in self._pulls.values() for attempt in attempts]

    def life_of(self, namespace: str, pod: str, rng: random.Random) -> Life:
        found = self._by_pod.get(f"{namespace}/{pod}") or self._by_pod.get(pod)
        return found if found is not None else rng.choice(self._lives)

    def pull_of(self, image: str, rng: random.Random) -> Attempt | None:
        """A recorded pull of this image, or of any; None where none was recorded."""
        known = self._pulls.get(image) or self._all_pulls
        return rng.choice(known) if known else None


def load_histories(paths: Sequence[Path]) -> Histories:
    """Of files, and of all *.json files in folders. Raises HistoryError."""
    lives = [life for path in paths for life in _lives(path)]
    if not lives:
        raise HistoryError(f"no recorded lives in {', '.join(map(str, paths))}")
    return Histories(lives)


def _lives(path: Path) -> Iterator[Life]:
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        try:
            found = msgspec.json.decode(file.read_bytes(), type=list[Explanation] | Explanation)
        except (OSError, msgspec.MsgspecError) as error:
            raise HistoryError(f"{file}: not what `pykubelet explain POD -o json` prints: {error}") from error
        yield from (life_of(each) for each in (found if isinstance(found, list) else [found]))


def life_of(recorded: Explanation) -> Life:
    steps = [moment for moment in recorded.timeline if moment.outcome != Outcome.BEGUN.value]
    pulls: dict[str, tuple[Attempt, ...]] = {}
    for moment in steps:
        if moment.step == Step.PULL.value and moment.seconds is not None:
            image = full_name(moment.subject)
            pulls[image] = (*pulls.get(image, ()), _attempt(moment))
    names = list(dict.fromkeys(moment.subject for moment in steps if moment.step == Step.CREATE.value))
    return Life(
        pod=recorded.pod,
        sandboxes=tuple(
            _attempt(moment) for moment in steps if moment.step == Step.SANDBOX.value and moment.seconds is not None
        ),
        pulls=pulls,
        containers={name: tuple(_runs(name, steps)) for name in names},
        stops={
            moment.subject: moment.seconds
            for moment in steps
            if moment.step == Step.KILL.value and moment.seconds is not None
        },
    )


def _runs(name: str, steps: Sequence[Moment]) -> Iterator[Run]:
    """The runs of a container, each beginning with its creation.

    The recorder keeps repeated exits as one, with the time of the first and of the last: a run between these counts as
    long as the one before it.
    """
    own = [moment for moment in steps if moment.subject == name]
    creates = [each for each in own if each.step == Step.CREATE.value]
    starts = [each for each in own if each.step == Step.START.value]
    exits = sorted(at for each in own if each.step == Step.EXIT.value for at in {each.at, each.last_at})
    code = FAILED if any(each.step == Step.BACKOFF.value for each in own) else 0
    lasted = 0.0
    for number, create in enumerate(creates):
        following = creates[number + 1].at if number + 1 < len(creates) else math.inf
        start = next((each for each in starts if create.at <= each.at < following), None)
        begun = start.at + (start.seconds or 0.0) if start is not None else create.at
        ended = next((at for at in exits if begun <= at < following), None)
        seconds: float | None = None
        if ended is not None:
            seconds = lasted = ended - begun
        elif following < math.inf:
            seconds = lasted
        yield Run(
            create=_attempt(create),
            start=_attempt(start) if start is not None else Attempt(),
            seconds=seconds,
            exit_code=code if seconds is not None else 0,
        )


def _attempt(moment: Moment) -> Attempt:
    is_failed = moment.outcome == Outcome.FAILED.value
    return Attempt(moment.seconds or 0.0, (moment.message or "failed as recorded") if is_failed else "")
