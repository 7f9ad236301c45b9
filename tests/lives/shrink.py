"""Makes a failing history as short as it gets: delta debugging over its events, then over what pods are made of."""

from __future__ import annotations

import copy
from collections.abc import Callable

from tests.lives.history import Event, History

Fails = Callable[[History], bool]


def shrink(history: History, fails: Fails, *, tries: int = 400) -> list[Event]:
    """A part of the history that still fails. `fails` is asked at most `tries` times."""
    left = [tries]

    def still(events: History) -> bool:
        left[0] -= 1
        return left[0] >= 0 and fails(events)

    best = _fewer(list(history), still)
    best = _simpler(best, still)
    return _fewer(best, still)


def _fewer(events: list[Event], fails: Fails) -> list[Event]:
    size = max(1, len(events) // 2)
    while True:
        start, removed = 0, False
        while start < len(events):
            fewer = events[:start] + events[start + size :]
            if fewer and fails(fewer):
                events, removed = fewer, True
            else:
                start += size
        if size == 1 and not removed:
            return events
        size = max(1, size // 2)


PLAIN = {"static": False, "finalizer": False, "volume": False, "policy": "Always", "grace": 30}
PLAIN_PROGRAM = {"exits": [], "stops": 0.0, "pre": None, "post": None, "image": "here", "probe": ""}


def _simpler(events: list[Event], fails: Fails) -> list[Event]:
    """Pods with fewer containers and plainer ones."""
    for place, event in enumerate(events):
        if event[1] != "add":
            continue
        for change in _changes(event[3]):
            spec = copy.deepcopy(events[place][3])
            if not change(spec):
                continue
            simpler = [*events[:place], (*event[:3], spec), *events[place + 1 :]]
            if fails(simpler):
                events = simpler
    return events


def _changes(spec: dict[str, object]) -> list[Callable[[dict[str, object]], bool]]:
    programs = spec["programs"]
    assert isinstance(programs, list)
    found: list[Callable[[dict[str, object]], bool]] = []
    found += [_without(each["name"]) for each in programs]
    found += [_with(key, value) for key, value in PLAIN.items()]
    found += [_program_with(each["name"], key, value) for each in programs for key, value in PLAIN_PROGRAM.items()]
    return found


def _without(name: str) -> Callable[[dict[str, object]], bool]:
    def change(spec: dict[str, object]) -> bool:
        programs = spec["programs"]
        assert isinstance(programs, list)
        rest = [each for each in programs if each["name"] != name]
        spec["programs"] = rest
        return any(not each["kind"] for each in rest) and len(rest) < len(programs)

    return change


def _with(key: str, value: object) -> Callable[[dict[str, object]], bool]:
    def change(spec: dict[str, object]) -> bool:
        differs = spec[key] != value
        spec[key] = value
        return differs

    return change


def _program_with(name: str, key: str, value: object) -> Callable[[dict[str, object]], bool]:
    def change(spec: dict[str, object]) -> bool:
        programs = spec["programs"]
        assert isinstance(programs, list)
        for each in programs:
            if each["name"] == name and each["kind"] != "init" and each[key] != value:
                each[key] = value
                return True
        return False

    return change
