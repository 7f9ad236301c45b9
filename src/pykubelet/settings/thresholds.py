"""Eviction thresholds as typed values: the maps of the configuration read into what a manager compares.

Covers the known signals, quantities and percentages, grace periods and minimum reclaims.
Does not cover when a threshold is met (eviction/).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from msgspec import Struct

from pykubelet.api.quantity import Quantity
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.kinds import WrongValue, duration_of, quantity_of
from pykubelet.settings.schema_resources import EvictionSettings

SIGNALS = frozenset(
    {
        "memory.available",
        "allocatableMemory.available",
        "nodefs.available",
        "nodefs.inodesFree",
        "imagefs.available",
        "imagefs.inodesFree",
        "containerfs.available",
        "containerfs.inodesFree",
        "pid.available",
    }
)

T = TypeVar("T")


class Amount(Struct, frozen=True):
    """A quantity, or a share of the capacity."""

    quantity: Quantity | None = None
    share: float | None = None
    """0.1 for 10%."""

    def of(self, capacity: int) -> int:
        """The amount in whole units, rounded down for a share as the Go kubelet does."""
        if self.quantity is not None:
            return self.quantity.value()
        return int(capacity * (self.share or 0.0))


class Threshold(Struct, frozen=True, kw_only=True):
    """Pods are evicted while less than `amount` of what the signal measures is left."""

    signal: str
    amount: Amount
    grace_period: float = 0.0
    """Seconds the threshold must be met; only soft ones have some."""
    soft: bool = False
    minimum_reclaim: Amount | None = None


def parse_amount(text: str) -> Amount:
    """A quantity or a percentage; raises WrongValue."""
    if not text.endswith("%"):
        return Amount(quantity=quantity_of(text))
    try:
        percent = float(text[:-1])
    except ValueError as err:
        raise WrongValue(f"{text[:40]!r} is not a percentage") from err
    if not math.isfinite(percent) or not 0 <= percent <= 100:
        raise WrongValue(f"{text[:40]!r} must be between 0% and 100%")
    return Amount(share=percent / 100)


def _threshold_amount(text: str) -> Amount | None:
    amount = parse_amount(text)
    # These two turn the signal off.
    if amount.share in (0.0, 1.0):
        return None
    if amount.quantity is not None and amount.quantity <= Quantity.of(0):
        raise WrongValue(f"{text[:40]!r} must be positive")
    return amount


def _reclaim_amount(text: str) -> Amount:
    amount = parse_amount(text)
    if amount.share == 0.0 or (amount.quantity is not None and amount.quantity < Quantity.of(0)):
        raise WrongValue(f"{text[:40]!r} must be positive")
    return amount


def _grace(text: str) -> float:
    seconds = duration_of(text)
    if seconds < 0:
        raise WrongValue(f"{text[:40]!r} must not be negative")
    return seconds


def _each(
    path: str, entries: Mapping[str, str], read: Callable[[str], T], problems: list[tuple[str, str]]
) -> Iterator[tuple[str, T]]:
    for signal, text in entries.items():
        if signal not in SIGNALS:
            problems.append((path, f"unknown signal {signal[:80]!r}"))
            continue
        try:
            yield signal, read(text)
        except WrongValue as err:
            problems.append((path, f"{signal}: {err}"))


def read_thresholds(settings: EvictionSettings) -> tuple[tuple[Threshold, ...], list[tuple[str, str]]]:
    """The thresholds and every problem as (field, what is wrong)."""
    problems: list[tuple[str, str]] = []
    hard = dict(_each("evictionHard", settings.eviction_hard, _threshold_amount, problems))
    soft = dict(_each("evictionSoft", settings.eviction_soft, _threshold_amount, problems))
    grace = dict(_each("evictionSoftGracePeriod", settings.eviction_soft_grace_period, _grace, problems))
    reclaim = dict(_each("evictionMinimumReclaim", settings.eviction_minimum_reclaim, _reclaim_amount, problems))
    for signal in settings.eviction_soft:
        if signal in SIGNALS and signal not in settings.eviction_soft_grace_period:
            problems.append(("evictionSoftGracePeriod", f"{signal} of evictionSoft needs a grace period"))
    found = [
        Threshold(signal=signal, amount=amount, minimum_reclaim=reclaim.get(signal))
        for signal, amount in hard.items()
        if amount is not None
    ]
    found += [
        Threshold(
            signal=signal,
            amount=amount,
            soft=True,
            grace_period=grace.get(signal, 0.0),
            minimum_reclaim=reclaim.get(signal),
        )
        for signal, amount in soft.items()
        if amount is not None
    ]
    return tuple(found), problems


def eviction_thresholds(settings: EvictionSettings) -> tuple[Threshold, ...]:
    """The thresholds of validated settings."""
    found, problems = read_thresholds(settings)
    if problems:
        raise SettingsError(f"{path}: {text}" for path, text in problems)
    return found
