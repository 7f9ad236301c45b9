"""Which images were pulled here, with whose logins: so that a pod cannot use an image it could not have pulled.

Covers: the rules (verification policies with their allow list, whom a record covers, how it grows) as pure functions,
and keeping the records. Before a pull the intent is written, after it the record, then the intent is removed; a crash
in between leaves the intent, which at the next start becomes a record that covers no pod. A damaged file is logged,
set aside and, if its image is known, replaced by such a record: doubt never opens an image. All is in memory; files
are read at the start only. Does not cover: the files (record_files.py).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections import Counter as Multiset
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.clients.cri.port import CriClient
from pykubelet.images.keyring import AccountOrigin, Login, SecretOrigin
from pykubelet.images.record_files import Access, PulledRecord, RecordFiles, file_name
from pykubelet.images.reference import InvalidReference, full_name, parse
from pykubelet.kit.clock import Clock
from pykubelet.kit.files import CheckpointDamaged
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import finish
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.model.runtime_status import Image

logger = logging.getLogger(__name__)

SECRETS_LEARNT: Final = 100
"""From so many on, a record learns no more secrets by mere matching: namespaces that come and go must not fill it."""


class Policy(enum.Enum):
    """imagePullCredentialsVerificationPolicy."""

    NEVER = "NeverVerify"
    NOT_PRELOADED = "NeverVerifyPreloadedImages"
    NOT_ALLOW_LISTED = "NeverVerifyAllowlistedImages"
    ALWAYS = "AlwaysVerify"


def bare_name(image: str) -> str:
    """The image as written, without tag and digest; raises InvalidReference."""
    found = parse(image)
    if found.digest:
        image = image.removesuffix(f"@{found.digest}")
    return image.removesuffix(f":{found.tag}") if found.tag else image


class Verification(Struct, frozen=True, kw_only=True):
    policy: Policy = Policy.NOT_PRELOADED
    allow_list: tuple[str, ...] = ()

    def is_needed(self, image: str, *, pulled_here: bool) -> bool:
        """`pulled_here`: an agent on this node pulled the image, or has tried to."""
        match self.policy:
            case Policy.NEVER:
                return False
            case Policy.NOT_PRELOADED:
                return pulled_here
            case Policy.NOT_ALLOW_LISTED:
                return not is_allow_listed(image, self.allow_list)
            case Policy.ALWAYS:
                return True


def is_allow_listed(image: str, allow_list: Iterable[str]) -> bool:
    """Patterns are names, or prefixes that end in `/*`."""
    try:
        name = bare_name(image)
    except InvalidReference:
        name = image
    return any(
        name.startswith(pattern.removesuffix("*")) if pattern.endswith("/*") else name == pattern
        for pattern in allow_list
    )


def of_login(login: Login | None) -> Access:
    """What a pull with this login shows."""
    match login.origin if login is not None else None:
        case SecretOrigin() as secret if login is not None:
            return Access(secrets={secret: login.fingerprint})
        case AccountOrigin() as account:
            return Access(accounts=frozenset({account}))
        case _:
            return Access(all_pods=True)


class Covered(Struct, frozen=True, kw_only=True):
    """The pod may use the image; `learnt` is worth adding to the record."""

    learnt: Access | None = None


def covers(access: Access, logins: Sequence[Login]) -> Covered | None:
    """Whether one of the pod's own logins is recorded, by its content or by its secret; None: it is not."""
    has_room = len(access.secrets) < SECRETS_LEARNT
    for login in logins:
        if not isinstance(login.origin, SecretOrigin):
            continue
        known, own = access.secrets.get(login.origin), login.fingerprint
        # Records of other kubelets may hold an empty fingerprint, which matches no content.
        if own and own in access.secrets.values():
            return Covered(learnt=of_login(login) if known != own and has_room else None)
        if known is not None and has_room:
            # The same secret with other content: accepted only while the record has room for it.
            return Covered(learnt=of_login(login))
    account = next((login.origin for login in logins if isinstance(login.origin, AccountOrigin)), None)
    return Covered() if account is not None and account in access.accounts else None


def merged(record: PulledRecord, name: str, news: Access, now: int) -> PulledRecord:
    """The record with `news` about the image `name`; the very same object when it knew that already."""
    known = record.access.get(name)
    if news.is_empty or (known is not None and known.all_pods):
        return record
    if known is None or news.all_pods:
        grown = news
    else:
        grown = Access(secrets={**known.secrets, **news.secrets}, accounts=known.accounts | news.accounts)
    if grown == known:
        return record
    return replace(record, updated=now, access={**record.access, name: grown})


T = TypeVar("T")
Lookup = Callable[[], Awaitable[Sequence[Login]]]
DISK_TIME = 60.0


class RecordProblem(PykubeletError):
    """The disk did not take a record."""


class PullRecords:
    """Decides whether a pod may use an image; `image` is always what the pod writes."""

    def __init__(
        self, *, files: RecordFiles, images: CriClient, verification: Verification, clock: Clock, metrics: Registry
    ) -> None:
        self._files = files
        self._images = images
        self._verification = verification
        self._clock = clock
        self._records: dict[str, PulledRecord] = {}
        self._intents: set[str] = set()
        self._under_way: Multiset[str] = Multiset()
        self._opened = False
        self._lock = asyncio.Lock()  # file and memory change together
        self._checks = metrics.counter(
            "kubelet_imagemanager_image_mustpull_checks_total",
            "Checks whether a pod may use an image that is present, by result.",
            ("result",),
        )
        intents = metrics.gauge("kubelet_imagemanager_ondisk_pullintents", "Pulls begun and not recorded as ended.")
        records = metrics.gauge("kubelet_imagemanager_ondisk_pulledrecords", "Images recorded as pulled here.")
        metrics.on_scrape(lambda: intents.set(len(self._intents)))
        metrics.on_scrape(lambda: records.set(len(self._records)))

    # --- for pulls ------------------------------------------------------------------------------

    async def may_use(self, image: str, image_ref: str, logins: Lookup) -> bool:
        """`logins` gives those of the pod; called only when they matter. Raises what it raises."""
        await self._open()
        record = self._records.get(image_ref)
        pulled_here = record is not None or image in self._intents
        if not self._verification.is_needed(image, pulled_here=pulled_here):
            return self._checked("credentialPolicyAllowed", True)
        access = record.access.get(bare_name(image)) if record is not None else None
        if access is None or access.is_empty:
            return self._checked("mustAuthenticate", False)
        if access.all_pods:
            return self._checked("credentialRecordFound", True)
        try:
            found = covers(access, await logins())
        except PykubeletError:
            self._checks.inc("error")
            raise
        if found is None:
            return self._checked("mustAuthenticate", False)
        if found.learnt is not None:
            await self._learn(image, image_ref, found.learnt)
        return self._checked("credentialRecordFound", True)

    async def intend(self, image: str) -> None:
        """A pull is about to begin; `pulled` or `failed` follows. Raises RecordProblem, and then nothing follows."""
        await self._open()
        noted = False

        async def note() -> None:
            nonlocal noted
            await self._note(image)
            noted = True

        try:
            await finish(note(), within=DISK_TIME)
        except TimeoutError:
            raise RecordProblem(f"{_not_recorded(image)}: the disk does not answer") from None
        except asyncio.CancelledError:
            if noted:  # the caller is cancelled and cannot call `failed`
                await finish(self._ended(image), within=DISK_TIME)
            raise

    async def _note(self, image: str) -> None:
        async with self._lock:
            if image not in self._intents:
                try:
                    await self._on_disk(partial(self._files.write_intent, image))
                except OSError as error:
                    raise RecordProblem(f"{_not_recorded(image)}: {error.strerror or error}") from error
                self._intents.add(image)
            self._under_way[image] += 1

    async def pulled(self, image: str, image_ref: str, login: Login | None) -> None:
        """The pull succeeded, with the login that worked."""
        if await self._learn(image, image_ref, of_login(login)):
            await self._ended(image)
        # else the intent stays: the image counts as pulled here, with no login known

    async def failed(self, image: str) -> None:
        await self._ended(image)

    # --- after garbage collection ---------------------------------------------------------------

    async def prune(self, image_refs: Iterable[str], older_than: float) -> None:
        """Forget the images that are gone; records that changed since `older_than` (unix seconds) stay."""
        await self._open()
        there = set(image_refs)
        async with self._lock:
            for record in list(self._records.values()):
                if record.image_ref in there or record.updated >= int(older_than):
                    continue
                try:
                    await self._on_disk(partial(self._files.drop_record, record.image_ref))
                except OSError as error:
                    _complain("pulled record cannot be removed", record.image_ref, error)
                else:
                    del self._records[record.image_ref]

    # --- inside ---------------------------------------------------------------------------------

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await host_calls.run(work, name="pull records", within=DISK_TIME)

    def _checked(self, result: str, answer: bool) -> bool:
        self._checks.inc(result)
        return answer

    async def _learn(self, image: str, image_ref: str, news: Access) -> bool:
        async with self._lock:
            now = int(self._clock.now())
            known = self._records.get(image_ref)
            grown = merged(known or PulledRecord(image_ref=image_ref, updated=now), bare_name(image), news, now)
            return grown is known or await self._keep(grown)

    async def _keep(self, record: PulledRecord) -> bool:
        try:
            await self._on_disk(partial(self._files.write_record, record))
        except OSError as error:
            _complain("pulled record cannot be written", record.image_ref, error)
            return False
        self._records[record.image_ref] = record
        return True

    async def _ended(self, image: str) -> None:
        async with self._lock:
            self._under_way[image] -= 1
            if self._under_way[image] > 0:
                return
            del self._under_way[image]
            await self._drop_intent(image)

    async def _drop_intent(self, image: str) -> None:
        try:
            await self._on_disk(partial(self._files.drop_intent, image))
        except OSError as error:
            _complain("pull intent cannot be removed", image, error)
        else:
            self._intents.discard(image)

    # --- at start -------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Read what earlier runs left, before the first question. Raises RuntimeDown, to be tried again."""
        if self._opened:
            return
        async with self._lock:
            if self._opened:
                return
            try:
                present = await self._images.list_images()
            except RuntimeDown:
                raise
            except CriError as error:
                logger.error("images cannot be listed; pull intents are kept", extra={"error": str(error)})
                present = ()
            damaged = await self._on_disk(self._read_all)
            await self._repair(damaged, present)
            await self._settle_intents(present)
            self._opened = True

    def _read_all(self) -> list[tuple[Path, CheckpointDamaged]]:
        damaged: list[tuple[Path, CheckpointDamaged]] = []
        try:
            self._files.make_folders()
            for path, intent, current in self._files.intents():
                if isinstance(intent, CheckpointDamaged):
                    damaged.append((path, intent))
                    continue
                self._intents.add(intent)
                if not current:
                    self._files.write_intent(intent)
            for path, record, current in self._files.records():
                if isinstance(record, CheckpointDamaged):
                    damaged.append((path, record))
                    continue
                self._records[record.image_ref] = record
                if not current:
                    self._files.write_record(record)
        except OSError as error:
            _complain("pull records cannot be read", str(error.filename or ""), error)
        return damaged

    async def _repair(self, damaged: Iterable[tuple[Path, CheckpointDamaged]], present: Sequence[Image]) -> None:
        """Set damaged files aside; an image whose record is lost needs a successful pull before a pod may use it."""
        owners = {file_name(name): image.id for image in present for name in (image.id, *image.tags, *image.digests)}
        for path, problem in damaged:
            try:
                aside = await self._on_disk(partial(self._files.copy_aside, path))
                owner = owners.get(path.name)
                if owner is not None and owner not in self._records:
                    await self._keep(PulledRecord(image_ref=owner, updated=int(self._clock.now())))
                if owner is None or path.name != file_name(owner):  # else the new record took its place
                    await self._on_disk(path.unlink)
            except OSError as error:
                _complain("damaged pull record cannot be set aside", str(path), error)
                continue
            fields = {"path": str(path), "aside": str(aside), "problem": str(problem)}
            logger.error("pull record is damaged and was set aside", extra=fields)

    async def _settle_intents(self, present: Sequence[Image]) -> None:
        """An intent whose image is here becomes a record that covers no pod: the login of the pull is not known."""
        refs = {name: image.id for image in present for name in (*image.tags, *image.digests)}
        for intent in sorted(self._intents):
            ref = refs.get(intent) or refs.get(full_name(intent))
            if ref is None:
                continue
            if ref in self._records or await self._keep(PulledRecord(image_ref=ref, updated=int(self._clock.now()))):
                await self._drop_intent(intent)


def _not_recorded(image: str) -> str:
    return f'Failed to record image pull intent for container image "{image}"'


def _complain(what: str, about: str, error: OSError) -> None:
    logger.error(what, extra={"about": about, "error": error.strerror or str(error)})
