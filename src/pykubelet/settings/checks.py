"""The small vocabulary in which the validation rules are written.

A Checks collects faults; each names its field and, where there is one, the flag of that field.
Does not cover the rules themselves (validate.py, validate_resources.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pykubelet.settings.gates import Gates
from pykubelet.settings.schema import KubeletConfig, settings_by_path, value_at


class Checks:
    """Faults found in one configuration. Fields are named by their wire path."""

    def __init__(self, config: KubeletConfig, gates: Gates) -> None:
        self.config = config
        self.gates = gates
        self.problems: list[str] = []

    def value(self, path: str) -> Any:
        return value_at(self.config, settings_by_path()[path].attributes)

    def fault(self, path: str, text: str) -> None:
        ref = settings_by_path().get(path)
        flag = f" ({'-' if ref.setting.flag == 'v' else '--'}{ref.setting.flag})" if ref and ref.setting.flag else ""
        self.problems.append(f"invalid configuration: {path}{flag}: {text}")

    def within(self, path: str, low: int, high: int) -> None:
        value = self.value(path)
        if not low <= value <= high:
            self.fault(path, f"{value} must be between {low} and {high}")

    def not_negative(self, *paths: str) -> None:
        for path in paths:
            value = self.value(path)
            if value < 0:
                shown = f"{value:g}s" if isinstance(value, float) else value
                self.fault(path, f"{shown} must not be negative")

    def one_of(self, path: str, allowed: Sequence[str]) -> None:
        value = self.value(path)
        if value not in allowed:
            words = ", ".join(word or '""' for word in allowed)
            self.fault(path, f"{value[:80]!r} must be one of {words}")

    def needs_gate(self, path: str, gate: str) -> None:
        if not self.gates.enabled(gate):
            self.fault(path, f"needs feature gate {gate}")
