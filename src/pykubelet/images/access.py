"""Whether a pod may use an image that is on the node already. Pure.

Covers: the verification policies with their allow list, who is covered by a record, and how a record grows.
Does not cover: keeping records (records.py).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from pykubelet.images.login import AccountOrigin, Login, SecretOrigin
from pykubelet.images.record_files import Access, PulledRecord
from pykubelet.images.reference import InvalidReference, parse

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
            return Access(everybody=True)


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
        # Records of other kubelets may hold an empty fingerprint, which is nobody's content.
        if own and own in access.secrets.values():
            return Covered(learnt=of_login(login) if known != own and has_room else None)
        if known is not None and has_room:
            # The same secret with other content: believed only where it can be written down.
            return Covered(learnt=of_login(login))
    account = next((login.origin for login in logins if isinstance(login.origin, AccountOrigin)), None)
    return Covered() if account is not None and account in access.accounts else None


def merged(record: PulledRecord, name: str, news: Access, now: int) -> PulledRecord:
    """The record with `news` about the image `name`; the very same object when it knew that already."""
    known = record.access.get(name)
    if news.is_empty or (known is not None and known.everybody):
        return record
    if known is None or news.everybody:
        grown = news
    else:
        grown = Access(secrets={**known.secrets, **news.secrets}, accounts=known.accounts | news.accounts)
    if grown == known:
        return record
    return replace(record, updated=now, access={**record.access, name: grown})
