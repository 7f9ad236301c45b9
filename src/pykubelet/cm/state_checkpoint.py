"""Checkpoint files that upstream's kubelet reads and writes as well: envelope, checksum, policy, clear refusals.

The checksum is FNV-1a over the text in which Go's debugging printer shows the value, types and all; what each file
holds is in `cpu_state.py` and `memory_state.py`. Unlike other checkpoints a damaged one stops the agent, which names
the file to delete, as upstream: what containers own exclusively cannot be guessed.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pykubelet.cm.errors import PinningProblem
from pykubelet.kit.files import Checkpoint, CheckpointDamaged
from pykubelet.kit.go_text import fnv1a_32


class CheckpointFile:
    """One file. `manager` is what its owner is called in messages, such as "CPU manager"."""

    def __init__(
        self, path: Path, *, manager: str, policy: str, texts: Callable[[dict[str, Any]], Iterable[str]]
    ) -> None:
        """`texts` gives the forms of which a kubelet may have taken the checksum."""
        self._checkpoint = Checkpoint(path, encode=self._encode, decode=self._decode)
        self._manager = manager
        self._texts = texts
        self.policy = policy

    def read(self) -> dict[str, Any] | None:
        """What the file holds; None when there is none. PinningProblem when it is damaged or of another policy."""
        try:
            found = self._checkpoint.read()
        except CheckpointDamaged as damage:
            raise self.problem(str(damage)) from damage
        return None if found is None else found[0]

    def write(self, data: dict[str, Any], text: str) -> None:
        """`data` with its checksum, which is taken over `text`. Blocks: for the start."""
        self._checkpoint.save_now((data, text))

    def put(self, data: dict[str, Any], text: str) -> None:
        """To be written by the next `flush`."""
        self._checkpoint.put((data, text))

    async def flush(self) -> None:
        await self._checkpoint.flush()

    def _encode(self, content: tuple[dict[str, Any], str]) -> bytes:
        data, text = content
        whole = {"policyName": self.policy, **data, "checksum": fnv1a_32(text)}
        return json.dumps(whole, separators=(",", ":")).encode()

    def _decode(self, raw: bytes) -> tuple[dict[str, Any], str]:
        try:
            data = json.loads(raw)
            policy, checksum = data["policyName"], data["checksum"]
            texts = {fnv1a_32(text): text for text in self._texts(data)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointDamaged(f"the file is not a checkpoint ({error})") from error
        # Upstream takes 0 for "not checked".
        if checksum and checksum not in texts:
            raise CheckpointDamaged("checkpoint is corrupted: its checksum does not match")
        if policy != self.policy:
            raise CheckpointDamaged(
                f'configured policy "{self.policy}" differs from state checkpoint policy "{policy}"'
            )
        return dict(data), texts.get(checksum, "")

    def problem(self, why: str) -> PinningProblem:
        return PinningProblem(
            f"could not restore state from checkpoint: {why}, please drain this node and delete the {self._manager} "
            f'checkpoint file "{self._checkpoint.path}" before restarting'
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
