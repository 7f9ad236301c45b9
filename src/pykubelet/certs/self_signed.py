"""`python -m pykubelet.certs.self_signed FOLDER HOST [IP…]`: make the serving certificate in a process of its own.

The library that makes certificates costs 15 MiB, which an agent that made one once would carry for ever.
"""

from __future__ import annotations

import logging
import ssl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pykubelet.kit.clock import Clock, SystemClock
from pykubelet.kit.files import write_atomic
from pykubelet.model.errors import PykubeletError

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 30.0


def ensure_self_signed(
    folder: Path, host: str, ips: Sequence[str], *, within: float = LIMIT_SECONDS
) -> tuple[Path, Path]:
    """`kubelet.crt` and `kubelet.key` in the folder, made when they are missing or of no use. Blocks for a moment."""
    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    if not _usable(certificate, key):
        command = [sys.executable, "-m", __name__, str(folder), host, *ips]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)
        except subprocess.TimeoutExpired as error:
            raise PykubeletError(
                f"the serving certificate {certificate} could not be made within {within:g} s"
            ) from error
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
            raise PykubeletError(f"the serving certificate {certificate} could not be made: {lines[0]}")
    return certificate, key


def _usable(certificate: Path, key: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError:  # ssl.SSLError is one, too
        return False
    return True


def self_signed_files(folder: Path, host: str, ips: Sequence[str], clock: Clock) -> tuple[Path, Path]:
    """`kubelet.crt` and `kubelet.key` in the folder, made when they are missing or of no use."""
    from pykubelet.certs.pem import CertificateError, read_pair, self_signed

    certificate, key = folder / "kubelet.crt", folder / "kubelet.key"
    try:
        read_pair(certificate.read_bytes(), key.read_bytes())
    except (OSError, CertificateError):
        made, made_key = self_signed(host, ips, clock.now())
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(key, made_key, mode=0o600)
        write_atomic(certificate, made, mode=0o644)
        logger.info("made a self-signed serving certificate", extra={"path": str(certificate)})
    return certificate, key


if __name__ == "__main__":
    self_signed_files(Path(sys.argv[1]), sys.argv[2], sys.argv[3:], SystemClock())
