from __future__ import annotations

import sys
import threading
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pykubelet.api.types import Pod
from pykubelet.model.pod import HASH_ANNOTATION, MIRROR_ANNOTATION, PodUID, full_name, uid_of
from pykubelet.pods.table import PodTable, is_mirror_of
from tests.builders import a_pod


def _static(name: str, uid: str = "", **fields: Any) -> Pod:
    uid = uid or f"static-{name}"
    return a_pod(name, uid=uid, static=True, annotations={HASH_ANNOTATION: uid}, **fields)


def _mirror(name: str, uid: str = "", hash_: str = "") -> Pod:
    return a_pod(name, uid=uid or f"mirror-{name}", annotations={MIRROR_ANNOTATION: hash_ or f"static-{name}"})


def _table(*pods: Pod) -> PodTable:
    table = PodTable()
    for pod in pods:
        table.put(pod)
    return table


def test_pods_are_found_by_uid_and_by_name_and_listed_in_order() -> None:
    b, a = a_pod("b"), _static("a")
    table = _table(b, a)
    assert table.pod(uid_of(a)) is a
    assert table.by_full_name("b_default") is b
    assert table.by_name("default", "a") is a
    assert table.pods() == [b, a]
    assert table.static_pods() == [a]
    assert len(table) == 2
    assert table.is_desired(uid_of(a))


def test_a_mirror_is_no_pod_of_its_own() -> None:
    mirror = _mirror("a")
    table = _table(mirror)
    assert table.pods() == []
    assert table.pod(uid_of(mirror)) is None
    assert table.by_full_name("a_default") is None
    assert table.mirrors() == [mirror]


def test_pairing_works_whichever_comes_first() -> None:
    static, mirror = _static("a"), _mirror("a")
    for order in ((static, mirror), (mirror, static)):
        table = _table(*order)
        assert table.mirror_of(static) is mirror
        assert table.static_of(mirror) is static
        assert table.translate(uid_of(mirror)) == uid_of(static)
        assert table.translate(uid_of(static)) == uid_of(static)
        assert table.orphan_mirrors() == []


def test_unknown_uids_translate_to_themselves() -> None:
    assert PodTable().translate(PodUID("x")) == "x"


def test_a_mirror_without_its_pod_is_an_orphan() -> None:
    static, mirror = _static("a"), _mirror("a")
    table = _table(static, mirror)
    table.remove(static)
    assert table.orphan_mirrors() == [mirror]
    assert table.translate(uid_of(mirror)) == uid_of(mirror)
    table.remove(mirror)
    assert table.orphan_mirrors() == []


def test_removing_the_old_version_late_leaves_the_new_one() -> None:
    old, new = _static("a", "1"), _static("a", "2")
    table = _table(old, new)
    table.remove(old)
    assert table.by_full_name("a_default") is new
    assert table.pods() == [new]


def test_removing_the_new_version_leaves_the_old_one_findable() -> None:
    old, new = _static("a", "1"), _static("a", "2")
    table = _table(old, new)
    table.remove(new)
    assert table.by_full_name("a_default") is old


def test_a_uid_that_changes_its_name_leaves_the_old_name() -> None:
    table = _table(_static("a", "1"))
    renamed = _static("b", "1")
    table.put(renamed)
    assert table.by_full_name("a_default") is None
    assert table.by_full_name("b_default") is renamed


def test_removing_what_is_not_there_is_fine() -> None:
    PodTable().remove(a_pod())


def test_a_mirror_matches_by_name_and_hash() -> None:
    assert is_mirror_of(_mirror("a"), _static("a"))
    assert not is_mirror_of(_mirror("a", hash_="old"), _static("a"))
    assert not is_mirror_of(_mirror("b", hash_="static-a"), _static("a"))
    assert not is_mirror_of(a_pod("a"), _static("a"))


_steps = st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from("ab"), st.sampled_from("123")), max_size=30)


@given(steps=_steps)
def test_indexes_never_disagree(steps: list[tuple[bool, bool, str, str]]) -> None:
    table = PodTable()
    for add, mirror, name, uid in steps:
        pod = _mirror(name, f"m{uid}") if mirror else _static(name, f"s{uid}")
        if add:
            table.put(pod)
        else:
            table.remove(pod)
        for known in table.pods():
            named = table.by_full_name(full_name(known))
            assert named is not None
            assert full_name(named) == full_name(known)
        names = {full_name(known) for known in table.pods()}
        assert {full_name(each) for each in table.orphan_mirrors()} == {
            full_name(each) for each in table.mirrors()
        } - names


def test_threads_list_pods_while_the_loop_adds_and_removes_them() -> None:
    table, others = _table(*(a_pod(f"web-{number}") for number in range(200))), [a_pod(f"job-{n}") for n in range(50)]
    problems: list[Exception] = []
    ended = threading.Event()

    def count() -> None:  # as the OOM watcher does
        try:
            while not ended.is_set():
                table.pods()
        except Exception as problem:
            problems.append(problem)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(100):
            for pod in others:
                table.put(pod)
            for pod in others:
                table.remove(pod)
    finally:
        ended.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert not problems
