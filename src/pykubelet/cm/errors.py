"""Why a pod cannot have exclusive CPUs or memory, and why the agent cannot start with them.

Reasons and texts of refusals are upstream's: they end up in the status of the pod, where other software reads them.
"""

from __future__ import annotations

from typing import Final

from pykubelet.model.errors import PykubeletError

UNEXPECTED: Final = "UnexpectedAdmissionError"
SMT_ALIGNMENT: Final = "SMTAlignmentError"
TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"
EMPTY_SHARED_POOL: Final = "EmptyPodSharedPoolError"


class NotWritten(PykubeletError):
    """The state is not on disk yet, and so not to be acted on."""


class ResourceManagerError(PykubeletError):
    """The agent cannot start with these settings, this machine or these checkpoint files."""


class Refused(PykubeletError):
    """A pod cannot be admitted. Without a reason of its own it counts as unexpected."""

    reason = UNEXPECTED

    @property
    def message(self) -> str:
        """What the status of the pod says."""
        return f"Allocate failed due to {self}, which is unexpected" if self.reason == UNEXPECTED else str(self)


class NotEnoughCpus(Refused):
    def __init__(self, *, requested: int, available: int) -> None:
        super().__init__(f"not enough cpus available to satisfy request: requested={requested}, available={available}")


class NotWholeCores(Refused):
    reason = SMT_ALIGNMENT

    @classmethod
    def odd(cls, *, requested: int, per_core: int) -> NotWholeCores:
        return cls(f"SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")

    @classmethod
    def too_few(cls, *, requested: int, per_core: int, available: int) -> NotWholeCores:
        return cls(
            "SMT Alignment Error: not enough free physical CPUs: "
            f"available physical CPUs = {available}, requested CPUs = {requested}, CPUs per core = {per_core}"
        )


class NotAligned(Refused):
    reason = TOPOLOGY_AFFINITY

    def __init__(self, text: str = "Resources cannot be allocated with Topology locality") -> None:
        super().__init__(text)


class NothingShared(Refused):
    """Exclusive containers of a pod with amounts of its own leave nothing for the others."""

    reason = EMPTY_SHARED_POOL


class NoMemory(Refused):
    def __init__(self, text: str) -> None:
        super().__init__(f"[memorymanager] {text}")
