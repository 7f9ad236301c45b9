"""Ensure that a container's image is on the node.

Covers: policy, back-off, credentials in order, parallel pulls with a cap, the registry rate, sharing of a pull by pods
that want the same with the same credentials, events, metrics, and the reasons a container waits with.
The CRI reports no progress of a pull, so a long one is logged by its age, and one that hangs keeps its slot: only the
runtime can end it (image_pull_progress_timeout of containerd). An image at hand costs one ImageStatus call; the result
is not cached, because images can be removed.
Does not cover: where credentials come from, garbage collection, and the `Error: <reason>` event that the
starter of the container emits for any failure.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final, Self

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.times import format_duration_ns
from pykubelet.api.types import Pod
from pykubelet.clients.cri.port import CriClient
from pykubelet.context import Context
from pykubelet.images.credentials import RegistryCredentials
from pykubelet.images.keyring import Login
from pykubelet.images.records import Lookup, PullRecords
from pykubelet.images.reference import DEFAULT_TAG, InvalidReference, Reference, parse, with_default_tag
from pykubelet.kit import tracing
from pykubelet.kit.backoff import Backoff, BackoffTable
from pykubelet.kit.limits import TokenBucket
from pykubelet.kit.metrics import Registry
from pykubelet.kit.sharing import SingleFlight
from pykubelet.kit.tasks import finish
from pykubelet.model import reasons
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.model.pod import pod_attributes, readable, uid_of
from pykubelet.model.problems import ProblemError, PullFailed
from pykubelet.model.runtime_status import Image
from pykubelet.recorder import Step
from pykubelet.wire import cri_pb2

logger = logging.getLogger(__name__)

ALWAYS = "Always"
IF_NOT_PRESENT = "IfNotPresent"
NEVER = "Never"


class Choice(enum.Enum):
    USE = "use the image at hand"
    PULL = "pull it"
    WAIT = "a pull is due, but the last one failed too lately"
    REFUSE = "a pull is due, but the policy forbids it"


def effective_policy(policy: str | None, reference: Reference) -> str:
    """The policy as given; without one, Always for `latest` and IfNotPresent for everything else."""
    if policy:
        return policy
    moving = not reference.digest and reference.tag in ("", DEFAULT_TAG)
    return ALWAYS if moving else IF_NOT_PRESENT


def looks_first(policy: str) -> bool:
    """Whether the policy needs the image's status first; Always pulls in any case."""
    return policy != ALWAYS


def choose(policy: str, *, usable: bool, waiting: bool) -> Choice:
    """`usable`: the image is on the node and this pod may use it. `waiting`: its back-off is running."""
    if policy != ALWAYS and usable:
        return Choice.USE
    if policy == NEVER:
        return Choice.REFUSE
    return Choice.WAIT if waiting else Choice.PULL


FIRST: Final = 10.0
LONGEST: Final = 60.0


class PullProgress:
    """Logs a pull that takes long, while the block lasts: after ten seconds, then less often, at least every minute.

    `stage` is what is being waited for.
    """

    def __init__(self, image: str, pod: str) -> None:
        self.stage = "image waits for other pulls to end"
        self._image = image
        self._pod = pod
        self._waited = 0.0
        self._pauses = Backoff(FIRST, LONGEST)
        self._pause = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._arm()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        self._pause = self._pauses.next()
        self._timer = asyncio.get_running_loop().call_later(self._pause, self._log)

    def _log(self) -> None:
        self._waited += self._pause
        logger.info(self.stage, extra={"image": self._image, "pod": self._pod, "seconds": round(self._waited)})
        self._arm()


MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
DURATION_BUCKETS: Final = (1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600)
SIZE_LABELS: Final = (
    (100 * GIB, "GT100GB"),
    (60 * GIB, "60GB-100GB"),
    (40 * GIB, "40GB-60GB"),
    (30 * GIB, "30GB-40GB"),
    (20 * GIB, "20GB-30GB"),
    (10 * GIB, "10GB-20GB"),
    (5 * GIB, "5GB-10GB"),
    (1 * GIB, "1GB-5GB"),
    (500 * MIB, "500MB-1GB"),
    (100 * MIB, "100MB-500MB"),
    (10 * MIB, "10MB-100MB"),
    (0, "0-10MB"),
)


def size_label(size_bytes: int) -> str:
    return next((label for above, label in SIZE_LABELS if size_bytes > above), "N/A")


class PullMetrics:
    def __init__(self, registry: Registry) -> None:
        self._seconds = registry.histogram(
            "kubelet_image_pull_duration_seconds",
            "Seconds a pull took, waiting for others included.",
            ("image_size_in_bytes",),
            DURATION_BUCKETS,
        )
        self._requests = registry.counter(
            "kubelet_image_manager_ensure_image_requests_total",
            "How often an image was asked for, by what came of it.",
            ("pull_policy", "present_locally", "pull_required"),
        )

    def requested(self, policy: str, *, present: bool | None, pull: bool | None) -> None:
        """None: the policy does not look, or it did not get so far."""
        self._requests.inc(policy.lower(), _word(present), _word(pull))

    def pulled(self, seconds: float, size_bytes: int) -> None:
        self._seconds.observe(seconds, size_label(size_bytes))


def _word(value: bool | None) -> str:
    return "unknown" if value is None else str(value).lower()


QPS_EXCEEDED: Final = "pull QPS exceeded"
MILLISECOND_NS: Final = 1_000_000
SHOWN_FOR: Final = 1.0
"""Seconds for which the status shows a failed pull; then the pod is synced again, and the end of its back-off sets the
time."""
RECORDING_TIME: Final = 10.0
"""Seconds that recording the outcome of a pull may take, even when its pod is being deleted."""


class ImageError(ProblemError):
    """The image is not available; the problem is what the container waits with."""

    def __init__(
        self, image: str, reason: str, message: str, *, retry_at: float | None = None, shown_for: float = 0.0
    ) -> None:
        problem = PullFailed(image=image, reason=reason, text=message, retry_at=retry_at, shown_for=shown_for)
        super().__init__(problem)
        self.problem: PullFailed = problem


class PullSettings(Struct, frozen=True, kw_only=True):
    serialize: bool = False
    """serializeImagePulls: one pull at a time."""
    max_parallel: int | None = None
    """maxParallelImagePulls: pulls at the same time; None = no limit."""
    qps: float = 5.0
    """registryPullQPS: pulls begun a second; 0 = no limit."""
    burst: int = 10
    """registryBurst."""
    backoff_initial: float = 10.0
    backoff_maximum: float = 300.0
    checks_access: bool = True
    """Gate KubeletEnsureSecretPulledImages; here it only changes the event about images that are present."""

    def slots(self) -> AbstractAsyncContextManager[None]:
        """Held by each pull while it runs; first come, first served."""
        limit = 1 if self.serialize else self.max_parallel
        return nullcontext() if limit is None else asyncio.Semaphore(limit)


class _Request(Struct, frozen=True, kw_only=True):
    """One container's request for an image."""

    pod: Pod
    uid: str
    image: str
    """As the pod writes it."""
    tagged: str
    """With the default tag."""
    field_path: str
    sandbox_config: cri_pb2.PodSandboxConfig | None
    runtime_handler: str

    @property
    def key(self) -> str:
        return f"{self.uid}_{self.tagged}"


class _Pulled(Struct, frozen=True, kw_only=True):
    image_ref: str
    size_bytes: int
    pulling_seconds: float


class _Logins:
    """The credentials of one request, looked up at most once and no sooner than needed."""

    def __init__(self, credentials: RegistryCredentials, request: _Request) -> None:
        self._credentials = credentials
        self._request = request
        self._found: Sequence[Login] | None = None

    async def __call__(self) -> Sequence[Login]:
        if self._found is None:
            self._found = await self._credentials.lookup(self._request.pod, self._request.tagged)
        return self._found


class ImagePuller:
    def __init__(
        self,
        ctx: Context,
        cri: CriClient,
        *,
        settings: PullSettings,
        credentials: RegistryCredentials,
        records: PullRecords | None = None,
    ) -> None:
        """`records` None: every pod may use every image on the node."""
        self._cri = cri
        self._clock = ctx.clock
        self._events = ctx.events
        self._recorder = ctx.recorder
        self._credentials = credentials
        self._records = records
        self._checks_access = settings.checks_access
        self._slots = settings.slots()
        self._rate = TokenBucket(rate=settings.qps, burst=settings.burst)
        self._backoff = BackoffTable(
            settings.backoff_initial, settings.backoff_maximum, reset_after=2 * settings.backoff_maximum
        )
        self._last_error: dict[str, str] = {}
        self._pulls: SingleFlight[_Pulled] = SingleFlight()
        self._metrics = PullMetrics(ctx.metrics)

    async def ensure_image(
        self,
        pod: Pod,
        image: str,
        policy: str | None,
        *,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
        field_path: str = "",
        runtime_handler: str = "",
    ) -> str:
        """The reference to create a container with, pulling if need be.

        Raises ImageError; RuntimeDown passes as it is, for then no image is to blame.
        """
        with tracing.span("Images/EnsureImageExists") as span:
            if span.recorded:
                span.set({"container.image.name": image, **pod_attributes(pod)})
            return await self._ensure(pod, image, policy, sandbox_config, field_path, runtime_handler)

    async def _ensure(
        self,
        pod: Pod,
        image: str,
        policy: str | None,
        sandbox_config: cri_pb2.PodSandboxConfig | None,
        field_path: str,
        runtime_handler: str,
    ) -> str:
        request = self._request(
            _Request(
                pod=pod,
                uid=uid_of(pod),
                image=image,
                tagged=image,
                field_path=field_path,
                sandbox_config=sandbox_config,
                runtime_handler=runtime_handler,
            )
        )
        policy = effective_policy(policy, parse(image))
        present = await self._inspect(request) if looks_first(policy) else None
        found = present is not None if looks_first(policy) else None
        logins = _Logins(self._credentials, request)
        usable = present is not None and await self._may_use(request, present, logins)
        self._metrics.requested(policy, present=found, pull=not usable)
        waiting = self._backoff.is_waiting(request.key, self._clock.monotonic())
        match choose(policy, usable=usable, waiting=waiting):
            case Choice.USE:
                assert present is not None
                self._emit(request, reasons.NORMAL, "Pulled", _present_text(image, checked=self._checks_access))
                return present.id
            case Choice.REFUSE:
                # The same text whether the image is absent or not this pod's to use: the pod must not learn which.
                text = f'Container image "{image}" is not present with pull policy of Never'
                self._emit(request, reasons.WARNING, reasons.ERR_IMAGE_NEVER_PULL, text)
                raise ImageError(image, reasons.ERR_IMAGE_NEVER_PULL, text)
            case Choice.WAIT:
                raise self._back_off(request)
            case Choice.PULL:
                return await self._pull(request, logins)

    def keep_only(self, uids: Iterable[str]) -> None:
        """Drop the back-offs of pods that are gone."""
        wanted = set(uids)
        for key in [key for key in self._last_error if key.partition("_")[0] not in wanted]:
            del self._last_error[key]
            self._backoff.forget(key)

    def retry_after(self, pod: Pod, image: str) -> float:
        """Seconds until a pull of that image for that pod will be tried again; 0 = now."""
        try:
            key = f"{uid_of(pod)}_{with_default_tag(image)}"
        except InvalidReference:
            return 0.0
        return self._backoff.remaining(key, self._clock.monotonic())

    def _request(self, request: _Request) -> _Request:
        try:
            return replace(request, tagged=with_default_tag(request.image))
        except InvalidReference as problem:
            name = request.image
            text = f'Failed to apply default image tag "{name}": couldn\'t parse image name "{name}": {problem}'
            self._emit(request, reasons.WARNING, "InspectFailed", text)
            raise ImageError(request.image, reasons.INVALID_IMAGE_NAME, text) from problem

    async def _may_use(self, request: _Request, present: Image, logins: Lookup) -> bool:
        if self._records is None:
            return True
        try:
            return await self._records.may_use(request.image, present.id, logins)
        except RuntimeDown:
            raise
        except PykubeletError as error:
            raise ImageError(request.image, reasons.ERR_IMAGE_PULL, str(error)) from error

    async def _inspect(self, request: _Request) -> Image | None:
        try:
            return await self._cri.image_status(request.tagged)
        except RuntimeDown:
            raise
        except CriError as error:
            text = f'Failed to inspect image "": {error}'  # the reference, which is not known, goes there
            self._emit(request, reasons.WARNING, "InspectFailed", text)
            raise ImageError(request.image, reasons.IMAGE_INSPECT_ERROR, text) from error

    def _back_off(self, request: _Request) -> ImageError:
        text = f'Back-off pulling image "{request.image}"'
        self._emit(request, reasons.NORMAL, "BackOff", text)
        last = self._last_error.get(request.key)
        left = self._backoff.remaining(request.key, self._clock.monotonic())
        message, retry_at = f"{text}: {last}" if last else text, self._clock.now() + left
        return ImageError(request.image, reasons.IMAGE_PULL_BACK_OFF, message, retry_at=retry_at)

    async def _pull(self, request: _Request, logins: Lookup) -> str:
        self._emit(request, reasons.NORMAL, "Pulling", f'Pulling image "{request.image}"')
        begun = self._clock.monotonic()
        try:
            with self._recorder.step(request.uid, Step.PULL, request.image):
                pulled = await self._pull_on_record(request, logins)
        except RuntimeDown:
            raise
        except PykubeletError as error:
            self._emit(request, reasons.WARNING, "Failed", f'Failed to pull image "{request.image}": {error}')
            raise self._failed(request, error) from error
        took = _duration(pulled.pulling_seconds)
        waited = _duration(self._clock.monotonic() - begun)
        self._metrics.pulled(self._clock.monotonic() - begun, pulled.size_bytes)
        self._emit(
            request,
            reasons.NORMAL,
            "Pulled",
            f'Successfully pulled image "{request.image}" in {took} ({waited} including waiting). '
            f"Image size: {pulled.size_bytes} bytes.",
        )
        self._backoff.collect(self._clock.monotonic())
        return pulled.image_ref

    def _failed(self, request: _Request, error: PykubeletError) -> ImageError:
        self._backoff.advance(request.key, self._clock.monotonic())
        reason, message = explain_pull_error(request.image, str(error))
        self._last_error[request.key] = f"{reason}: {message}"
        due = self._clock.now() + SHOWN_FOR
        return ImageError(request.image, reason, message, retry_at=due, shown_for=SHOWN_FOR)

    async def _pull_on_record(self, request: _Request, logins: Lookup) -> _Pulled:
        """Pull with the intent recorded before and the outcome after, on a cancel too."""
        found = await logins()
        if self._records is None:
            return (await self._pull_with_any(request, found))[0]
        await self._records.intend(request.image)
        try:
            pulled, login = await self._pull_with_any(request, found)
        except BaseException:
            await finish(self._records.failed(request.image), within=RECORDING_TIME)
            raise
        await finish(self._records.pulled(request.image, pulled.image_ref, login), within=RECORDING_TIME)
        return pulled

    async def _pull_with_any(self, request: _Request, logins: Sequence[Login]) -> tuple[_Pulled, Login | None]:
        """Try the credentials in order; when none works, the error names every failure."""
        failures: dict[str, CriError] = {}
        candidates: Sequence[Login | None] = logins or [None]
        for login in candidates:
            try:
                return await self._pull_shared(request, login.auth if login is not None else None), login
            except RuntimeDown:
                raise
            except CriError as error:
                failures[str(error)] = error
        if len(failures) == 1:
            raise next(iter(failures.values()))
        raise CriError(f"[{', '.join(failures)}]")

    async def _pull_shared(self, request: _Request, auth: cri_pb2.AuthConfig | None) -> _Pulled:
        """Join a pull of the same with the same credentials, or lead one; the runtime keeps what was loaded."""
        secret = b"" if auth is None else auth.SerializeToString(deterministic=True)
        key = request.tagged, request.runtime_handler, secret
        return await self._pulls.run(key, lambda: self._pull_now(request, auth))

    async def _pull_now(self, request: _Request, auth: cri_pb2.AuthConfig | None) -> _Pulled:
        with PullProgress(request.tagged, readable(request.pod)) as progress:
            async with self._slots:
                if not self._rate.try_take(self._clock.monotonic()):
                    raise CriError(QPS_EXCEEDED)
                progress.stage = "image is still being pulled"
                begun = self._clock.monotonic()
                spec = cri_pb2.ImageSpec(
                    image=request.tagged,
                    annotations=request.pod.metadata.annotations,
                    runtime_handler=request.runtime_handler,
                )
                image_ref = await self._cri.pull_image(spec, auth, request.sandbox_config)
                took = self._clock.monotonic() - begun
        return _Pulled(image_ref=image_ref, size_bytes=await self._size(image_ref), pulling_seconds=took)

    async def _size(self, image_ref: str) -> int:
        """For the event only, so a failure is no reason to fail the pull."""
        try:
            image = await self._cri.image_status(image_ref)
        except CriError:
            return 0
        return image.size_bytes if image is not None else 0

    def _emit(self, request: _Request, kind: str, reason: str, text: str) -> None:
        self._events.pod_event(request.pod, kind, reason, text, field_path=request.field_path)
        if reason not in ("Pulling", "Failed"):  # those are the recorded step itself
            self._recorder.note(request.uid, Step.PULL, request.image, reason=reason, message=text)


def explain_pull_error(image: str, text: str) -> tuple[str, str]:
    """The waiting reason and message for a failed pull, by the prefixes that the CRI reserves."""
    for prefix, because in (
        (reasons.REGISTRY_UNAVAILABLE, "the registry is unavailable"),
        (reasons.SIGNATURE_VALIDATION_FAILED, "the signature validation failed"),
    ):
        if text.startswith(prefix):
            return prefix, f"image pull failed for {image} because {because}{text.removeprefix(prefix)}"
    return reasons.ERR_IMAGE_PULL, text


def _present_text(image: str, *, checked: bool) -> str:
    text = f'Container image "{image}" already present on machine'
    return f"{text} and can be accessed by the pod" if checked else text


def _duration(seconds: float) -> str:
    """A Go duration, cut to whole milliseconds."""
    return format_duration_ns(int(seconds * 1000) * MILLISECOND_NS)
