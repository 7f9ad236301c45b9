"""Getting a certificate signed by the cluster: a CertificateSigningRequest, then waiting for the answer.

Whether somebody approves by hand or a controller does it at once makes no difference. Denied and failed requests are
errors with the reason given. Does not cover: when to ask (rotation.py, bootstrap.py).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
from contextlib import aclosing

from pykubelet.api.types import CertificateSigningRequest, CertificateSigningRequestSpec, ObjectMeta
from pykubelet.certs.pem import CertificateError, Wanted, make_request, public_key_of
from pykubelet.clients.kube.port import ChangeType, KubeClient, UnreadableChange
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.model.errors import AlreadyExists, ApiError, ApiServerError, Forbidden, NotFound

logger = logging.getLogger(__name__)

CLIENT_SIGNER = "kubernetes.io/kube-apiserver-client-kubelet"
SERVING_SIGNER = "kubernetes.io/kubelet-serving"
_USAGES = {
    CLIENT_SIGNER: ["digital signature", "client auth"],
    SERVING_SIGNER: ["digital signature", "server auth"],
}


async def obtain(
    kube: KubeClient,
    *,
    key: bytes,
    wanted: Wanted,
    signer: str,
    clock: Clock,
    within: float,
    name: str = "",
) -> bytes:
    """The signed certificate for the key. With a `name`, an earlier request of that name is continued."""
    spec = CertificateSigningRequestSpec(
        request=base64.b64encode(make_request(key, wanted)).decode(), signer_name=signer, usages=_USAGES[signer]
    )
    metadata = ObjectMeta(name=name) if name else ObjectMeta(generate_name="csr-")
    try:
        made = await kube.create(CertificateSigningRequest(metadata=metadata, spec=spec))
    except AlreadyExists:
        made = await kube.get(CertificateSigningRequest, name)
        if made.spec.signer_name != signer:
            raise CertificateError(f"certificate signing request {name} exists for another signer") from None
    request_name = made.metadata.name or ""
    logger.info("waiting for a certificate", extra={"csr": request_name, "signer": signer})
    try:
        async with asyncio.timeout(within):
            return await _issued(kube, request_name, made.metadata.uid or "", clock)
    except TimeoutError:
        raise CertificateError(f"certificate signing request {request_name} was not answered in {within:g} s") from None


def request_name(key: bytes, wanted: Wanted, signer: str) -> str:
    """A name that is the same for the same key, so that a restarted agent finds the request it made."""
    digest = hashlib.sha512()
    for part in (public_key_of(key), wanted.common_name.encode(), signer.encode()):
        digest.update(len(part).to_bytes(4, "big") + part)
    return "node-csr-" + base64.urlsafe_b64encode(digest.digest()[:32]).rstrip(b"=").decode()


async def _issued(kube: KubeClient, name: str, uid: str, clock: Clock) -> bytes:
    backoff = Backoff(initial=0.5, maximum=10.0)
    while True:
        try:
            now = await kube.get(CertificateSigningRequest, name)
            if certificate := _answer(now, uid):
                return certificate
            changes = kube.watch(
                CertificateSigningRequest,
                field_selector=f"metadata.name={name}",
                resource_version=now.metadata.resource_version or "",
            )
            async with aclosing(changes):
                async for change in changes:
                    if isinstance(change, UnreadableChange):
                        raise ApiServerError(f"{change.object.shown} cannot be read: {change.object.why}")
                    backoff.reset()
                    if change.type is ChangeType.DELETED:
                        raise CertificateError(f"certificate signing request {name} was deleted")
                    if change.type is not ChangeType.BOOKMARK and (certificate := _answer(change.object, uid)):
                        return certificate
        except NotFound:
            raise CertificateError(f"certificate signing request {name} was deleted") from None
        except Forbidden as error:
            raise CertificateError(f"certificate signing request {name} may not be read: {error}") from error
        except ApiError as error:
            logger.info("asking again for the certificate", extra={"csr": name, "error": str(error)})
        await clock.sleep(jittered(backoff.next()))


def _answer(request: CertificateSigningRequest, uid: str) -> bytes | None:
    if request.metadata.uid != uid:
        raise CertificateError(f"certificate signing request {request.metadata.name} was replaced by another one")
    for condition in request.status.conditions:
        if condition.type in ("Denied", "Failed"):
            what = "is denied" if condition.type == "Denied" else "failed"
            raise CertificateError(
                f"certificate signing request {what}, reason: {condition.reason}, message: {condition.message}"
            )
    approved = any(condition.type == "Approved" for condition in request.status.conditions)
    if not approved or not request.status.certificate:
        return None
    return base64.b64decode(request.status.certificate)
