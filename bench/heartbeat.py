"""How long a lease takes while the wire to the API server is full: on the connections of all clients, and on its own.

A wire of 2 Mbit/s between the client and a real API server; several lists of large objects are read over it all the
time while the node's lease is renewed every second. `python -m bench.heartbeat [SECONDS]` prints the figures and keeps
them in bench/heartbeat.json.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from contextlib import suppress
from pathlib import Path

import uvloop
from bench.report import commit
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.rough_wire import rough_wire

from pykubelet.api.types import ConfigMap, Lease, LeaseSpec, ObjectMeta
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.transport import Transport
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import ApiError

SECONDS = 40.0
RATE = 250_000.0
OBJECTS, OBJECT_BYTES, LISTS = 40, 500_000, 4
NAMESPACE = "default"
RESULTS = Path(__file__).parent / "heartbeat.json"
CLOCK = SystemClock()
WAYS = ("shared", "own")


async def measure(cluster: Cluster, seconds: float) -> dict[str, dict[str, float]]:
    admin = connected(cluster.admin_kubeconfig)
    await fill(client_of(admin))
    await admin.close()
    found = {}
    for way in WAYS:
        async with rough_wire(cluster.port, clock=CLOCK, source=random.Random(1)) as wire:
            config = cluster.kubeconfig(f"heart-{way}", ["system:masters"], port=wire.port)
            lists = connected(config)
            beats = lists if way == "shared" else connected(config)
            wire.rate = RATE
            found[way] = await renewals(client_of(lists), client_of(beats), way, seconds)
            for each in {lists, beats}:
                await each.close()
    return found


def connected(kubeconfig: Path) -> ServerConnections:
    return ServerConnections(load_kubeconfig(kubeconfig), clock=CLOCK)


def client_of(server: ServerConnections) -> RestKubeClient:
    return RestKubeClient(Transport(server, agent="bench", qps=-1))


async def fill(client: RestKubeClient) -> None:
    for number in range(OBJECTS):
        metadata = ObjectMeta(name=f"large-{number}", namespace=NAMESPACE)
        with suppress(ApiError):
            await client.create(ConfigMap(metadata=metadata, data={"text": "x" * OBJECT_BYTES}))


async def renewals(lists: RestKubeClient, beats: RestKubeClient, name: str, seconds: float) -> dict[str, float]:
    """Milliseconds that renewals of a lease take while lists are read."""
    lease = await beats.create(
        Lease(metadata=ObjectMeta(name=f"heart-{name}", namespace=NAMESPACE), spec=LeaseSpec(holder_identity="bench"))
    )
    times: list[float] = []

    async def read() -> None:
        while True:
            with suppress(ApiError):  # too slow for its own deadline; the wire stays full
                await lists.list(ConfigMap, NAMESPACE)

    async with TaskSet("lists") as tasks:
        for number in range(LISTS):
            tasks.spawn(read(), name=f"list {number}")
        await CLOCK.sleep(5.0)
        ends = CLOCK.monotonic() + seconds
        while CLOCK.monotonic() < ends:
            began = CLOCK.monotonic()
            with suppress(ApiError):  # counts with the time it took
                lease = await beats.update(lease)
            times.append(1000 * (CLOCK.monotonic() - began))
            await CLOCK.sleep(1.0)
    return {"renewals": len(times), "median_ms": round(statistics.median(times)), "worst_ms": round(max(times))}


def main(words: list[str]) -> None:
    seconds = float(words[0]) if words else SECONDS
    measured = commit()
    with running_cluster() as cluster:
        found = uvloop.run(measure(cluster, seconds))
    report = {"commit": measured, "bytes_a_second": RATE, "lists_at_once": LISTS, "results": found}
    print(json.dumps(report, indent=2))
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
