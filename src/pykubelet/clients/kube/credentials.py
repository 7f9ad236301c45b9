"""The agent's identity to the API server, always as the files say now: certificates, tokens, plugins, trusted CAs.

Files are looked at again at most once a second and read again when they changed; a file that cannot be read any
more, or a certificate whose key is not there yet, leaves the last good state in force. Nothing secret is logged.
Exec credential plugins (client.authentication.k8s.io v1 and v1beta1) get the request in KUBERNETES_EXEC_INFO and print
an ExecCredential, kept until it expires or the server refuses it; programs that want a terminal are not supported.
Does not cover: opening connections (connections.py), getting new certificates (certs/).
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.codec import encode_json
from pykubelet.api.times import TimeError, parse_nano_time
from pykubelet.clients.kube.kubeconfig import ClusterEntry, ExecEntry, Kubeconfig, KubeconfigError
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.programs import run_program

TIME_LIMIT = 60.0
"""Seconds a plugin may take; upstream waits for ever, but a hung one must not hang the node."""
CLUSTER_EXTENSION = "client.authentication.k8s.io/exec"


class ExecCredential(Struct, frozen=True, kw_only=True):
    token: str = ""
    certificate: bytes = b""
    key: bytes = b""
    expires: float | None = None
    """Unix seconds; None when only the server can say that it is over."""


class ExecPlugin:
    def __init__(
        self, entry: ExecEntry, cluster: ClusterEntry, clock: Clock, *, source: str, metrics: Registry | None = None
    ) -> None:
        self._calls = (metrics or Registry()).counter(
            "rest_client_exec_plugin_call_total", "Runs of the plugin by exit status.", ("code", "call_status")
        )
        self._entry = entry
        self._cluster = cluster
        self._clock = clock
        self._what = f"kubeconfig {source}: exec plugin {entry.command}"
        self._known: ExecCredential | None = None
        self._lock = asyncio.Lock()  # one run serves all waiting callers

    async def credential(self, *, unless: ExecCredential | None = None) -> ExecCredential:
        """The credential in force; `unless` is one that the server refused, so a new one is fetched in its place."""
        async with self._lock:
            known = self._known
            if known is None or known is unless or self._is_over(known):
                known = self._known = await self._ask()
            return known

    @property
    def known(self) -> ExecCredential | None:
        return self._known

    def _is_over(self, credential: ExecCredential) -> bool:
        return credential.expires is not None and credential.expires <= self._clock.now()

    async def _ask(self) -> ExecCredential:
        environment = {**os.environ, **dict(self._entry.env), "KUBERNETES_EXEC_INFO": self._request()}
        try:
            finished = await run_program([self._entry.command, *self._entry.args], env=environment, seconds=TIME_LIMIT)
        except TimeoutError:
            self._calls.inc("1", "client_internal_error")
            raise KubeconfigError(f"{self._what}: no answer within {TIME_LIMIT:g} s") from None
        except OSError as error:
            self._calls.inc("1", "plugin_not_found_error")
            hint = f"; {self._entry.install_hint}" if self._entry.install_hint else ""
            raise KubeconfigError(f"{self._what}: {error.strerror or error}{hint}") from None
        self._calls.inc(str(finished.status), "plugin_execution_error" if finished.status else "no_error")
        if finished.status != 0:
            raise KubeconfigError(f"{self._what}: exit status {finished.status}: {finished.complaint()}")
        return self._read(finished.out)

    def _request(self) -> str:
        spec: dict[str, Any] = {"interactive": False}
        if self._entry.provide_cluster_info:
            cluster: dict[str, Any] = {"server": self._cluster.server}
            if self._cluster.ca_data or self._cluster.ca_file:
                cluster["certificate-authority-data"] = base64.b64encode(_ca(self._cluster)).decode()
            if self._cluster.insecure:
                cluster["insecure-skip-tls-verify"] = True
            if self._cluster.tls_server_name:
                cluster["tls-server-name"] = self._cluster.tls_server_name
            if self._cluster.proxy_url:
                cluster["proxy-url"] = self._cluster.proxy_url
            if (config := self._cluster.extensions.get(CLUSTER_EXTENSION)) is not None:
                cluster["config"] = config
            spec["cluster"] = cluster
        request = {"apiVersion": self._entry.api_version, "kind": "ExecCredential", "spec": spec}
        return encode_json(request).decode()

    def _read(self, printed: bytes) -> ExecCredential:
        try:
            answer = msgspec.json.decode(printed)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise KubeconfigError(f"{self._what}: did not print an ExecCredential as JSON") from None
        status = answer.get("status") if isinstance(answer, dict) else None
        if not isinstance(status, dict) or answer.get("kind") != "ExecCredential":
            raise KubeconfigError(f"{self._what}: did not print an ExecCredential with a status")
        if answer.get("apiVersion") != self._entry.api_version:
            raise KubeconfigError(
                f"{self._what}: printed apiVersion {answer.get('apiVersion')}, wanted {self._entry.api_version}"
            )
        values = {name: status.get(name) or "" for name in ("token", "clientCertificateData", "clientKeyData")}
        if not all(isinstance(value, str) for value in values.values()):
            raise KubeconfigError(f"{self._what}: status must hold texts")
        certificate, key = values["clientCertificateData"], values["clientKeyData"]
        if bool(certificate) != bool(key):
            raise KubeconfigError(f"{self._what}: status has only one of clientCertificateData and clientKeyData")
        if not values["token"] and not certificate:
            raise KubeconfigError(f"{self._what}: status has neither token nor clientCertificateData")
        return ExecCredential(
            token=values["token"], certificate=certificate.encode(), key=key.encode(), expires=self._expiry(status)
        )

    def _expiry(self, status: dict[str, Any]) -> float | None:
        text = status.get("expirationTimestamp")
        if text is None:
            return None
        try:
            return parse_nano_time(str(text)) / 1e9
        except TimeError as error:
            raise KubeconfigError(f"{self._what}: status.expirationTimestamp: {error}") from None


def _ca(cluster: ClusterEntry) -> bytes:
    return cluster.ca_data or (cluster.ca_file.read_bytes() if cluster.ca_file is not None else b"")


logger = logging.getLogger(__name__)

CHECK_PERIOD = 1.0


class TlsMaterial(Struct, frozen=True, kw_only=True):
    """The inputs of a TLS context; equal material needs no new connections."""

    ca: bytes = b""
    certificate: bytes = b""
    key: bytes = b""
    insecure: bool = False

    def __repr__(self) -> str:
        return f"TlsMaterial(ca={bool(self.ca)}, certificate={bool(self.certificate)}, insecure={self.insecure})"


class Identity(Struct, frozen=True, kw_only=True):
    tls: TlsMaterial
    headers: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Identity({self.tls!r}, headers={[name for name, _ in self.headers]})"


def ssl_context(material: TlsMaterial, *, http2: bool = False) -> ssl.SSLContext:
    """A client context that offers HTTP/1.1, or HTTP/2 before it.

    Raises ssl.SSLError or ValueError when the material does not fit together.
    """
    context = ssl.create_default_context(cadata=material.ca.decode("ascii") if material.ca else None)
    # As Go does: an intermediate in the bundle is trusted by itself, and CAs made by hand may lack extensions.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(["h2", "http/1.1"] if http2 else ["http/1.1"])
    if material.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if material.certificate:
        _load_pair(context, material)
    return context


def _load_pair(context: ssl.SSLContext, material: TlsMaterial) -> None:
    # The ssl module takes only files; memory files keep inline keys off the disk.
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        # One file may hold both; writing it twice would send the certificate twice.
        both = material.certificate == material.key
        os.write(descriptor, material.certificate if both else material.certificate + b"\n" + material.key)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


class _File:
    """A file that may be replaced at any time."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._stamp: tuple[int, int, int] | None = None
        self._content: bytes | None = None

    def read(self, *, anyway: bool = False) -> bytes:
        try:
            facts = self.path.stat()
            stamp = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if self._content is None or stamp != self._stamp or anyway:
                # Small and local; not worth a thread on every request.
                self._content, self._stamp = self.path.read_bytes(), stamp
        except OSError as error:
            if self._content is None:
                raise KubeconfigError(f"{self._what}: {self.path}: {error.strerror or error}") from None
            logger.warning(
                "cannot read file again, its last content stays in force",
                extra={"path": str(self.path), "error": str(error.strerror)},
            )
        return self._content


def _content(data: bytes, path: Path | None, what: str) -> Callable[[bool], bytes]:
    if data or path is None:
        return lambda anyway: data
    file = _File(path, what)
    return lambda anyway: file.read(anyway=anyway)


class Login:
    """The identity of one kubeconfig, kept current."""

    def __init__(self, config: Kubeconfig, clock: Clock, metrics: Registry | None = None) -> None:
        user, cluster = config.user, config.cluster
        source = f"kubeconfig {config.source}"
        self._clock = clock
        self._user = user
        self._insecure = cluster.insecure
        self._ca = _content(cluster.ca_data, cluster.ca_file, f"{source}: certificate-authority")
        self._certificate = _content(user.certificate_data, user.certificate_file, f"{source}: client-certificate")
        self._key = _content(user.key_data, user.key_file, f"{source}: client-key")
        self._rotated = _File(user.rotated_file, f"{source}: rotated certificate") if user.rotated_file else None
        self._token = _content(user.token.encode(), None, "")
        if user.token_file is not None:
            self._token = _content(b"", user.token_file, f"{source}: tokenFile")
        self._plugin: ExecPlugin | None = None
        if user.exec is not None:
            self._plugin = ExecPlugin(user.exec, cluster, clock, source=config.source, metrics=metrics)
        self._known: Identity | None = None
        self._checked = 0.0

    async def identity(self) -> Identity:
        """The identity now."""
        now = self._clock.monotonic()
        if self._known is not None and now - self._checked < CHECK_PERIOD and self._plugin is None:
            return self._known
        return await self._read(anyway=False)

    async def renewed(self, refused: Identity) -> Identity:
        """The identity after the server refused one: files are read anew and a plugin is run again."""
        if self._known is not None and self._known != refused:
            return self._known  # another caller was quicker
        return await self._read(anyway=True)

    async def _read(self, *, anyway: bool) -> Identity:
        self._checked = self._clock.monotonic()
        certificate, key = self._pair(anyway)
        tls = TlsMaterial(ca=self._ca(anyway), certificate=certificate, key=key, insecure=self._insecure)
        authorization = self._authorization(self._token(anyway).decode(errors="replace").strip())
        if self._plugin is not None:
            credential = await self._plugin.credential(unless=self._plugin.known if anyway else None)
            if credential.certificate:
                tls = replace(tls, certificate=credential.certificate, key=credential.key)
            if credential.token:
                authorization = f"Bearer {credential.token}"
        headers = (("Authorization", authorization),) if authorization else ()
        self._known = Identity(tls=tls, headers=headers + self._user.impersonate)
        return self._known

    def _pair(self, anyway: bool) -> tuple[bytes, bytes]:
        if self._rotated is not None and self._rotated.path.exists():
            both = self._rotated.read(anyway=anyway)
            return both, both
        return self._certificate(anyway), self._key(anyway)

    def _authorization(self, token: str) -> str:
        if token:
            return f"Bearer {token}"
        if self._user.username:
            pair = f"{self._user.username}:{self._user.password}".encode()
            return f"Basic {base64.b64encode(pair).decode()}"
        return ""
