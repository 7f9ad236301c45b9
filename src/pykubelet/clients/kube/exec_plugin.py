"""Credentials from a program (exec credential plugins, client.authentication.k8s.io v1 and v1beta1).

The program gets the request in KUBERNETES_EXEC_INFO and prints an ExecCredential. What it printed is kept until it
expires or the server says that it is no good. Not covered: programs that want a terminal; the agent has none.
"""

from __future__ import annotations

import asyncio
import base64
import os
from typing import Any

import msgspec
from msgspec import Struct

from pykubelet.api.codec import encode_json
from pykubelet.api.times import TimeError, parse_nano_time
from pykubelet.clients.kube.kubeconfig import ClusterEntry, ExecEntry, KubeconfigError
from pykubelet.kit.clock import Clock
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
    def __init__(self, entry: ExecEntry, cluster: ClusterEntry, clock: Clock, *, source: str) -> None:
        self._entry = entry
        self._cluster = cluster
        self._clock = clock
        self._what = f"kubeconfig {source}: exec plugin {entry.command}"
        self._known: ExecCredential | None = None
        self._lock = asyncio.Lock()  # one run serves everybody who waits

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
            raise KubeconfigError(f"{self._what}: no answer within {TIME_LIMIT:g} s") from None
        except OSError as error:
            hint = f"; {self._entry.install_hint}" if self._entry.install_hint else ""
            raise KubeconfigError(f"{self._what}: {error.strerror or error}{hint}") from None
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
