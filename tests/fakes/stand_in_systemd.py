"""A stand-in for org.freedesktop.systemd1 that keeps units and really makes the folders of slices.

Covers StartTransientUnit, StopUnit, SetUnitProperties, KillUnit and the JobRemoved signal, with systemd's rule that a
slice lies below the slices its name repeats. Jobs end at once, as `job_result` says. Passes the contract of the real
one (tests/contracts/test_systemd_contract.py).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dbus_fast import Variant

from tests.fakes.private_bus import Refusal, StandIn

NAME, PATH = "org.freedesktop.systemd1", "/org/freedesktop/systemd1"


SLICE = re.compile(r"[A-Za-z0-9_.:\\]+(-[A-Za-z0-9_.:\\]+)*\.slice")
SETTINGS = frozenset(
    (
        *("Description", "Wants", "DefaultDependencies"),
        *("MemoryAccounting", "CPUAccounting", "TasksAccounting", "IOAccounting"),
        *("CPUWeight", "CPUShares", "CPUQuotaPerSecUSec", "CPUQuotaPeriodUSec", "TasksMax"),
        *("MemoryMin", "MemoryLow", "MemoryHigh", "MemoryMax", "MemoryLimit"),
    )
)


def slice_path(name: str) -> str:
    """`a-b.slice` lies in `a.slice/a-b.slice`."""
    parts = name.removesuffix(".slice").split("-")
    return "/".join("-".join(parts[: index + 1]) + ".slice" for index in range(len(parts)))


class StandInSystemd(StandIn):
    def __init__(self, *, folders: Sequence[Path] = ()) -> None:
        """`folders` are the cgroup hierarchies that slices appear in."""
        super().__init__(NAME, PATH, f"{NAME}.Manager")
        self.folders = folders
        self.units: dict[str, dict[str, Any]] = {}
        self.killed: list[tuple[str, int]] = []
        self.refuse: dict[str, str] = {}
        """Member to the D-Bus error it is answered with."""
        self.on_kill: Callable[[str, int], None] = lambda unit, number: None
        self.job_result = "done"
        self.calls: list[str] = []
        self._jobs = 0
        self.properties["Version"] = Variant("s", "252")
        self.methods = {
            "Subscribe": lambda: ("", ()),
            "StartTransientUnit": self._start,
            "StopUnit": self._stop,
            "SetUnitProperties": self._set,
            "KillUnit": self._kill,
        }

    def _note(self, member: str, name: str) -> None:
        self.calls.append(f"{member} {name}")
        if member in self.refuse:
            raise Refusal(self.refuse[member], f"{member} refused")

    def _start(self, name: str, mode: str, properties: Any, auxiliary: Any) -> tuple[str, Sequence[Any]]:
        self._note("StartTransientUnit", name)
        if not SLICE.fullmatch(name):
            raise Refusal("org.freedesktop.DBus.Error.InvalidArgs", f"Unit name {name} is not valid.")
        if name in self.units:
            raise Refusal(f"{NAME}.UnitExists", f"Unit {name} was already loaded or has a fragment file.")
        self.units[name] = _settings(properties)
        for folder in self.folders:
            (folder / slice_path(name)).mkdir(parents=True, exist_ok=True)
        return self._job(name)

    def _stop(self, name: str, mode: str) -> tuple[str, Sequence[Any]]:
        self._note("StopUnit", name)
        if name not in self.units:
            raise Refusal(f"{NAME}.NoSuchUnit", f"Unit {name} not loaded.")
        for unit in [each for each in self.units if f"{slice_path(each)}/".startswith(f"{slice_path(name)}/")]:
            del self.units[unit]
        for folder in self.folders:
            shutil.rmtree(folder / slice_path(name), ignore_errors=True)
        return self._job(name)

    def _set(self, name: str, runtime: bool, properties: Any) -> tuple[str, Sequence[Any]]:
        self._note("SetUnitProperties", name)
        if name not in self.units:
            raise Refusal(f"{NAME}.NoSuchUnit", f"Unit {name} not loaded.")
        self.units[name].update(_settings(properties))
        return "", ()

    def _kill(self, name: str, whom: str, number: int) -> tuple[str, Sequence[Any]]:
        self._note("KillUnit", name)
        self.killed.append((name, number))
        self.on_kill(name, number)
        return "", ()

    def _job(self, unit: str) -> tuple[str, Sequence[Any]]:
        self._jobs += 1
        job = f"{PATH}/job/{self._jobs}"
        # Sent before the reply, as the real one may do.
        self.signal("JobRemoved", "uoss", self._jobs, job, unit, self.job_result)
        return "o", (job,)


def _settings(properties: Any) -> dict[str, Any]:
    unknown = [key for key, _ in properties if key not in SETTINGS]
    if unknown:
        text = f"Cannot set property {unknown[0]}, or unknown property."
        raise Refusal("org.freedesktop.DBus.Error.PropertyReadOnly", text)
    return {key: value.value for key, value in properties}
