"""What the agent may change about its own process."""

from __future__ import annotations

from pathlib import Path

from pykubelet.clients.host.port import AlarmRefused


def set_oom_score(score: int, proc: Path = Path("/proc")) -> None:
    """How gladly the kernel kills the agent when memory is out. Raises AlarmRefused; lowering needs a right."""
    path = proc / "self" / "oom_score_adj"
    try:
        path.write_text(str(score))
    except OSError as error:
        raise AlarmRefused(f"{path}: {error.strerror}") from error
