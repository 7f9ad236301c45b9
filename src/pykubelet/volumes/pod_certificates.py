"""Certificates of podCertificate sources of projected volumes, obtained by PodCertificateRequests.

Keys are in memory only; after a restart new certificates are requested. A certificate is renewed when its signer
says so, and the old one is used until the new one is issued. A denial is final for the pod.
Does not cover: the files (plugins/projected.py), which are made again at every refresh.
"""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from pykubelet.api.types import (
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCertificateProjection,
    PodCertificateRequest,
    PodCertificateRequestSpec,
    ServiceAccount,
)
from pykubelet.certs.pem import CertificateError
from pykubelet.clients.kube.port import KubeClient
from pykubelet.context import Context
from pykubelet.kit.backoff import Backoff
from pykubelet.model.errors import ApiError, NotFound
from pykubelet.model.pod import name_of, namespace_of, uid_of
from pykubelet.model.reasons import WARNING
from pykubelet.volumes.objects import Credentials

logger = logging.getLogger(__name__)

ANSWER_WITHIN = 20.0
FIRST_POLL, LAST_POLL = 0.1, 2.0
"""Seconds between reads of a request, growing."""
OVERDUE_AFTER = 600.0
"""Seconds after the time to renew."""
REFUSALS = ("Denied", "Failed")
_RSA = {"RSA3072": 3072, "RSA4096": 4096}
_CURVES = {"ECDSAP256": "SECP256R1", "ECDSAP384": "SECP384R1", "ECDSAP521": "SECP521R1"}

Key = tuple[str, str, int]
"""(pod, volume, index of the source)"""


class Issued(Credentials, frozen=True, kw_only=True):
    renew_at: float
    not_after: float


class _Kept(Struct):
    issued: Issued | None = None
    request: str = ""
    """Name of the request that is not answered yet."""
    key_pem: bytes = b""
    """Of that request."""
    refused: str = ""
    refusal: str = ""
    """Denied or Failed."""
    signer: str = ""

    def state(self, now: float) -> str:
        """As upstream names it in its metric."""
        if self.refusal:
            return self.refusal.lower()
        if self.issued is None:
            return "not_yet_issued"
        if now > self.issued.not_after:
            return "expired"
        return "overdue_for_refresh" if now > self.issued.renew_at + OVERDUE_AFTER else "fresh"


class PodCertificateKeeper:
    def __init__(self, ctx: Context, *, kube: KubeClient, node_uid: Callable[[], str]) -> None:
        self._clock, self._events, self._node_name = ctx.clock, ctx.events, ctx.node_name
        self._kube = kube
        self._node_uid = node_uid
        self._kept: dict[Key, _Kept] = {}
        self._states = ctx.metrics.gauge(
            "kubelet_podcertificate_states",
            "podCertificate sources of volumes by their signer and how their certificate is",
            ("signer_name", "state"),
        )
        ctx.metrics.on_scrape(self._measure)

    def _measure(self) -> None:
        now = self._clock.now()
        self._states.replace(Counter((kept.signer, kept.state(now)) for kept in self._kept.values()))

    async def credentials(self, pod: Pod, volume: str, index: int, source: PodCertificateProjection) -> Issued:
        kept = self._kept.setdefault((uid_of(pod), volume, index), _Kept(signer=source.signer_name or ""))
        now = self._clock.now()
        if kept.issued is not None and now < kept.issued.renew_at:
            return kept.issued
        try:
            kept.issued = await self._obtain(pod, source, kept)
        except (ApiError, CertificateError) as error:
            if kept.issued is None or now >= kept.issued.not_after:
                raise
            logger.warning("cannot renew a pod's certificate, the old one is still good", extra={"error": str(error)})
        return kept.issued

    def forget(self, uid: str) -> None:
        for key in [key for key in self._kept if key[0] == uid]:
            del self._kept[key]

    async def _obtain(self, pod: Pod, source: PodCertificateProjection, kept: _Kept) -> Issued:
        if kept.refused:
            raise CertificateError(kept.refused)
        if not kept.request:
            kept.key_pem, proof = make_key(source.key_type or "")
            made = await self._kube.create(await self._request(pod, source, proof))
            kept.request = made.metadata.name or ""
        deadline, pauses = self._clock.monotonic() + ANSWER_WITHIN, Backoff(FIRST_POLL, LAST_POLL)
        while self._clock.monotonic() < deadline:
            try:
                found = await self._kube.get(PodCertificateRequest, kept.request, namespace_of(pod))
            except NotFound:
                name, kept.request = kept.request, ""
                raise CertificateError(f"pod certificate request {name} is gone before it was answered") from None
            if self._is_answered(pod, source, found, kept):
                return _issued(found, kept)
            await self._clock.sleep(pauses.next())
        raise CertificateError(
            f"pod certificate request {kept.request} to signer {source.signer_name} is not answered yet"
        )

    def _is_answered(
        self, pod: Pod, source: PodCertificateProjection, found: PodCertificateRequest, kept: _Kept
    ) -> bool:
        for condition in found.status.conditions:
            if condition.status != "True":
                continue
            if condition.type in REFUSALS:
                why = f"{condition.reason}: {condition.message}"
                kept.refusal = condition.type
                kept.refused = f"signer {source.signer_name} refused ({condition.type}): {why}"
                self._events.pod_event(pod, WARNING, f"CertificateRequest{condition.type}", kept.refused)
                raise CertificateError(kept.refused)
            if condition.type == "Issued":
                return True
        return False

    async def _request(self, pod: Pod, source: PodCertificateProjection, proof: bytes) -> PodCertificateRequest:
        namespace, account = namespace_of(pod), pod.spec.service_account_name or "default"
        found = await self._kube.get(ServiceAccount, account, namespace)
        owner = OwnerReference(api_version="v1", kind="Pod", name=name_of(pod), uid=uid_of(pod))
        return PodCertificateRequest(
            metadata=ObjectMeta(namespace=namespace, generate_name="req-", owner_references=[owner]),
            spec=PodCertificateRequestSpec(
                signer_name=source.signer_name,
                pod_name=name_of(pod),
                pod_uid=uid_of(pod),
                service_account_name=account,
                service_account_uid=found.metadata.uid,
                node_name=self._node_name,
                node_uid=self._node_uid(),
                max_expiration_seconds=source.max_expiration_seconds,
                stub_pkcs10_request=base64.b64encode(proof).decode(),
                unverified_user_annotations=source.user_annotations,
            ),
        )


def _issued(found: PodCertificateRequest, kept: _Kept) -> Issued:
    status, key_pem = found.status, kept.key_pem
    kept.request, kept.key_pem = "", b""
    if status.not_after is None or status.begin_refresh_at is None:
        raise CertificateError(f"the answer to pod certificate request {found.metadata.name} has no times")
    return Issued(
        key_pem=key_pem,
        chain_pem=(status.certificate_chain or "").encode(),
        renew_at=status.begin_refresh_at.timestamp(),
        not_after=status.not_after.timestamp(),
    )


def make_key(kind: str) -> tuple[bytes, bytes]:
    """A new key as PKCS#8 PEM, and the proof that we have it: an empty signing request (DER) signed by it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    key = _new_key(kind)
    digest = None if kind == "ED25519" else hashes.SHA256()
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, digest)
    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, request.public_bytes(serialization.Encoding.DER)


def _new_key(kind: str) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    if kind in _RSA:
        return rsa.generate_private_key(public_exponent=65537, key_size=_RSA[kind])
    if kind in _CURVES:
        return ec.generate_private_key(getattr(ec, _CURVES[kind])())
    if kind == "ED25519":
        return ed25519.Ed25519PrivateKey.generate()
    raise CertificateError(f"keyType {kind or '(none)'} of a podCertificate source is not known")
