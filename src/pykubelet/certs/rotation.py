"""Keeping a certificate young: a new one is asked for at 70 to 90 % of the old one's life, or when it no longer fits.

One service for the client's certificate and one for the server's. A failed attempt is repeated, later each time; the
old certificate stays in force. When a client certificate is lost for good while the API server answers, the owner is
told, because only a restart with bootstrap credentials can help.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Awaitable, Callable

from msgspec import Struct

from pykubelet.certs.files import CertificateFiles
from pykubelet.certs.pem import CertificateError, Pair, Wanted, make_key
from pykubelet.certs.signing import CLIENT_SIGNER, obtain
from pykubelet.clients.kube.port import KubeClient
from pykubelet.kit.backoff import Backoff, jittered
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Histogram, Registry
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import ApiError

logger = logging.getLogger(__name__)

ISSUED_WITHIN = 900.0
FIRST_DELAY, LONGEST_DELAY = 2.0, 32.0
LONGEST_WAIT = 3600.0
"""Seconds between looks at the clock, should the machine's time jump."""
WITHOUT_CERTIFICATE = 300.0
HOUR, DAY = 3600.0, 86400.0
LIVES = (60.0, HOUR, 4 * HOUR, DAY, 7 * DAY, 30 * DAY, 90 * DAY, 180 * DAY, 360 * DAY, 1440 * DAY)
"""Buckets of how long certificates live."""


class RotationSeams(Struct, frozen=True, kw_only=True):
    """What a rotation touches."""

    kube: KubeClient
    files: CertificateFiles
    clock: Clock
    metrics: Registry


class CertificateRotation:
    def __init__(
        self,
        seams: RotationSeams,
        *,
        signer: str,
        wanted: Callable[[], Wanted | None],
        on_new: Callable[[Pair], Awaitable[None]],
        on_lost: Callable[[str], None] | None = None,
        source: random.Random | None = None,
    ) -> None:
        """`wanted` is None while nothing can be asked for, e.g. addresses are not known; `poke()` when it changes.
        `on_lost` hears why a certificate is gone for good."""
        role = "client" if signer == CLIENT_SIGNER else "server"
        self.name = f"{role}-certificate"
        self._kube, self._files, self._clock = seams.kube, seams.files, seams.clock
        self._signer = signer
        self._wanted = wanted
        self._on_new = on_new
        self._on_lost = on_lost
        self._source = source or random.Random()
        self._changed = Wakeup()
        self._pair: Pair | None = None
        self._deadline = 0.0
        self._last_good = 0.0
        # Upstream's names, which alert rules look for, are not alike.
        prefix = "kubelet_certificate_manager_client" if role == "client" else "kubelet_server"
        self._renew_errors = seams.metrics.counter(
            f"{prefix}_expiration_renew_errors", "Failed attempts to renew the certificate."
        )
        ttl = seams.metrics.gauge(
            f"kubelet_certificate_manager_{role}_ttl_seconds", "Seconds until the certificate ends, +Inf without one."
        )
        seams.metrics.on_scrape(lambda: ttl.set(math.inf if self._pair is None else math.trunc(self._left())))
        self._lives: Histogram | None = None
        if role == "server":  # upstream does not measure the other
            self._lives = seams.metrics.histogram(
                "kubelet_certificate_manager_server_rotation_seconds", "How long certificates lived.", (), LIVES
            )

    @property
    def pair(self) -> Pair | None:
        """The certificate in force, expired or not."""
        return self._pair

    def poke(self) -> None:
        """What is wanted may have changed."""
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
                await self._changed.wait(at_most=jittered(backoff.next(), 0.1, self._source))

    def _due_in(self, wanted: Wanted) -> float:
        """Seconds until a new certificate must be asked for."""
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
            self._deadline = rotation_deadline(pair, self._source.random())

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
        if await self._kube.is_healthy():
            self._on_lost(
                "the client certificate has expired and the API server gives no new one"
                if expired
                else "no client certificate was obtained although the API server answers"
            )


def rotation_deadline(pair: Pair, chance: float) -> float:
    """When to ask for the next certificate (unix seconds): after 70 to 90 % of its life, `chance` (0 to 1) says."""
    life = pair.facts.not_after - pair.facts.not_before
    return pair.facts.not_before + life * (0.7 + 0.2 * chance)
