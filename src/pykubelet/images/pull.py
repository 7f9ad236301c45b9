"""Making sure that a container's image is on the node.

Covers: policy, back-off, credentials in order, parallel pulls with a cap, the registry rate, sharing of a
pull by pods that want the same with the same credentials, events, and the reasons a container waits with.
The CRI tells no progress of a pull, so a long one is told in the log every few seconds by its age.
An image at hand costs one ImageStatus call; answers are not remembered, for images can be removed.
Does not cover: where credentials come from, garbage collection, and the `Error: <reason>` event that the
starter of the container tells for any failure.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.api.times import format_duration_ns
from pykubelet.api.types import Pod
from pykubelet.images.login import Login
from pykubelet.images.metrics import PullMetrics
from pykubelet.images.policy import Choice, choose, effective_policy, looks_first
from pykubelet.images.progress import PullProgress
from pykubelet.images.reference import InvalidReference, parse, with_default_tag
from pykubelet.images.slots import PullSlots
from pykubelet.kit.backoff import BackoffTable
from pykubelet.kit.clock import Clock
from pykubelet.kit.limits import TokenBucket
from pykubelet.kit.metrics import Registry
from pykubelet.kit.sharing import SingleFlight
from pykubelet.kit.tasks import finish
from pykubelet.model import reasons
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.model.events import EventSink
from pykubelet.model.life import LifeRecorder, Step
from pykubelet.model.pod import readable, uid_of
from pykubelet.model.runtime_status import Image
from pykubelet.wire import cri_pb2

QPS_EXCEEDED: Final = "pull QPS exceeded"
MILLISECOND_NS: Final = 1_000_000
SHOWN_FOR: Final = 1.0
"""Seconds until a failed pull is looked at again: then the pod waits in back-off, and its end sets the time."""
RECORDING_TIME: Final = 10.0
"""Seconds that writing down how a pull ended may take, even when its pod is going away."""

Lookup = Callable[[], Awaitable[Sequence[Login]]]


class ImageError(PykubeletError):
    """The image cannot be had; `reason` and the text are what the container waits with."""

    def __init__(self, reason: str, message: str, *, retry_in: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.retry_in = retry_in
        """Seconds until trying again makes sense; None = the ordinary retry."""


class ImageService(Protocol):
    """The calls of the runtime that are about images."""

    async def image_status(self, image: str, /) -> Image | None: ...

    async def pull_image(
        self,
        spec: cri_pb2.ImageSpec,
        auth: cri_pb2.AuthConfig | None = None,
        sandbox_config: cri_pb2.PodSandboxConfig | None = None,
        /,
    ) -> str: ...


class Credentials(Protocol):
    """Finds what a pod may log in to a registry with."""

    async def lookup(self, pod: Pod, image: str) -> Sequence[Login]:
        """Credentials for the image, the ones to try first first; empty for none. Raises PykubeletError."""
        ...


class ImageAccess(Protocol):
    """Decides whether a pod may use an image that somebody else's credentials brought here.

    `image` is always what the pod writes.
    """

    async def may_use(self, image: str, image_ref: str, logins: Lookup) -> bool:
        """`logins` gives those of the pod, to be asked only when they matter. Raises PykubeletError."""
        ...

    async def intend(self, image: str) -> None:
        """A pull is about to begin; `pulled` or `failed` follows. Raises PykubeletError."""
        ...

    async def pulled(self, image: str, image_ref: str, login: Login | None) -> None:
        """The pull succeeded, with the login that worked."""
        ...

    async def failed(self, image: str) -> None: ...


class Anonymous:
    """No credentials at all."""

    async def lookup(self, pod: Pod, image: str) -> Sequence[Login]:
        return ()


class OpenAccess:
    """Every pod may use every image on the node."""

    async def may_use(self, image: str, image_ref: str, logins: Lookup) -> bool:
        return True

    async def intend(self, image: str) -> None:
        return None

    async def pulled(self, image: str, image_ref: str, login: Login | None) -> None:
        return None

    async def failed(self, image: str) -> None:
        return None


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
    """Gate KubeletEnsureSecretPulledImages; here it only changes what is told about images that are present."""

    @property
    def slots(self) -> PullSlots:
        return PullSlots(1 if self.serialize else self.max_parallel)


class _Wish(Struct, frozen=True, kw_only=True):
    """One container's wish for an image."""

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


class _Asked:
    """The credentials of one wish, looked up at most once and no sooner than needed."""

    def __init__(self, credentials: Credentials, wish: _Wish) -> None:
        self._credentials = credentials
        self._wish = wish
        self._found: Sequence[Login] | None = None

    async def __call__(self) -> Sequence[Login]:
        if self._found is None:
            self._found = await self._credentials.lookup(self._wish.pod, self._wish.tagged)
        return self._found


class ImagePuller:
    def __init__(
        self,
        *,
        cri: ImageService,
        clock: Clock,
        events: EventSink,
        life: LifeRecorder,
        settings: PullSettings,
        credentials: Credentials | None = None,
        access: ImageAccess | None = None,
        metrics: Registry | None = None,
    ) -> None:
        self._cri = cri
        self._clock = clock
        self._events = events
        self._life = life
        self._credentials: Credentials = credentials or Anonymous()
        self._access: ImageAccess = access or OpenAccess()
        self._checks_access = settings.checks_access
        self._slots = settings.slots
        self._rate = TokenBucket(rate=settings.qps, burst=settings.burst)
        self._backoff = BackoffTable(
            settings.backoff_initial, settings.backoff_maximum, reset_after=2 * settings.backoff_maximum
        )
        self._last_error: dict[str, str] = {}
        self._pulls: SingleFlight[_Pulled] = SingleFlight()
        self._metrics = PullMetrics(metrics or Registry())

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
        wish = self._wish(
            _Wish(
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
        present = await self._look(wish) if looks_first(policy) else None
        found = present is not None if looks_first(policy) else None
        logins = _Asked(self._credentials, wish)
        usable = present is not None and await self._may_use(wish, present, logins)
        self._metrics.asked(policy, present=found, pull=not usable)
        waiting = self._backoff.is_waiting(wish.key, self._clock.monotonic())
        match choose(policy, usable=usable, waiting=waiting):
            case Choice.USE:
                assert present is not None
                self._tell(wish, reasons.NORMAL, "Pulled", _present_text(image, checked=self._checks_access))
                return present.id
            case Choice.REFUSE:
                # The same words whether it is absent or not this pod's to use: who asks shall not learn which.
                text = f'Container image "{image}" is not present with pull policy of Never'
                self._tell(wish, reasons.WARNING, reasons.ERR_IMAGE_NEVER_PULL, text)
                raise ImageError(reasons.ERR_IMAGE_NEVER_PULL, text)
            case Choice.WAIT:
                raise self._held_back(wish)
            case Choice.PULL:
                return await self._pull(wish, logins)

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

    def _wish(self, wish: _Wish) -> _Wish:
        try:
            return replace(wish, tagged=with_default_tag(wish.image))
        except InvalidReference as problem:
            name = wish.image
            text = f'Failed to apply default image tag "{name}": couldn\'t parse image name "{name}": {problem}'
            self._tell(wish, reasons.WARNING, "InspectFailed", text)
            raise ImageError(reasons.INVALID_IMAGE_NAME, text) from problem

    async def _may_use(self, wish: _Wish, present: Image, logins: Lookup) -> bool:
        try:
            return await self._access.may_use(wish.image, present.id, logins)
        except RuntimeDown:
            raise
        except PykubeletError as error:
            raise ImageError(reasons.ERR_IMAGE_PULL, str(error)) from error

    async def _look(self, wish: _Wish) -> Image | None:
        try:
            return await self._cri.image_status(wish.tagged)
        except RuntimeDown:
            raise
        except CriError as error:
            text = f'Failed to inspect image "": {error}'  # the reference, which is not known, goes there
            self._tell(wish, reasons.WARNING, "InspectFailed", text)
            raise ImageError(reasons.IMAGE_INSPECT_ERROR, text) from error

    def _held_back(self, wish: _Wish) -> ImageError:
        text = f'Back-off pulling image "{wish.image}"'
        self._tell(wish, reasons.NORMAL, "BackOff", text)
        last = self._last_error.get(wish.key)
        left = self._backoff.remaining(wish.key, self._clock.monotonic())
        return ImageError(reasons.IMAGE_PULL_BACK_OFF, f"{text}: {last}" if last else text, retry_in=left)

    async def _pull(self, wish: _Wish, logins: Lookup) -> str:
        self._tell(wish, reasons.NORMAL, "Pulling", f'Pulling image "{wish.image}"')
        begun = self._clock.monotonic()
        try:
            with self._life.step(wish.uid, Step.PULL, wish.image):
                pulled = await self._pull_on_record(wish, logins)
        except RuntimeDown:
            raise
        except PykubeletError as error:
            self._tell(wish, reasons.WARNING, "Failed", f'Failed to pull image "{wish.image}": {error}')
            raise self._failed(wish, error) from error
        took = _duration(pulled.pulling_seconds)
        waited = _duration(self._clock.monotonic() - begun)
        self._metrics.pulled(self._clock.monotonic() - begun, pulled.size_bytes)
        self._tell(
            wish,
            reasons.NORMAL,
            "Pulled",
            f'Successfully pulled image "{wish.image}" in {took} ({waited} including waiting). '
            f"Image size: {pulled.size_bytes} bytes.",
        )
        self._backoff.collect(self._clock.monotonic())
        return pulled.image_ref

    def _failed(self, wish: _Wish, error: PykubeletError) -> ImageError:
        self._backoff.advance(wish.key, self._clock.monotonic())
        reason, message = explain_pull_error(wish.image, str(error))
        self._last_error[wish.key] = f"{reason}: {message}"
        return ImageError(reason, message, retry_in=SHOWN_FOR)

    async def _pull_on_record(self, wish: _Wish, logins: Lookup) -> _Pulled:
        """Pull with the intent written before and the outcome after, come what may."""
        found = await logins()
        await self._access.intend(wish.image)
        try:
            pulled, login = await self._pull_with_any(wish, found)
        except BaseException:
            await finish(self._access.failed(wish.image), within=RECORDING_TIME)
            raise
        await finish(self._access.pulled(wish.image, pulled.image_ref, login), within=RECORDING_TIME)
        return pulled

    async def _pull_with_any(self, wish: _Wish, logins: Sequence[Login]) -> tuple[_Pulled, Login | None]:
        """Try the credentials in order; when none works, all that went wrong is told."""
        failures: dict[str, CriError] = {}
        candidates: Sequence[Login | None] = logins or [None]
        for login in candidates:
            try:
                return await self._pull_shared(wish, login.auth if login is not None else None), login
            except RuntimeDown:
                raise
            except CriError as error:
                failures[str(error)] = error
        if len(failures) == 1:
            raise next(iter(failures.values()))
        raise CriError(f"[{', '.join(failures)}]")

    async def _pull_shared(self, wish: _Wish, auth: cri_pb2.AuthConfig | None) -> _Pulled:
        """Join a pull of the same with the same credentials, or lead one; the runtime keeps what was loaded."""
        secret = b"" if auth is None else auth.SerializeToString(deterministic=True)
        return await self._pulls.run((wish.tagged, wish.runtime_handler, secret), lambda: self._pull_now(wish, auth))

    async def _pull_now(self, wish: _Wish, auth: cri_pb2.AuthConfig | None) -> _Pulled:
        with PullProgress(wish.tagged, readable(wish.pod)) as progress:
            async with self._slots.taken():
                if not self._rate.try_take(self._clock.monotonic()):
                    raise CriError(QPS_EXCEEDED)
                progress.stage = "image is still being pulled"
                begun = self._clock.monotonic()
                spec = cri_pb2.ImageSpec(
                    image=wish.tagged, annotations=wish.pod.metadata.annotations, runtime_handler=wish.runtime_handler
                )
                image_ref = await self._cri.pull_image(spec, auth, wish.sandbox_config)
                took = self._clock.monotonic() - begun
        return _Pulled(image_ref=image_ref, size_bytes=await self._size(image_ref), pulling_seconds=took)

    async def _size(self, image_ref: str) -> int:
        """For the event only, so a failure is no reason to fail the pull."""
        try:
            image = await self._cri.image_status(image_ref)
        except CriError:
            return 0
        return image.size_bytes if image is not None else 0

    def _tell(self, wish: _Wish, kind: str, reason: str, text: str) -> None:
        self._events.pod_event(wish.pod, kind, reason, text, field_path=wish.field_path)
        if reason not in ("Pulling", "Failed"):  # those are the recorded step itself
            self._life.note(wish.uid, Step.PULL, wish.image, reason=reason, message=text)


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
