"""Which images were pulled here, with whose logins: so that a pod cannot use an image it could not have pulled.

Before a pull the intent is written, after it the record, then the intent goes; a crash in between leaves the intent,
which at the next start becomes a record that lets nobody in unseen. A damaged file is reported, set aside and, if its
image is known, replaced by such a record: doubt never opens an image. All is in memory; disks are only written.
Does not cover: the rules (access.py), the files (record_files.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Multiset
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from pykubelet.images.access import Verification, bare_name, covers, merged, of_login
from pykubelet.images.login import Login
from pykubelet.images.record_files import Access, PulledRecord, RecordFiles, file_name
from pykubelet.images.reference import full_name
from pykubelet.kit.clock import Clock
from pykubelet.kit.files import CheckpointDamaged
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import finish
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.model.runtime_status import Image

logger = logging.getLogger(__name__)

T = TypeVar("T")
Lookup = Callable[[], Awaitable[Sequence[Login]]]
DISK_TIME = 60.0


class ImageLister(Protocol):
    async def list_images(self) -> Sequence[Image]: ...


class RecordProblem(PykubeletError):
    """The disk did not take a record."""


class PullRecords:
    """The `ImageAccess` that pull.py wants."""

    def __init__(
        self, *, files: RecordFiles, images: ImageLister, verification: Verification, clock: Clock, metrics: Registry
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

    # --- the seam of pull.py --------------------------------------------------------------------

    async def may_use(self, image: str, image_ref: str, logins: Lookup) -> bool:
        """`image`: as the pod writes it. `logins` is asked only when it matters; its PykubeletError passes."""
        await self._open()
        record = self._records.get(image_ref)
        pulled_here = record is not None or image in self._intents
        if not self._verification.is_needed(image, pulled_here=pulled_here):
            return self._checked("credentialPolicyAllowed", True)
        access = record.access.get(bare_name(image)) if record is not None else None
        if access is None or access.is_empty:
            return self._checked("mustAuthenticate", False)
        if access.everybody:
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
            if noted:  # whoever was going to pull is not there to say that it failed
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
        if await self._learn(image, image_ref, of_login(login)):
            await self._ended(image)
        # else the intent stays: better that the image counts as pulled here by nobody known

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
        """Put damaged files aside; where a file's image is on the node, it stays closed until a pull shows a right."""
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
        """An intent whose image is here becomes a record: it was pulled, nobody knows by whom."""
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
