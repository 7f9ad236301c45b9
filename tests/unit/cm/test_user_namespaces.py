"""Id ranges of pods with user namespaces: given once, kept over restarts, given back."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from pykubelet.api.types import Pod
from pykubelet.cm import user_namespaces
from pykubelet.cm.user_namespaces import IdRange, PodUserNamespaces, UsernsProblem, id_range
from pykubelet.model.errors import PykubeletError
from pykubelet.wire import cri_pb2
from tests.builders import a_pod

UNIT = 65_536


class OneHandler:
    def __init__(self, name: str) -> None:
        self.name = name

    async def handler_for(self, pod: Pod) -> str:
        return self.name


def namespaces(folder: Path, *, slots: int = 3, supported: bool = True, handler: str = "") -> PodUserNamespaces:
    ids = IdRange(first=UNIT, length=slots * UNIT, per_pod=UNIT)
    return PodUserNamespaces(
        pods=folder, ids=ids, handlers=OneHandler(handler), supports=lambda name: supported and name == handler
    )


def pod(folder: Path, name: str) -> Pod:
    (folder / f"uid-{name}").mkdir(exist_ok=True)
    return a_pod(name, host_users=False)


async def first_id(ranges: PodUserNamespaces, one: Pod) -> int:
    found = await ranges.mappings(one)
    assert found.mode == cri_pb2.NamespaceMode.POD and list(found.uids) == list(found.gids)
    (row,) = found.uids
    assert (row.container_id, row.length) == (0, UNIT)
    return int(row.host_id)


async def test_each_pod_has_a_range_of_its_own_and_keeps_it(tmp_path: Path) -> None:
    ranges = namespaces(tmp_path)
    a, b = pod(tmp_path, "a"), pod(tmp_path, "b")
    assert [await first_id(ranges, each) for each in (a, b, a)] == [UNIT, 2 * UNIT, UNIT]
    row = {"hostId": UNIT, "containerId": 0, "length": UNIT}
    assert json.loads((tmp_path / "uid-a/userns").read_text()) == {"uidMappings": [row], "gidMappings": [row]}


async def test_a_range_that_is_not_on_disk_is_not_used_and_given_to_nobody_else(tmp_path: Path) -> None:
    ranges = namespaces(tmp_path)
    a, b = pod(tmp_path, "a"), pod(tmp_path, "b")
    (tmp_path / "uid-a").rmdir()
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            await ranges.mappings(a)
    assert await first_id(ranges, b) == 2 * UNIT
    assert await first_id(ranges, pod(tmp_path, "a")) == UNIT and (tmp_path / "uid-a/userns").exists()


@pytest.mark.real_loop
async def test_the_disk_is_waited_for_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def write(path: Path, data: bytes) -> None:
        threads.append(threading.get_ident())
        path.write_bytes(data)

    monkeypatch.setattr(user_namespaces, "write_atomic", write)
    assert await first_id(namespaces(tmp_path), pod(tmp_path, "a")) == UNIT
    assert threads and threading.get_ident() not in threads


async def test_a_restarted_agent_knows_what_is_taken(tmp_path: Path) -> None:
    a, b, c = (pod(tmp_path, name) for name in "abc")
    before = namespaces(tmp_path)
    assert [await first_id(before, each) for each in (a, b)] == [UNIT, 2 * UNIT]
    after = namespaces(tmp_path)
    assert [await first_id(after, each) for each in (c, b)] == [3 * UNIT, 2 * UNIT]


async def test_ranges_are_given_back_and_run_out(tmp_path: Path) -> None:
    ranges = namespaces(tmp_path, slots=2)
    a, b, c = (pod(tmp_path, name) for name in "abc")
    await first_id(ranges, a)
    await first_id(ranges, b)
    with pytest.raises(UsernsProblem, match="could not find an empty slot"):
        await ranges.mappings(c)
    assert not (tmp_path / "uid-c/userns").exists()
    ranges.release("uid-a")
    ranges.release("uid-a")
    assert not (tmp_path / "uid-a/userns").exists()
    assert await first_id(ranges, c) == UNIT
    ranges.keep_only(["uid-c"])
    assert await first_id(ranges, a) == 2 * UNIT


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        ("", "can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
        (
            "kata",
            'can\'t set `spec.hostUsers: false`, RuntimeClass handler "kata" does not support user namespaces',
        ),
    ],
)
async def test_a_runtime_without_user_namespaces_is_named(tmp_path: Path, handler: str, text: str) -> None:
    ranges = namespaces(tmp_path, supported=False, handler=handler)
    with pytest.raises(UsernsProblem) as caught:
        await ranges.mappings(pod(tmp_path, "a"))
    assert str(caught.value) == text


ROW = {"hostId": UNIT, "containerId": 0, "length": UNIT}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{torn", "invalid user namespace mappings file"),
        (json.dumps({"uidMappings": [ROW, ROW], "gidMappings": [ROW]}), "invalid user namespace mappings file"),
        (json.dumps({"uidMappings": [ROW], "gidMappings": [{**ROW, "hostId": 0}]}), "should be identical"),
        (json.dumps({key: [{**ROW, "containerId": 1}] for key in ("uidMappings", "gidMappings")}), "0 must be mapped"),
        (json.dumps({key: [{**ROW, "length": 7}] for key in ("uidMappings", "gidMappings")}), "length 7"),
        (json.dumps({key: [{**ROW, "hostId": UNIT + 1}] for key in ("uidMappings", "gidMappings")}), "offset"),
        (json.dumps({key: [{**ROW, "hostId": 9 * UNIT}] for key in ("uidMappings", "gidMappings")}), "out of range"),
    ],
)
async def test_a_bad_file_blocks_its_pod_and_no_other(tmp_path: Path, content: str, text: str) -> None:
    bad, good = pod(tmp_path, "bad"), pod(tmp_path, "good")
    (tmp_path / "uid-bad/userns").write_text(content)
    ranges = namespaces(tmp_path)
    with pytest.raises(UsernsProblem, match=text):
        await ranges.mappings(bad)
    assert await first_id(ranges, good) == UNIT


async def test_two_pods_cannot_claim_one_range(tmp_path: Path) -> None:
    a, b = pod(tmp_path, "a"), pod(tmp_path, "b")
    for one in (a, b):
        (tmp_path / f"{one.metadata.uid}/userns").write_text(json.dumps({"uidMappings": [ROW], "gidMappings": [ROW]}))
    ranges = namespaces(tmp_path)
    assert await first_id(ranges, a) == UNIT
    with pytest.raises(UsernsProblem, match="already taken"):
        await ranges.mappings(b)


def test_the_usual_range_is_everything_above_the_hosts_ids() -> None:
    ids = id_range(UNIT, 110)
    assert (ids.first, ids.slots) == (UNIT, UNIT - 1)


@pytest.mark.parametrize(
    ("per_pod", "max_pods", "host", "text"),
    [
        (1000, 1, None, "idsPerPod"),
        (UNIT, 1, (UNIT + 1, UNIT), "not a multiple"),
        (UNIT, 1, (0, UNIT), "greater or equal"),
        (UNIT, 1, (UNIT, UNIT + 1), "length"),
        (UNIT, 110, (UNIT, UNIT), "not enough to support 110 pods"),
    ],
)
def test_a_range_that_cannot_work_is_refused(
    per_pod: int, max_pods: int, host: tuple[int, int] | None, text: str
) -> None:
    with pytest.raises(PykubeletError, match=text):
        id_range(per_pod, max_pods, host)
