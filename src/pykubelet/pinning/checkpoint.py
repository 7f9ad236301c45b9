"""Checkpoint files that upstream's kubelet reads and writes as well: envelope, checksum, policy, clear refusals.

The checksum is FNV-1a over the text in which Go's debugging printer shows the value, types and all; what each file
holds is in `cpu_state.py` and `memory_state.py`. Unlike our own checkpoints a damaged file stops the agent: what
containers own exclusively cannot be guessed.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pykubelet.kit.files import DurableFile, write_atomic
from pykubelet.kit.go_text import fnv1a_32
from pykubelet.pinning.problems import PinningProblem


class CheckpointFile:
    """One file. `manager` is what its owner is called in messages, such as "CPU manager"."""

    def __init__(self, path: Path, *, manager: str, policy: str) -> None:
        self.path = path
        self._file = DurableFile(path)
        self._manager = manager
        self.policy = policy

    def read(self, texts: Callable[[dict[str, Any]], Iterable[str]]) -> dict[str, Any] | None:
        """What the file holds; None when there is none. `texts` gives the forms in which a kubelet may have
        taken the checksum. PinningProblem when the file is damaged or of another policy."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self.problem(str(error)) from error
        try:
            data = json.loads(raw)
            policy, told = data["policyName"], data["checksum"]
            known = {fnv1a_32(text) for text in texts(data)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self.problem(f"the file is not a checkpoint ({error})") from error
        # Upstream takes 0 for "not checked".
        if told and told not in known:
            raise self.problem("checkpoint is corrupted: its checksum does not match")
        if policy != self.policy:
            raise self.problem(f'configured policy "{self.policy}" differs from state checkpoint policy "{policy}"')
        return dict(data)

    def write(self, data: Mapping[str, Any], text: str) -> None:
        """`data` with its checksum, which is taken over `text`. Blocks: for the start."""
        write_atomic(self.path, self._encoded(data, text))

    def put(self, data: Mapping[str, Any], text: str) -> None:
        """To be written by the next `flush`."""
        self._file.put(self._encoded(data, text))

    async def flush(self) -> None:
        await self._file.flush()

    def _encoded(self, data: Mapping[str, Any], text: str) -> bytes:
        whole = {"policyName": self.policy, **data, "checksum": fnv1a_32(text)}
        return json.dumps(whole, separators=(",", ":")).encode()

    def problem(self, why: str) -> PinningProblem:
        return PinningProblem(
            f"could not restore state from checkpoint: {why}, please drain this node and delete the {self._manager} "
            f'checkpoint file "{self.path}" before restarting'
        )


class CheckpointedState(abc.ABC):
    """What a checkpoint file holds: changed in memory at once, on disk when somebody waits for it."""

    def __init__(self, file: CheckpointFile) -> None:
        self._file = file
        self._changed = False

    @abc.abstractmethod
    def _content(self) -> tuple[dict[str, Any], str]:
        """What the file is to hold, and the text its checksum is taken over."""

    def save(self) -> None:
        """Write what changed, at the start. OSError when the disk refuses; it is still to be written then."""
        if self._changed:
            self._file.write(*self._content())
            self._changed = False

    async def flush(self) -> None:
        """Until every change is on disk. OSError when the disk refuses; it is still to be written then."""
        if self._changed:
            self._file.put(*self._content())
            self._changed = False
        await self._file.flush()
