"""Certificates on disk where every kubelet has them: `<prefix>-<stamp>.pem` and the link `<prefix>-current.pem`.

A file holds certificate and key and is written once; the link is replaced in one step, so that a reader or a crash
never sees half a pair. Older files stay for a while, in case somebody has them open by name.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from pykubelet.certs.pem import CertificateError, Pair, read_pair, split_pem
from pykubelet.kit.clock import Clock, utc
from pykubelet.kit.files import sync_folder, write_atomic

logger = logging.getLogger(__name__)

KEPT = 5


class CertificateFiles:
    """The pairs of one purpose: prefix kubelet-client or kubelet-server."""

    def __init__(self, folder: Path, prefix: str, clock: Clock) -> None:
        self.folder = folder
        self._prefix = prefix
        self._clock = clock

    @property
    def current(self) -> Path:
        """The link to the pair in force."""
        return self.folder / f"{self._prefix}-current.pem"

    def load(self) -> Pair | None:
        """The pair in force; None when there is none or it cannot be used (which is logged)."""
        try:
            data = self.current.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.error("cannot read certificate", extra={"path": str(self.current), "error": str(error)})
            return None
        try:
            return read_pair(*split_pem(data))
        except CertificateError as error:
            logger.error("certificate on disk is of no use", extra={"path": str(self.current), "error": str(error)})
            return None

    def save(self, certificate: bytes, key: bytes) -> Pair:
        """Put a new pair in force."""
        pair = read_pair(certificate, key)
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        target = self._fresh_name()
        write_atomic(target, certificate.rstrip() + b"\n" + key, mode=0o600)
        updated = self.folder / f"{self._prefix}-updated.pem"
        with contextlib.suppress(FileNotFoundError):
            updated.unlink()
        updated.symlink_to(target.name)
        os.replace(updated, self.current)
        sync_folder(self.folder)
        self._remove_old(keep=target)
        return pair

    def _fresh_name(self) -> Path:
        seconds = self._clock.now()
        while True:
            stamp = utc(seconds).strftime("%Y-%m-%d-%H-%M-%S")
            path = self.folder / f"{self._prefix}-{stamp}.pem"
            if not path.exists():
                return path
            seconds += 1  # two pairs within a second; the name must only be new

    def _remove_old(self, keep: Path) -> None:
        stamped = sorted(self.folder.glob(f"{self._prefix}-[0-9]*.pem"))
        for path in stamped[:-KEPT]:
            if path != keep:
                with contextlib.suppress(OSError):
                    path.unlink()
