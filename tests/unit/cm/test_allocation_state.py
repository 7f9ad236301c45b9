"""The records of held resources: upstream's file format, damage, what survives."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from pykubelet.api.types import ResourceRequirements
from pykubelet.cm.allocation import AllocationState, checksum, decode, encode
from pykubelet.model.pod_resources import PodResourceInfo

HELD = PodResourceInfo(
    containers={"app": ResourceRequirements(requests={"cpu": "100m"}, limits={"cpu": "1", "memory": "64Mi"})},
    pod=ResourceRequirements(requests={"cpu": "1"}),
)
UPSTREAM = (
    r'{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",'
    r'\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}'
)


def test_a_file_of_upstreams_kubelet_is_read() -> None:
    entries = decode(UPSTREAM.encode())
    assert entries["pod1"].containers["container1"].requests == {"cpu": "1Ki", "memory": "1Ki"}
    assert entries["pod1"].pod is None


def test_ours_has_upstreams_shape() -> None:
    envelope = json.loads(encode({"u": HELD}))
    assert envelope["checksum"] == checksum(envelope["data"])
    assert json.loads(envelope["data"]) == {
        "entries": {
            "u": {
                "ContainerResources": {"app": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1", "memory": "64Mi"}}},
                "PodLevelResources": {"requests": {"cpu": "1"}},
            }
        }
    }
    assert decode(encode({"u": HELD})) == {"u": HELD}
    assert decode(encode({})) == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{torn",
        b"[]",
        b'{"data":"{}"}',
        UPSTREAM.replace("1178570812", "1").encode(),
        UPSTREAM.replace("100m", "200m").replace("1Ki", "2Ki").encode(),
        json.dumps({"data": "[1]", "checksum": checksum("[1]")}).encode(),
        json.dumps({"data": '{"entries":{"u":3}}', "checksum": checksum('{"entries":{"u":3}}')}).encode(),
    ],
)
def test_a_damaged_file_is_noticed_and_set_aside(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "allocated_pods_state"
    path.write_bytes(raw)
    assert AllocationState(path).get("pod1") is None
    assert path.with_name("allocated_pods_state.damaged").read_bytes() == raw


def test_what_was_put_survives_and_what_was_dropped_does_not(tmp_path: Path) -> None:
    path = tmp_path / "allocated_pods_state"
    told: list[str] = []
    ledger = AllocationState(path, on_change=lambda: told.append("changed"))
    ledger.flush()
    assert not path.exists()
    ledger.put("u", HELD)
    ledger.put("v", HELD)
    ledger.put("v", HELD)
    ledger.put_container("v", "side", ResourceRequirements())
    ledger.put_pod_level("v", None)
    ledger.drop("u")
    ledger.drop("u")
    assert told == ["changed"] * 5
    ledger.flush()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    after = AllocationState(path)
    assert after.get("u") is None
    kept = after.get("v")
    assert kept is not None and set(kept.containers) == {"app", "side"} and kept.pod is None
    after.keep_only(["w"])
    assert after.get("v") is None


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "actuated_pods_state"
    path.write_bytes(b"{torn")
    ledger = AllocationState(path)
    assert ledger.get("u") is None
    assert path.with_name("actuated_pods_state.damaged").read_bytes() == b"{torn"
    ledger.put("u", HELD)
    ledger.flush()
    assert AllocationState(path).get("u") == HELD


def test_a_disk_that_refuses_is_an_error_and_the_change_is_not_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "file"
    ledger = AllocationState(path)
    ledger.put("u", HELD)
    with pytest.raises(OSError):
        ledger.flush()
    (tmp_path / "missing").mkdir()
    ledger.flush()
    assert AllocationState(path).get("u") == HELD
