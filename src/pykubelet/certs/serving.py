"""The certificate the agent's own HTTPS server shows, always the one in force.

From files the operator gave, from the cluster's signer (rotation.py feeds it), or self-signed. The server's TLS
context is loaded anew when the pair changes: connections stay, new handshakes see the new certificate.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Sequence
from pathlib import Path

from pykubelet.certs.pem import CertificateError, Wanted, read_pair, self_signed
from pykubelet.kit.clock import Clock
from pykubelet.kit.files import write_atomic
from pykubelet.kit.mailbox import Signal

logger = logging.getLogger(__name__)

LOOK_PERIOD = 10.0


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


class ServingCertificate:
    """Keeps TLS contexts loaded with the pair in these files, whoever replaces them."""

    name = "serving-certificate"

    def __init__(self, *, certificate: Path, key: Path, clock: Clock) -> None:
        """Both may be one file (`kubelet-server-current.pem`), and need not be there yet."""
        self._certificate = certificate
        self._key = key
        self._clock = clock
        self._contexts: list[ssl.SSLContext] = []
        self._stamp: object = None
        self._look = Signal()
        self._loaded = False

    @property
    def available(self) -> bool:
        """Whether handshakes can succeed."""
        return self._loaded

    def serve_with(self, context: ssl.SSLContext) -> None:
        """Load the context now and whenever the pair changes; without a pair handshakes fail until there is one."""
        self._contexts.append(context)
        self._stamp = None
        self._reload()

    def changed(self) -> None:
        """The files were replaced; look now."""
        self._look.set()

    async def run(self) -> None:
        while True:
            self._reload()
            await self._look.wait(at_most=LOOK_PERIOD)

    def _reload(self) -> None:
        stamp = self._read_stamp()
        if stamp is None or stamp == self._stamp:
            return
        again = self._stamp is not None
        self._stamp = stamp
        try:
            # Checked apart first: a context that loaded half a pair would be of no use.
            _must_fit(self._certificate, self._key)
            for context in self._contexts:
                context.load_cert_chain(self._certificate, self._key)
        except OSError as error:  # SSLError is one, too
            logger.error(
                "serving certificate cannot be used; the last good one stays",
                extra={"path": str(self._certificate), "error": str(error)},
            )
            return
        self._loaded = True
        if again:
            logger.info("serving certificate loaded anew", extra={"path": str(self._certificate)})

    def _read_stamp(self) -> object:
        try:
            facts = [path.stat() for path in (self._certificate, self._key)]
        except OSError:
            return None
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in facts)


def _must_fit(certificate: Path, key: Path) -> None:
    """Raise ssl.SSLError unless the files hold a pair."""
    probe = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    probe.load_cert_chain(certificate, key)
