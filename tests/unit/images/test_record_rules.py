"""Who may use an image that is present: policies, matching, growing records. All pure."""

from __future__ import annotations

import pytest

from pykubelet.images.keyring import AccountOrigin, Entry, Login, SecretOrigin
from pykubelet.images.record_files import Access, PulledRecord
from pykubelet.images.records import (
    SECRETS_LEARNT,
    Covered,
    Policy,
    Verification,
    bare_name,
    covers,
    merged,
    of_login,
)
from tests.unit.images.making import secret_login

DIGEST = "sha256:" + "a" * 64
ACCOUNT = AccountOrigin(namespace="default", name="acc", uid="1")
BY_ACCOUNT = Login(entry=Entry(username="u"), origin=ACCOUNT)


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("busybox", "busybox"),
        ("busybox:1", "busybox"),
        ("r.io:5000/a/b", "r.io:5000/a/b"),
        ("r.io:5000/a/b:1", "r.io:5000/a/b"),
        (f"r.io/a@{DIGEST}", "r.io/a"),
        (f"r.io/a:1@{DIGEST}", "r.io/a"),
    ],
)
def test_names_without_tag_and_digest(image: str, name: str) -> None:
    assert bare_name(image) == name


@pytest.mark.parametrize(
    ("policy", "image", "pulled_here", "needed"),
    [
        (Policy.NEVER, "r.io/a:1", True, False),
        (Policy.NOT_PRELOADED, "r.io/a:1", False, False),
        (Policy.NOT_PRELOADED, "r.io/a:1", True, True),
        (Policy.ALWAYS, "r.io/a:1", False, True),
        (Policy.NOT_ALLOW_LISTED, "r.io/a:1", True, False),
        (Policy.NOT_ALLOW_LISTED, f"r.io/a@{DIGEST}", False, False),
        (Policy.NOT_ALLOW_LISTED, "r.io/ab:1", False, True),
        (Policy.NOT_ALLOW_LISTED, "s.io/team/x:1", True, False),
        (Policy.NOT_ALLOW_LISTED, "s.io/teams:1", False, True),
        (Policy.NOT_ALLOW_LISTED, "Bad Name", False, True),
    ],
)
def test_policies(policy: Policy, image: str, pulled_here: bool, needed: bool) -> None:
    verification = Verification(policy=policy, allow_list=("r.io/a", "s.io/team/*"))
    assert verification.is_needed(image, pulled_here=pulled_here) is needed


def test_what_a_pull_shows() -> None:
    secret = secret_login("s")
    assert of_login(None) == of_login(Login(entry=Entry(username="node"))) == Access(all_pods=True)
    assert isinstance(secret.origin, SecretOrigin)
    assert of_login(secret) == Access(secrets={secret.origin: secret.fingerprint})
    assert of_login(BY_ACCOUNT) == Access(accounts=frozenset({ACCOUNT}))


KNOWN = of_login(secret_login("s"))


@pytest.mark.parametrize(
    ("logins", "expected"),
    [
        ([], None),
        ([secret_login("s")], Covered()),
        ([secret_login("t")], Covered(learnt=of_login(secret_login("t")))),
        ([secret_login("s", "renewed")], Covered(learnt=of_login(secret_login("s", "renewed")))),
        ([secret_login("t", "other")], None),
        ([secret_login("s", "other", uid="made anew")], None),
        ([Login(entry=Entry(username="u", password="p"))], None),
        ([BY_ACCOUNT], None),
    ],
)
def test_who_a_record_covers(logins: list[Login], expected: Covered | None) -> None:
    assert covers(KNOWN, logins) == expected


def test_a_service_account_in_the_record() -> None:
    access = Access(accounts=frozenset({ACCOUNT}))
    other = Login(entry=Entry(), origin=AccountOrigin(namespace="default", name="acc", uid="2"))
    assert covers(access, [BY_ACCOUNT]) == Covered()
    assert covers(access, [other]) is None


def test_a_full_record_learns_no_more() -> None:
    first = secret_login("s0")
    many = [secret_login(f"s{number}") for number in range(SECRETS_LEARNT)]
    full = Access(secrets={login.origin: first.fingerprint for login in many if isinstance(login.origin, SecretOrigin)})
    assert covers(full, [secret_login("new")]) == Covered()
    assert covers(full, [secret_login("s1", "renewed")]) is None, "it could not be written down, so it is asked again"


def test_an_empty_fingerprint_is_nobodys() -> None:
    class Blank(Login):
        @property
        def fingerprint(self) -> str:
            return ""

    origin = SecretOrigin(namespace="default", name="other", uid="1")
    access = Access(secrets={SecretOrigin(namespace="default", name="s", uid="2"): ""})
    assert covers(access, [Blank(entry=Entry(), origin=origin)]) is None


def test_records_grow() -> None:
    record = PulledRecord(image_ref="x", updated=1)
    one = merged(record, "r.io/a", of_login(secret_login("s")), 2)
    assert one.updated == 2 and one.access == {"r.io/a": of_login(secret_login("s"))}
    assert merged(one, "r.io/a", of_login(secret_login("s")), 3) is one
    assert merged(one, "r.io/a", Access(), 3) is one
    two = merged(merged(one, "r.io/a", of_login(secret_login("t")), 3), "r.io/a", of_login(BY_ACCOUNT), 4)
    access = two.access["r.io/a"]
    assert len(access.secrets) == 2 and access.accounts == {ACCOUNT} and two.updated == 4
    open_ = merged(two, "r.io/a", Access(all_pods=True), 5)
    assert open_.access == {"r.io/a": Access(all_pods=True)}
    assert merged(open_, "r.io/a", of_login(secret_login("u")), 6) is open_
    assert set(merged(open_, "r.io/b", of_login(secret_login("u")), 6).access) == {"r.io/a", "r.io/b"}
