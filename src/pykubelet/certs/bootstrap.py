"""Joining a cluster with bootstrap credentials: a client certificate of our own, and a kubeconfig that uses it.

The key waits in `kubelet-client.key.tmp` until its certificate is there, so that a restart in between continues the
same request. The kubeconfig is written last: once it is there, everything it names is.
"""

from __future__ import annotations

import base64
import contextlib
import logging
from pathlib import Path
from typing import Any

from msgspec import Struct

from pykubelet.api.codec import encode_json
from pykubelet.certs.pem import CertificateError, Pair, Wanted, make_key, read_facts, read_pair
from pykubelet.certs.rotation import CLIENT_SIGNER, CertificateFiles, obtain, request_name
from pykubelet.clients.kube.port import KubeClient
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.kit.files import write_atomic
from pykubelet.model.errors import ApiError

logger = logging.getLogger(__name__)

HEALTHY_WITHIN = 60.0
ISSUED_WITHIN = 3600.0
KEY_FILE = "kubelet-client.key.tmp"


class ClusterAddress(Struct, frozen=True, kw_only=True):
    """The server as the new kubeconfig names it: taken over from the bootstrap kubeconfig."""

    server: str
    ca_file: Path | None = None
    ca_data: bytes = b""
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    namespace: str = "default"


def still_good(certificate: bytes, now: float) -> bool:
    """Whether a client certificate (PEM) is in its time; one that cannot be read is not."""
    try:
        facts = read_facts(certificate)
    except CertificateError:
        return False
    return facts.not_before <= now < facts.not_after


class Bootstrap:
    def __init__(
        self, *, kube: KubeClient, files: CertificateFiles, clock: Clock, node_name: str, kubeconfig: Path
    ) -> None:
        """`kube` logs in with the bootstrap credentials, `files` and `kubeconfig` are where results go."""
        self._kube = kube
        self._files = files
        self._clock = clock
        self._wanted = Wanted(node_name=node_name)
        self._kubeconfig = kubeconfig

    async def join(self, address: ClusterAddress) -> Pair:
        """Get a certificate and write the kubeconfig; retries until it works."""
        pair = self._files.load()
        if pair is None or not self._fits(pair):
            pair = await self._certificate()
        self._kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._kubeconfig, kubeconfig_text(address, self._files.current), mode=0o600)
        logger.info("joined the cluster", extra={"kubeconfig": str(self._kubeconfig), "server": address.server})
        return pair

    def _fits(self, pair: Pair) -> bool:
        in_time = pair.facts.not_before <= self._clock.now() < pair.facts.not_after
        return in_time and pair.facts.common_name == self._wanted.common_name

    async def _certificate(self) -> Pair:
        await self._wait_healthy()
        backoff = Backoff(initial=2.0, maximum=32.0)
        while True:
            key = self._key()
            try:
                certificate = await obtain(
                    self._kube,
                    key=key,
                    wanted=self._wanted,
                    signer=CLIENT_SIGNER,
                    clock=self._clock,
                    within=ISSUED_WITHIN,
                    name=request_name(key, self._wanted, CLIENT_SIGNER),
                )
                pair = read_pair(certificate, key)
                if not self._fits(pair):
                    raise CertificateError("the certificate for the earlier request has expired")
            except CertificateError as error:
                # This request leads nowhere (denied, expired, deleted): the next try makes another.
                logger.warning("no client certificate", extra={"error": str(error)})
                self._forget_key()
            except ApiError as error:
                logger.warning("cannot ask for a client certificate", extra={"error": str(error)})
            else:
                pair = self._files.save(certificate, key)
                self._forget_key()
                return pair
            await self._clock.sleep(jittered(backoff.next(), 0.1))

    async def _wait_healthy(self) -> None:
        """Give a starting server a minute; after that the request itself shows what is wrong."""
        until = self._clock.monotonic() + HEALTHY_WITHIN
        while not await self._kube.is_healthy() and self._clock.monotonic() < until:
            await self._clock.sleep(2.0)

    def _key(self) -> bytes:
        path = self._files.folder / KEY_FILE
        try:
            key = path.read_bytes()
            request_name(key, self._wanted, CLIENT_SIGNER)
        except (FileNotFoundError, CertificateError):
            key = make_key()
            self._files.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            write_atomic(path, key, mode=0o600)
        return key

    def _forget_key(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._files.folder / KEY_FILE).unlink()


def kubeconfig_text(address: ClusterAddress, pem: Path) -> bytes:
    """A kubeconfig that logs in with the pair in `pem`, with the names upstream gives its parts."""
    cluster: dict[str, Any] = {"server": address.server}
    if address.ca_data:
        cluster["certificate-authority-data"] = base64.b64encode(address.ca_data).decode()
    elif address.ca_file is not None:
        cluster["certificate-authority"] = str(address.ca_file)
    if address.insecure:
        cluster["insecure-skip-tls-verify"] = True
    if address.tls_server_name:
        cluster["tls-server-name"] = address.tls_server_name
    if address.proxy_url:
        cluster["proxy-url"] = address.proxy_url
    context = {"cluster": "default-cluster", "namespace": address.namespace, "user": "default-auth"}
    login = {"client-certificate": str(pem), "client-key": str(pem)}
    return encode_json(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "default-cluster", "cluster": cluster}],
            "users": [{"name": "default-auth", "user": login}],
            "contexts": [{"name": "default-context", "context": context}],
            "current-context": "default-context",
        }
    )
