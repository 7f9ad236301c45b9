"""Devices: which are allocated, which could be, and the checkpoint, which is upstream's file."""

from __future__ import annotations

import json
import random

import pytest

from pykubelet.clients.plugins.devices import read_allocate_response
from pykubelet.clients.plugins.port import AllocateResponse
from pykubelet.cm.device_state import (
    DeviceAllocations,
    DevicesRefused,
    DeviceState,
    Resource,
    allocations_of,
    data_of,
    decode,
    encode,
    registered_of,
)
from pykubelet.cm.topology_manager import Hint
from tests.fakes.fake_devices import a_device

R = "example.com/gpu"


def state(*devices: tuple[str, tuple[int, ...]], sick: tuple[str, ...] = ()) -> DeviceState:
    made = DeviceState()
    known = {name: a_device(name, healthy=name not in sick, numa=numa) for name, numa in devices}
    made.resources[R] = Resource(devices=known, running=True)
    return made


FOUR = (("a", (0,)), ("b", (0,)), ("c", (1,)), ("d", (1,)))


@pytest.mark.parametrize(
    "count, nodes, reusable, chosen",
    [
        (1, None, (), ["a"]),
        (2, 0b10, (), ["c", "d"]),
        (3, 0b10, (), ["c", "d", "a"]),
        (2, 0b01, ("d",), ["d", "a"]),
        (1, 0b01, ("c", "d"), ["c"]),
        (4, None, (), ["a", "b", "c", "d"]),
    ],
)
def test_choice(count: int, nodes: int | None, reusable: tuple[str, ...], chosen: list[str]) -> None:
    made = state(*FOUR)
    assert made.choose(R, count, reusable=frozenset(reusable), nodes=nodes) == chosen


@pytest.mark.parametrize(
    "made, count, text",
    [
        (state(*FOUR), 5, f"requested number of devices unavailable for {R}. Requested: 5, Available: 4"),
        (state(("a", ()), sick=("a",)), 1, f"no healthy devices present; cannot allocate unhealthy devices {R}"),
        (DeviceState(), 1, f"cannot allocate unregistered device {R}"),
    ],
)
def test_refusals(made: DeviceState, count: int, text: str) -> None:
    with pytest.raises(DevicesRefused) as caught:
        made.choose(R, count)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    "count, taken, hints",
    [
        (1, (), [(1, True), (2, True), (3, False)]),
        (2, (), [(1, True), (2, True), (3, False)]),
        (3, (), [(3, True)]),
        (2, ("a",), [(2, True), (3, False)]),
        (2, ("a", "c"), [(3, False)]),
        (4, ("a",), []),
    ],
)
def test_hints(count: int, taken: tuple[str, ...], hints: list[tuple[int, bool]]) -> None:
    made = state(*FOUR)
    if taken:
        made.allocate("other", "app", R, taken)
    assert made.hints(R, count, reusable=frozenset(), masks=[1, 2, 3]) == [Hint(*each) for each in hints]


def test_without_places_there_is_no_opinion() -> None:
    assert state(("a", ()), ("b", ())).hints(R, 1, reusable=frozenset(), masks=[1, 2, 3]) is None


def test_a_thousand_populations_never_share_a_device() -> None:
    dice = random.Random(5)
    for _ in range(1000):
        made = state(*((f"d{n}", (dice.randrange(2),)) for n in range(dice.randrange(1, 9))))
        alive: list[str] = []
        for step in range(12):
            if alive and dice.random() < 0.4:
                made.release(alive.pop(dice.randrange(len(alive))))
            uid, count = f"p{step}", dice.randrange(1, 4)
            before = made.free(R)
            try:
                made.allocate(uid, "app", R, made.choose(R, count, nodes=dice.choice([None, 1, 2, 3])))
            except DevicesRefused:
                assert len(before) < count
                continue
            alive.append(uid)
            allocations = [allocation.ids for _, _, _, allocation in made.all_allocations()]
            assert sum(map(len, allocations)) == len(frozenset().union(*allocations))
        for uid in alive:
            made.release(uid)
        assert made.free(R) == made.resources[R].healthy


# --- the checkpoint -------------------------------------------------------------------------------------------


FROM_GO = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"44d7cad7ea442088c23eca0633ae4248","ContainerName":"app",'
    '"ResourceName":"example.com/resource","DeviceIDs":{"-1":["Dev-2"]},'
    '"AllocResp":"EhgKCi90bXAvRGV2LTISCi90bXAvRGV2LTI="}],'
    '"RegisteredDevices":{"example.com/resource":["Dev-1","Dev-2"]}},"Checksum":2885519300}'
)
"""As a Go kubelet left it that ran Kubernetes' sample device plugin."""


def loaded(raw: bytes) -> tuple[DeviceAllocations, dict[str, list[str]]]:
    data = decode(raw, read_allocate_response)
    return allocations_of(data, read_allocate_response), registered_of(data)


def test_what_the_go_kubelet_wrote_is_read_and_written_back_the_same() -> None:
    allocations, registered = loaded(FROM_GO.encode())
    assert registered == {"example.com/resource": ["Dev-1", "Dev-2"]}
    allocation = allocations["44d7cad7ea442088c23eca0633ae4248"]["app"]["example.com/resource"]
    assert allocation.ids == {"Dev-2"}
    assert allocation.response is not None
    assert [(each.host_path, each.container_path) for each in allocation.response.mounts] == [
        ("/tmp/Dev-2", "/tmp/Dev-2")
    ]

    state = DeviceState()
    state.allocations = allocations
    devices = {name: a_device(name) for name in ("Dev-1", "Dev-2")}
    state.resources["example.com/resource"] = Resource(devices=devices, running=True)
    assert json.loads(encode(data_of(state))) == json.loads(FROM_GO)


def test_places_and_nothing_at_all() -> None:
    state = DeviceState()
    assert loaded(encode(data_of(state))) == ({}, {})
    state.resources["x.com/y"] = Resource(devices={"a": a_device("a", numa=(1,)), "b": a_device("b", numa=(0, 1))})
    state.allocate("uid", "app", "x.com/y", ["a", "b"])
    assert loaded(encode(data_of(state))) == ({}, {"x.com/y": ["a", "b"]}), "reserved only: not the container's yet"
    state.allocations["uid"]["app"]["x.com/y"].response = AllocateResponse(wire=b"")
    written = encode(data_of(state))
    data = json.loads(written)["Data"]
    assert data["PodDeviceEntries"][0]["DeviceIDs"] == {"0": ["b"], "1": ["a", "b"]}
    assert loaded(written)[0]["uid"]["app"]["x.com/y"].ids == {"a", "b"}
