"""TLS of the HTTPS server: versions, cipher suites, key exchange groups, files that may change, and handshakes.

A context is made from the files and made anew when one of them changed; connections take the newest. Files are
looked at on each connection, which costs three stat calls and no timer. A broken new file is logged once and the
old context stays. Client certificates are requested but not required; a wrong one fails the handshake.

Handshakes are computed in a thread of their own, by address in turn: an unknown caller can cause one as often as it
connects, which on the loop would delay pods, probes and the lease. The bytes are read and written on the loop, and the
finished connection is passed to the loop's own TLS transport, which finds its handshake done.
Does not cover: obtaining certificates (certs/), what a certificate's names mean (auth.py), limits (admission.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from msgspec import Struct

from pykubelet.kit.tls_records import Records
from pykubelet.model.errors import PykubeletError
from pykubelet.server.admission import FairSlots
from pykubelet.settings.schema_server import ServerSettings

logger = logging.getLogger(__name__)

VERSIONS = {
    "": ssl.TLSVersion.TLSv1_2,
    "VersionTLS10": ssl.TLSVersion.TLSv1,
    "VersionTLS11": ssl.TLSVersion.TLSv1_1,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}

TLS13_SUITES = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
"""Known names that TLS 1.3 has always; nothing but these leaves no suite for TLS 1.2, as in Go."""

SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA": "ECDHE-ECDSA-RC4-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA": "ECDHE-RSA-DES-CBC3-SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA": "ECDHE-RSA-RC4-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA": "DES-CBC3-SHA",
    "TLS_RSA_WITH_RC4_128_SHA": "RC4-SHA",
}
"""Names as Go spells them, and the same suites as OpenSSL does."""

CURVES = {23: "prime256v1", 24: "secp384r1", 25: "secp521r1", 29: "X25519"}
"""Key exchange groups by their number; hybrid ones need a newer OpenSSL than Python offers a way to choose with."""

DEFAULT_SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES"


class BadTls(PykubeletError):
    """A TLS setting or file that cannot be used; names it."""


class TlsRules(Struct, frozen=True, kw_only=True):
    """The settings in OpenSSL's words."""

    minimum: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    suites: str = DEFAULT_SUITES
    curve: str = ""


def tls_rules(settings: ServerSettings) -> TlsRules:
    """Raises BadTls for a name that does not exist or that this machine's OpenSSL does not offer."""
    if settings.tls_min_version not in VERSIONS:
        raise BadTls(f"tlsMinVersion {settings.tls_min_version!r} is not one of {', '.join(filter(None, VERSIONS))}")
    minimum, names = VERSIONS[settings.tls_min_version], settings.tls_cipher_suites
    rules = TlsRules(
        minimum=ssl.TLSVersion.TLSv1_3 if names and TLS13_SUITES.issuperset(names) else minimum,
        suites=_suites(names),
        curve=_curve(settings.tls_curve_preferences),
    )
    _new_context(rules)
    return rules


def _suites(names: Sequence[str]) -> str:
    unknown = [name for name in names if name not in SUITES and name not in TLS13_SUITES]
    if unknown:
        raise BadTls(f"tlsCipherSuites: {', '.join(unknown)} is not a cipher suite; known are {', '.join(SUITES)}")
    chosen = [SUITES[name] for name in names if name in SUITES]
    return ":".join(chosen) if chosen else DEFAULT_SUITES


def _curve(numbers: Sequence[int]) -> str:
    if not numbers:
        return ""
    known = [CURVES[number] for number in numbers if number in CURVES]
    if not known:
        raise BadTls(
            f"tlsCurvePreferences: none of {', '.join(map(str, numbers))} can be chosen here; "
            f"known are {', '.join(f'{number} ({name})' for number, name in CURVES.items())}"
        )
    if len(numbers) > 1:
        # Python lets us name one group or leave all; leaving all keeps every wanted one available.
        logger.warning("tlsCurvePreferences with several groups cannot be enforced; OpenSSL's own order is used")
        return ""
    return known[0]


def _new_context(rules: TlsRules) -> ssl.SSLContext:
    context = ServingContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TLS 1.0 and 1.1 are the operator's choice
        context.minimum_version = rules.minimum
    try:
        context.set_ciphers(rules.suites)
        if rules.curve:
            context.set_ecdh_curve(rules.curve)
    except (ssl.SSLError, ValueError) as error:
        raise BadTls(
            f"tlsCipherSuites or tlsCurvePreferences: {ssl.OPENSSL_VERSION} offers none of {rules.suites} "
            f"{rules.curve}: {error}"
        ) from error
    context.set_alpn_protocols(["http/1.1"])
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


class ServingFiles(Struct, frozen=True):
    """Where the serving certificate (with its chain) and its key are; they may be the same file."""

    certificate: Path
    key: Path


FindServing = Callable[[], ServingFiles | None]
"""Where the certificate is just now; None while there is none yet (a request is waiting for approval)."""


class Reload(Struct, frozen=True, kw_only=True):
    """Which files are read again when they change; the others are read once."""

    certificate: bool = True
    client_ca: bool = True


class TlsFiles:
    """The newest usable context. `generation` grows when callers' certificates must be judged anew."""

    def __init__(
        self, *, rules: TlsRules, serving: FindServing, client_ca: Path | None, reload: Reload | None = None
    ) -> None:
        self._rules = rules
        self._find = serving
        self._ca_file = client_ca
        self._reload = reload or Reload()
        self._copies: dict[Path, Path] = {}
        """Of files that are not read again."""
        self._context: ssl.SSLContext | None = None
        self._seen: object = None
        self._seen_ca: object = None
        self._made_in: WeakKeyDictionary[ssl.SSLContext, int] = WeakKeyDictionary()
        self.generation = 0

    def context(self) -> ssl.SSLContext | None:
        """None when there is no certificate to show: the connection can only be closed."""
        files = self._serving()
        if files is None:
            return self._context
        ca_mark = _mark(self._client_ca) if self._client_ca is not None else None
        mark = (files, _mark(files.certificate), _mark(files.key), ca_mark)
        if mark != self._seen:
            self._seen = mark
            self._renew(files, ca_mark)
        return self._context

    def _serving(self) -> ServingFiles | None:
        files = self._find()
        if files is None or self._reload.certificate:
            return files
        return ServingFiles(self._as_first_seen(files.certificate), self._as_first_seen(files.key))

    @property
    def _client_ca(self) -> Path | None:
        if self._ca_file is None or self._reload.client_ca:
            return self._ca_file
        return self._as_first_seen(self._ca_file)

    def _as_first_seen(self, path: Path) -> Path:
        """A copy that does not change; the file itself while it cannot be read, so that errors name it."""
        if path not in self._copies:
            try:
                content = path.read_bytes()
            except OSError:
                return path
            self._copies[path] = copy_in_memory(content)
        return self._copies[path]

    def check(self) -> None:
        """Fail now, with the file's name, rather than at the first handshake. No certificate yet is fine."""
        files = self._serving()
        if files is not None:
            self._load(files)
        elif self._client_ca is not None:
            _load_client_ca(_new_context(self._rules), self._client_ca)

    def _renew(self, files: ServingFiles, ca_mark: object) -> None:
        try:
            fresh = self._load(files)
        except BadTls as error:
            logger.error("changed TLS files cannot be used; the previous ones stay", extra={"error": str(error)})
            return
        if self._context is not None:
            logger.info("TLS files changed and were read again", extra={"certificate": str(files.certificate)})
        self._context = fresh
        if ca_mark != self._seen_ca:
            self._seen_ca = ca_mark
            self.generation += 1
        self._made_in[fresh] = self.generation

    def generation_of(self, context: ssl.SSLContext) -> int:
        """The generation whose CA bundle a handshake with this context used."""
        return self._made_in.get(context, -1)

    def _load(self, files: ServingFiles) -> ssl.SSLContext:
        context = _new_context(self._rules)
        try:
            # The password callback keeps OpenSSL from asking on the terminal when a key is encrypted.
            context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise BadTls(f"serving certificate {files.certificate} with key {files.key}: {_reason(error)}") from error
        if self._client_ca is not None:
            _load_client_ca(context, self._client_ca)
        return context


def copy_in_memory(content: bytes) -> Path:
    """A file that exists for this process alone, for as long as it runs."""
    descriptor = os.memfd_create("tls", os.MFD_CLOEXEC)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return Path(f"/proc/self/fd/{descriptor}")


def _load_client_ca(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:
        raise BadTls(f"authentication.x509.clientCAFile {path}: {_reason(error)}") from error
    context.verify_mode = ssl.CERT_OPTIONAL
    # A bundle may hold an intermediate authority alone, as Go accepts it.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)


def _mark(path: Path) -> tuple[int, int, int, int] | None:
    """Changes when the file is rewritten, replaced or its link points elsewhere."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


BLOCK = 16 * 1024
MAX_STEPS = 32
"""Reads until the handshake must be done: real callers need two to four, unless their chain is very long."""
SPARE_RECORDS, SPARE_FOR_DATA = 32.0, 1 / 16
"""Records without data that a caller may send, and what each one with data earns it. Upstream's library allows 16
one after the other; real callers change keys after millions of records, if ever."""

_finished: ContextVar[FinishedTls | None] = ContextVar("finished_tls", default=None)


class FinishedTls:
    """A TLS session after its handshake, in the shape of an SSLObject. It was begun on buffers of its own; what the
    transport puts into and takes from its buffers is moved between the two, record by record: a change of keys costs
    many times what the bytes cost that ask for it, so a caller may send only few records that carry no data."""

    def __init__(self, session: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._session = session
        self._incoming, self._outgoing = incoming, outgoing
        self._from_peer, self._to_peer = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._records = Records(incoming.read())
        """Not yet given to the session."""
        self._spare: float = SPARE_RECORDS

    def join(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        """These are the transport's buffers."""
        self._from_peer, self._to_peer = incoming, outgoing

    def _feed(self) -> bool:
        """Give the session the next record; False when there is none as a whole."""
        if self._from_peer.pending:
            self._records.add(self._from_peer.read())
        record = self._records.take()
        if not record:
            return False
        self._incoming.write(record)
        self._spare -= 1
        if self._spare < 0:
            raise ssl.SSLError("too many TLS records without data")
        return True

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._to_peer.write(self._outgoing.read())

    def do_handshake(self) -> None:
        self._flush()  # session tickets

    def read(self, *arguments: Any) -> Any:
        try:
            fed = 0
            while True:
                try:
                    found = self._session.read(*arguments)
                except ssl.SSLWantReadError:
                    if not self._feed():
                        raise
                    fed = 1  # the last one, should data come now
                else:
                    self._spare = min(SPARE_RECORDS, self._spare + fed + SPARE_FOR_DATA)
                    return found
        finally:
            self._flush()

    def write(self, data: Any) -> int:
        try:
            return self._session.write(data)
        finally:
            self._flush()

    def unwrap(self) -> None:
        try:
            while True:
                try:
                    self._session.unwrap()
                except ssl.SSLWantReadError:
                    if not self._feed():
                        raise
                else:
                    return
        finally:
            self._flush()

    def pending(self) -> int:
        return self._session.pending() + self._incoming.pending + len(self._records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


class ServingContext(ssl.SSLContext):
    """A context whose transports take over a session that was passed to them."""

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        finished = _finished.get()
        if finished is None:
            return super().wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        finished.join(incoming, outgoing)
        return cast(ssl.SSLObject, finished)


def hand_over(finished: FinishedTls) -> None:
    """The transport that this task makes next finds this session; other tasks have contexts of their own."""
    _finished.set(finished)


class Handshakes:
    def __init__(self) -> None:
        self._slots = FairSlots()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="handshake")

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def shake(self, connection: socket.socket, context: ssl.SSLContext, address: str) -> FinishedTls:
        """Raises OSError (SSLError is one) when it fails. Has no deadline of its own."""
        loop = asyncio.get_running_loop()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        session = context.wrap_bio(incoming, outgoing, server_side=True)
        for _ in range(MAX_STEPS):
            received = await loop.sock_recv(connection, BLOCK)
            if not received:
                raise ConnectionResetError("the caller left during the handshake")
            incoming.write(received)
            try:
                async with self._slots.slot(address):
                    await loop.run_in_executor(self._thread, session.do_handshake)
            except ssl.SSLWantReadError:
                await loop.sock_sendall(connection, outgoing.read())
            except ssl.SSLError:
                with contextlib.suppress(OSError):  # the alert that says why, if it fits
                    connection.send(outgoing.read())
                raise
            else:
                return FinishedTls(session, incoming, outgoing)
        raise ConnectionResetError("the handshake took too many pieces")
