"""Where an agent's local socket is: /run/pykubelet, a folder of root alone that no pod has mounted.

The root folder (/var/lib/kubelet) is no place for it: many pods have that mounted, and connecting needs no right to
write. Agents with other root folders have names of their own there. Who is not root has no such place and keeps the
socket in the root folder, as earlier versions did.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path

from pykubelet.settings.default_root import DEFAULT_ROOT

FOLDER = Path("/run/pykubelet")
OLD_NAME = "pykubelet.sock"
"""In the root folder: agents of earlier versions, and those that do not run as root."""
LONGEST_NAME = 32


def local_socket(root: Path) -> Path:
    """The local socket of the agent with this root folder."""
    if os.geteuid() != 0:
        return root / OLD_NAME
    real = os.path.realpath(root)
    if real == os.path.realpath(DEFAULT_ROOT):
        return FOLDER / "kubelet.sock"
    # The name of the folder above is for people, the digest makes it one of a kind.
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:12]
    return FOLDER / f"{os.path.basename(os.path.dirname(real))[:LONGEST_NAME]}-{digest}.sock"


def candidates(root: Path) -> list[Path]:
    """Where to look for the agent with this root folder, the old place only if something is there."""
    new, old = local_socket(root), root / OLD_NAME
    return [new, old] if old != new and old.exists() else [new]


def forget_old_socket(root: Path) -> None:
    """Remove what an agent of an earlier version left behind, so that no command connects there."""
    old = root / OLD_NAME
    if old == local_socket(root):
        return
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISSOCK(old.lstat().st_mode):
            old.unlink()
