"""The checkpoint of devices is upstream's file: one written by the Go kubelet 1.36.4 is read, ours is of its shape."""

from __future__ import annotations

import json

from pykubelet.clients.plugins.devices import read_handed
from pykubelet.clients.plugins.port import Handed
from pykubelet.cm.device_state import DeviceBooks, Held, Resource, data_of, decode, encode, held_of, registered_of
from tests.fakes.fake_devices import a_device

FROM_GO = (
    '{"Data":{"PodDeviceEntries":[{"PodUID":"44d7cad7ea442088c23eca0633ae4248","ContainerName":"app",'
    '"ResourceName":"example.com/resource","DeviceIDs":{"-1":["Dev-2"]},'
    '"AllocResp":"EhgKCi90bXAvRGV2LTISCi90bXAvRGV2LTI="}],'
    '"RegisteredDevices":{"example.com/resource":["Dev-1","Dev-2"]}},"Checksum":2885519300}'
)
"""As a Go kubelet left it that ran Kubernetes' sample device plugin."""


def loaded(raw: bytes) -> tuple[Held, dict[str, list[str]]]:
    data = decode(raw, read_handed)
    return held_of(data, read_handed), registered_of(data)


def test_what_the_go_kubelet_wrote_is_read_and_written_back_the_same() -> None:
    held, registered = loaded(FROM_GO.encode())
    assert registered == {"example.com/resource": ["Dev-1", "Dev-2"]}
    grant = held["44d7cad7ea442088c23eca0633ae4248"]["app"]["example.com/resource"]
    assert grant.ids == {"Dev-2"}
    assert grant.handed is not None
    assert [(each.host_path, each.container_path) for each in grant.handed.mounts] == [("/tmp/Dev-2", "/tmp/Dev-2")]

    books = DeviceBooks()
    books.held = held
    devices = {name: a_device(name) for name in ("Dev-1", "Dev-2")}
    books.resources["example.com/resource"] = Resource(devices=devices, running=True)
    assert json.loads(encode(data_of(books))) == json.loads(FROM_GO)


def test_places_and_nothing_at_all() -> None:
    books = DeviceBooks()
    assert loaded(encode(data_of(books))) == ({}, {})
    books.resources["x.com/y"] = Resource(devices={"a": a_device("a", numa=(1,)), "b": a_device("b", numa=(0, 1))})
    books.give("uid", "app", "x.com/y", ["a", "b"])
    assert loaded(encode(data_of(books))) == ({}, {"x.com/y": ["a", "b"]}), "reserved only: not the container's yet"
    books.held["uid"]["app"]["x.com/y"].handed = Handed(wire=b"")
    written = encode(data_of(books))
    data = json.loads(written)["Data"]
    assert data["PodDeviceEntries"][0]["DeviceIDs"] == {"0": ["b"], "1": ["a", "b"]}
    assert loaded(written)[0]["uid"]["app"]["x.com/y"].ids == {"a", "b"}
