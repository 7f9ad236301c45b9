from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api.types import Pod
from pykubelet.model.pod import HASH_ANNOTATION, MIRROR_ANNOTATION, PodUID, full_name, uid_of
from pykubelet.pods.manager import PodManager, is_mirror_of
from tests.unit.pods.making import a_pod


def _static(name: str, uid: str = "", **fields: Any) -> Pod:
    uid = uid or f"static-{name}"
    return a_pod(name, uid=uid, static=True, annotations={HASH_ANNOTATION: uid}, **fields)


def _mirror(name: str, uid: str = "", hash_: str = "") -> Pod:
    return a_pod(name, uid=uid or f"mirror-{name}", annotations={MIRROR_ANNOTATION: hash_ or f"static-{name}"})


def _manager(*pods: Pod) -> PodManager:
    manager = PodManager()
    manager.put_all(pods)
    return manager


def test_pods_are_found_by_uid_and_by_name_and_listed_in_order() -> None:
    b, a = a_pod("b"), _static("a")
    manager = _manager(b, a)
    assert manager.get(uid_of(a)) is a
    assert manager.by_full_name("b_default") is b
    assert manager.by_name("default", "a") is a
    assert manager.pods() == [b, a]
    assert manager.static_pods() == [a]
    assert len(manager) == 2
    assert uid_of(a) in manager


def test_a_mirror_is_no_pod_of_its_own() -> None:
    mirror = _mirror("a")
    manager = _manager(mirror)
    assert manager.pods() == []
    assert manager.get(uid_of(mirror)) is None
    assert manager.by_full_name("a_default") is None
    assert manager.mirrors() == [mirror]


def test_pairing_works_whichever_comes_first() -> None:
    static, mirror = _static("a"), _mirror("a")
    for order in ((static, mirror), (mirror, static)):
        manager = _manager(*order)
        assert manager.mirror_of(static) is mirror
        assert manager.static_of(mirror) is static
        assert manager.pair(static) == manager.pair(mirror) == (static, mirror)
        assert manager.translate(uid_of(mirror)) == uid_of(static)
        assert manager.translate(uid_of(static)) == uid_of(static)
        assert manager.api_uid(static) == uid_of(mirror)
        assert manager.orphan_mirrors() == []


def test_unknown_uids_translate_to_themselves() -> None:
    assert PodManager().translate(PodUID("x")) == "x"


def test_the_api_knows_a_static_pod_only_by_its_mirror() -> None:
    static, ordinary = _static("a"), a_pod("b")
    manager = _manager(static, ordinary)
    assert manager.api_uid(static) is None
    assert manager.api_uid(ordinary) == uid_of(ordinary)


def test_a_mirror_without_its_pod_is_an_orphan() -> None:
    static, mirror = _static("a"), _mirror("a")
    manager = _manager(static, mirror)
    manager.remove(static)
    assert manager.orphan_mirrors() == [mirror]
    assert manager.translate(uid_of(mirror)) == uid_of(mirror)
    assert manager.snapshot().orphan_mirrors == ("a_default",)
    manager.remove(mirror)
    assert manager.orphan_mirrors() == []


def test_removing_the_old_version_late_leaves_the_new_one() -> None:
    old, new = _static("a", "1"), _static("a", "2")
    manager = _manager(old, new)
    manager.remove(old)
    assert manager.by_full_name("a_default") is new
    assert manager.pods() == [new]


def test_removing_the_new_version_leaves_the_old_one_findable() -> None:
    old, new = _static("a", "1"), _static("a", "2")
    manager = _manager(old, new)
    manager.remove(new)
    assert manager.by_full_name("a_default") is old


def test_a_uid_that_changes_its_name_leaves_the_old_name() -> None:
    manager = _manager(_static("a", "1"))
    renamed = _static("b", "1")
    manager.put(renamed)
    assert manager.by_full_name("a_default") is None
    assert manager.by_full_name("b_default") is renamed


def test_removing_what_is_not_there_is_fine() -> None:
    PodManager().remove(a_pod())


def test_a_mirror_matches_by_name_and_hash() -> None:
    assert is_mirror_of(_mirror("a"), _static("a"))
    assert not is_mirror_of(_mirror("a", hash_="old"), _static("a"))
    assert not is_mirror_of(_mirror("b", hash_="static-a"), _static("a"))
    assert not is_mirror_of(a_pod("a"), _static("a"))


_steps = st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("ab"), st.sampled_from("123")), max_size=30)


@given(steps=_steps)
def test_indexes_never_disagree(steps: list[tuple[bool, bool, str, str]]) -> None:
    manager = PodManager()
    for add, mirror, name, uid in steps:
        pod = _mirror(name, f"m{uid}") if mirror else _static(name, f"s{uid}")
        if add:
            manager.put(pod)
        else:
            manager.remove(pod)
        for known in manager.pods():
            named = manager.by_full_name(full_name(known))
            assert named is not None
            assert full_name(named) == full_name(known)
        names = {full_name(known) for known in manager.pods()}
        assert {full_name(each) for each in manager.orphan_mirrors()} == {
            full_name(each) for each in manager.mirrors()
        } - names
