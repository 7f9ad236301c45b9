"""What the agent's own HTTPS server shows: a self-signed pair, or what to ask the cluster's signer for.

Does not cover: asking and renewing (rotation.py), and showing the pair in force (the server looks at the file when
somebody connects).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from pykubelet.certs.pem import CertificateError, Wanted, read_pair, self_signed
from pykubelet.kit.clock import Clock
from pykubelet.kit.files import write_atomic

logger = logging.getLogger(__name__)

SERVING_PREFIX = "kubelet-server"
"""Of the files that hold pairs from the signer."""


def self_signed_files(folder: Path, host: str, ips: Sequence[str], clock: Clock) -> tuple[Path, Path]:
    """`kubelet.crt` and `kubelet.key` in the folder, made when they are missing or of no use."""
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


def wanted_for_serving(node_name: str, dns: Sequence[str], ips: Sequence[str]) -> Wanted | None:
    """What to ask the signer for; None while the node has no address, since it would refuse."""
    if not ips:
        return None
    return Wanted(node_name=node_name, dns=tuple(sorted(set(dns))), ips=tuple(sorted(set(ips))))
