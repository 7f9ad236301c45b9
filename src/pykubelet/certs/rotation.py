"""Certificates signed by the cluster: on disk, requested, and renewed in time.

On disk they are where every kubelet has them: `<prefix>-<stamp>.pem` with certificate and key, written once, and the
link `<prefix>-current.pem`, replaced in one step, so that a reader or a crash never sees half a pair. Older files stay
for a while, in case a process has them open by name. A certificate is requested by a CertificateSigningRequest,
approved by hand or by a controller; denied and failed requests are errors with the reason given. A new one is requested
at 70 to 90 % of the old one's life, or when it does not fit. A failed attempt is repeated with growing delays; the old
certificate stays in force. When a client certificate is lost for good while the API server answers, `on_lost` is
called, because only a restart with bootstrap credentials can help.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import math
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

from pykubelet.api.types import CertificateSigningRequest, CertificateSigningRequestSpec, ObjectMeta
from pykubelet.certs.pem import (
    CertificateError,
    Pair,
    Wanted,
    make_key,
    make_request,
    public_key_of,
    read_pair,
    split_pem,
)
from pykubelet.clients.kube.port import ChangeType, KubeClient, UnreadableChange
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock, utc
from pykubelet.kit.files import sync_folder, write_atomic
from pykubelet.kit.metrics import Histogram, Registry
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import AlreadyExists, ApiError, ApiServerError, Forbidden, NotFound, Unauthorized

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


ISSUED_WITHIN = 900.0
FIRST_DELAY, LONGEST_DELAY = 2.0, 32.0
LONGEST_WAIT = 3600.0
"""Seconds between looks at the clock, should the machine's time jump."""
WITHOUT_CERTIFICATE = 300.0
HOUR, DAY = 3600.0, 86400.0
METRICS = {
    "client": (
        "kubelet_certificate_manager_client_expiration_renew_errors",
        "kubelet_certificate_manager_client_ttl_seconds",
    ),
    "server": ("kubelet_server_expiration_renew_errors", "kubelet_certificate_manager_server_ttl_seconds"),
}
"""Upstream's names, which alert rules look for, are not alike."""
LIVES = (60.0, HOUR, 4 * HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 180 * DAY, 360 * DAY, 1440 * DAY)
"""Buckets of how long certificates live."""


class CertificateRotation:
    def __init__(
        self,
        *,
        kube: KubeClient,
        files: CertificateFiles,
        clock: Clock,
        metrics: Registry,
        signer: str,
        wanted: Callable[[], Wanted | None],
        on_new: Callable[[Pair], Awaitable[None]],
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        """`wanted` is None while nothing can be requested, e.g. addresses are not known; `poke()` when it changes.
        `on_lost` is called with the reason when a certificate is gone for good."""
        role = "client" if signer == CLIENT_SIGNER else "server"
        self.name = f"{role}-certificate"
        self._kube, self._files, self._clock = kube, files, clock
        self._signer = signer
        self._wanted = wanted
        self._on_new = on_new
        self._on_lost = on_lost
        self.source = random.Random()
        """Of deadlines and delays."""
        self._changed = Wakeup()
        self._pair: Pair | None = None
        self._deadline = 0.0
        self._last_good = 0.0
        self._refused = False
        """Whether the API server did not know us the last time, which it says to an expired certificate everywhere."""
        errors_name, ttl_name = METRICS[role]
        self._renew_errors = metrics.counter(errors_name, "Failed attempts to renew the certificate.")
        ttl = metrics.gauge(ttl_name, "Seconds until the certificate ends, +Inf without one.")
        metrics.on_scrape(lambda: ttl.set(math.inf if self._pair is None else math.trunc(self._left())))
        self._lives: Histogram | None = None
        if role == "server":  # upstream does not measure the other
            self._lives = metrics.histogram(
                "kubelet_certificate_manager_server_rotation_seconds", "How long certificates lived.", (), LIVES
            )

    @property
    def pair(self) -> Pair | None:
        """The certificate in force, expired or not."""
        return self._pair

    def poke(self) -> None:
        """Check again: `wanted` may have changed."""
        self._changed.set()

    def snapshot(self) -> dict[str, float]:
        return {"left": self._left(), "deadline": self._deadline}

    async def run(self) -> None:
        self._last_good = self._clock.now()
        self._adopt(self._files.load())
        if self._pair is not None:
            await self._on_new(self._pair)
        backoff = Backoff(initial=FIRST_DELAY, maximum=LONGEST_DELAY)
        while True:
            wanted = self._wanted()
            wait = LONGEST_WAIT if wanted is None else self._due_in(wanted)
            if wait > 0 or wanted is None:
                await self._changed.wait(at_most=min(wait, LONGEST_WAIT))
                continue
            if await self._rotate(wanted):
                backoff.reset()
            else:
                await self._check_lost()
                await self._changed.wait(at_most=jittered(backoff.next(), 0.1, self.source))

    def _due_in(self, wanted: Wanted) -> float:
        """Seconds until a new certificate must be requested."""
        if self._pair is None or not self._pair.facts.is_for(wanted):
            return 0.0
        return self._deadline - self._clock.now()

    async def _rotate(self, wanted: Wanted) -> bool:
        key = make_key()
        try:
            certificate = await obtain(
                self._kube, key=key, wanted=wanted, signer=self._signer, clock=self._clock, within=ISSUED_WITHIN
            )
            pair = self._files.save(certificate, key)
        except (ApiError, CertificateError, OSError) as error:
            self._refused = isinstance(error, Unauthorized)
            self._renew_errors.inc()
            logger.warning(
                "no new certificate yet, trying again",
                extra={"certificate": self.name, "error": str(error), "left": round(self._left())},
            )
            return False
        if self._lives is not None and self._pair is not None:
            self._lives.observe(self._clock.now() - self._pair.facts.not_before)
        self._adopt(pair)
        logger.info("new certificate", extra={"certificate": self.name, "life": round(self._left())})
        await self._on_new(pair)
        return True

    def _adopt(self, pair: Pair | None) -> None:
        self._pair = pair
        if pair is not None:
            self._deadline = rotation_deadline(pair, self.source.random())

    def _left(self) -> float:
        return self._pair.facts.not_after - self._clock.now() if self._pair is not None else 0.0

    async def _check_lost(self) -> None:
        if self._left() > 0:
            self._last_good = self._clock.now()
            return
        if self._on_lost is None:
            return
        expired = self._pair is not None
        if not expired and self._clock.now() - self._last_good < WITHOUT_CERTIFICATE:
            return
        if self._refused or await self._kube.is_healthy():
            self._on_lost(
                "the client certificate has expired and the API server gives no new one"
                if expired
                else "no client certificate was obtained although the API server answers"
            )


def rotation_deadline(pair: Pair, chance: float) -> float:
    """When to ask for the next certificate (unix seconds): after 70 to 90 % of its life, `chance` (0 to 1) says."""
    life = pair.facts.not_after - pair.facts.not_before
    return pair.facts.not_before + life * (0.7 + 0.2 * chance)
