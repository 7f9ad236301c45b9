"""The checkpoint of devices is upstream's file: one written by the Go kubelet 1.36.4 is read, ours is of its shape."""

from __future__ import annotations

import json

from pykubelet.clients.plugins.devices import read_allocate_response
from pykubelet.clients.plugins.port import AllocateResponse
from pykubelet.cm.device_state import (
    DeviceAllocations,
    DeviceState,
    Resource,
    allocations_of,
    data_of,
    decode,
    encode,
    registered_of,
)
from tests.fakes.fake_devices import a_device

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
    held, registered = loaded(FROM_GO.encode())
    assert registered == {"example.com/resource": ["Dev-1", "Dev-2"]}
    allocation = held["44d7cad7ea442088c23eca0633ae4248"]["app"]["example.com/resource"]
    assert allocation.ids == {"Dev-2"}
    assert allocation.response is not None
    assert [(each.host_path, each.container_path) for each in allocation.response.mounts] == [
        ("/tmp/Dev-2", "/tmp/Dev-2")
    ]

    state = DeviceState()
    state.allocations = held
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
