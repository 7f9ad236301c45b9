"""The API server restarted again and again under 300 watched objects, behind a wire that drops, delays and reorders.

A process follows the objects of 100 pods as the agent does, with its limit of requests a second, over a rough wire to
the real control plane, whose objects change a thousand times a minute. After each restart every object must be as the
server has it; how long that takes, how many requests and connections a second it costs at most, is kept in
bench/restarts.json: `python -m bench.restarts [RESTARTS] [--add]` (`--add` to what other runs of this commit found).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from bench.report import DOCUMENT, commit, update_document
from bench.watches import BURST, CHANGES_PER_MINUTE, CLOCK, NAMESPACE, QPS, a_pod, client_of, objects_of, prepare
from tests.bed.cluster import Cluster, running_cluster
from tests.bed.rough_wire import RoughWire, rough_wire

from pykubelet.api.types import ConfigMap, Secret
from pykubelet.clients.kube.client import RestKubeClient
from pykubelet.clients.kube.connections import ServerConnections
from pykubelet.clients.kube.kubeconfig import load_kubeconfig
from pykubelet.clients.kube.references import ObjectUnavailable, ReferenceWatcher
from pykubelet.clients.kube.transport import RequestMetrics, Transport
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet, running
from pykubelet.model.errors import ApiError

PODS, RESTARTS = 100, 25
MOST_DELAY, DROPPED = 0.05, 0.3
CURRENT_WITHIN = 60.0
MOST_CONNECTS = 20
"""In a second, while the server is away or comes back."""
RESULTS = Path(__file__).parent / "restarts.json"
MARKS = ("<!-- restarts:begin -->", "<!-- restarts:end -->")
State = dict[str, str]
"""Object to the label of its last change."""


class Restart(NamedTuple):
    went: float
    back: float
    done: float
    """Everything was current, or was given up."""
    lost: int


class RequestTimes(RequestMetrics):
    """When requests were sent."""

    def __init__(self) -> None:
        super().__init__(Registry())
        self.times: list[float] = []

    def waited(self, method: str, host: str, seconds: float) -> None:
        self.times.append(CLOCK.monotonic())


# --- the process that follows ------------------------------------------------------------------------------------


async def follow(kubeconfig: Path, pods: int) -> None:
    """Answers `state` with what it knows and `end` with when it asked."""
    requests = RequestTimes()
    server = ServerConnections(load_kubeconfig(kubeconfig), clock=CLOCK)
    client = RestKubeClient(Transport(server, agent="bench", qps=QPS, burst=BURST, metrics=requests))
    watcher = ReferenceWatcher(kube=client, clock=CLOCK)
    async with running(watcher):
        for number in range(pods):
            watcher.register(a_pod(number))
        while (await asyncio.to_thread(sys.stdin.readline)).strip() == "state":
            print(json.dumps(await known(watcher, pods)), flush=True)
    await client.close()
    print(json.dumps(requests.times), flush=True)


async def known(watcher: ReferenceWatcher, pods: int) -> State:
    found = {}
    for obj in (obj for number in range(pods) for obj in objects_of(number)):
        name = obj.metadata.name or ""
        with suppress(ObjectUnavailable):
            read = watcher.config_map if isinstance(obj, ConfigMap) else watcher.secret
            now = await read(NAMESPACE, name)
            found[name] = now.metadata.labels.get("change", "") if now is not None else "absent"
    return found


class Follower:
    """That process, from outside."""

    def __init__(self, kubeconfig: Path, pods: int) -> None:
        command = [sys.executable, "-m", "bench.restarts", "follow", str(kubeconfig), str(pods)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


# --- the other side ----------------------------------------------------------------------------------------------


class Changes:
    """Changes objects all the time, at the given rate, as far as the server takes them."""

    def __init__(self, kubeconfig: Path, pods: int, source: random.Random) -> None:
        self._client = client_of(kubeconfig)
        self._pods = pods
        self._source = source
        self._going = asyncio.Event()
        self._idle = asyncio.Event()
        self.made = 0

    async def run(self) -> None:
        for number in range(10**9):
            self._idle.set()
            await self._going.wait()
            self._idle.clear()
            obj = objects_of(self._source.randrange(self._pods))[number % 3]
            obj.metadata.labels = {"change": f"{os.getpid()}-{number}"}
            with suppress(ApiError):
                await self._client.update(obj)
                self.made += 1
            await CLOCK.sleep(60 / CHANGES_PER_MINUTE)

    def go_on(self) -> None:
        self._going.set()

    async def pause(self) -> State:
        """Stop changing; what the server has now."""
        self._going.clear()
        await self._idle.wait()
        while True:
            with suppress(ApiError):  # the server may not be ready for everything yet
                return {**await self._state(ConfigMap), **await self._state(Secret)}
            await CLOCK.sleep(0.2)

    async def _state(self, kind: type[ConfigMap] | type[Secret]) -> State:
        wanted = {obj.metadata.name for number in range(self._pods) for obj in objects_of(number)}
        page = await self._client.list(kind, NAMESPACE)
        return {
            obj.metadata.name or "": obj.metadata.labels.get("change", "")
            for obj in page.items
            if obj.metadata.name in wanted
        }

    async def close(self) -> None:
        await self._client.close()


async def restarts(cluster: Cluster, pods: int, count: int) -> dict[str, Any]:
    source = random.Random(7)
    await prepare(cluster.admin_kubeconfig, pods)
    changes = Changes(cluster.admin_kubeconfig, pods, source)
    async with rough_wire(cluster.port, clock=CLOCK, source=source) as wire, TaskSet("changes") as tasks:
        tasks.spawn(changes.run(), name="changes")
        follower = Follower(cluster.kubeconfig("follower", ["system:masters"], port=wire.port), pods)
        try:
            if lacks := await lacking(follower, await changes.pause()):
                raise RuntimeError(f"not even the first time: {lacks[:10]} of {len(lacks)}")
            wire.delay = MOST_DELAY
            times = [await one_restart(cluster, wire, changes, follower, source) for _ in range(count)]
            sent = await asyncio.to_thread(follower.ask, "end")
        finally:
            follower.kill()
    await changes.close()
    return summary(times, sent, wire.opened, changes.made)


async def one_restart(
    cluster: Cluster, wire: RoughWire, changes: Changes, follower: Follower, source: random.Random
) -> Restart:
    changes.go_on()
    await CLOCK.sleep(source.uniform(1.0, 3.0))
    wire.drop(DROPPED)
    await CLOCK.sleep(source.uniform(0.5, 2.0))
    went = CLOCK.monotonic()
    await asyncio.to_thread(cluster.stop_apiserver)
    await CLOCK.sleep(source.uniform(0.0, 3.0))
    await asyncio.to_thread(cluster.start_apiserver)
    back = CLOCK.monotonic()
    await CLOCK.sleep(source.uniform(0.5, 2.0))
    lost = await lacking(follower, await changes.pause())
    return Restart(went, back, CLOCK.monotonic(), len(lost))


async def lacking(follower: Follower, wanted: State) -> list[str]:
    """Objects that the follower does not have as they are, however long it is waited for them."""
    lacks = list(wanted)
    with suppress(TimeoutError):
        async with asyncio.timeout(CURRENT_WITHIN):
            while True:
                has = await asyncio.to_thread(follower.ask, "state")
                lacks = [name for name, change in wanted.items() if has.get(name) != change]
                if not lacks:
                    break
                await CLOCK.sleep(0.1)
    return lacks


def summary(times: list[Restart], sent: list[float], opened: list[float], changes: int) -> dict[str, Any]:
    return {
        "restarts": len(times),
        "changes": changes,
        "lost": sum(each.lost for each in times),
        "away_s": [round(each.back - each.went, 1) for each in times],
        "current_after_s": [round(each.done - each.back, 1) for each in times],
        "requests_after": [sum(1 for moment in sent if each.went <= moment < each.done) for each in times],
        "most_requests_in_a_second": most(sent, times),
        "most_connects_in_a_second": most(opened, times),
    }


def most(found: Iterable[float], times: list[Restart]) -> list[int]:
    """By restart, the most that fell into one second from when the server went away."""
    moments = sorted(found)
    result = []
    for restart in times:
        inside = moments[bisect_left(moments, restart.went) : bisect_left(moments, restart.done)]
        result.append(max((bisect_left(inside, each + 1.0) - at for at, each in enumerate(inside)), default=0))
    return result


def table(report: dict[str, Any]) -> str:
    runs = report["runs"]

    def together(name: str) -> list[float]:
        return [value for run in runs for value in run[name]]

    rows = [
        ("restarts", f"{sum(run['restarts'] for run in runs)}"),
        ("changes meanwhile", f"{sum(run['changes'] for run in runs)}"),
        ("objects not as the server has them", f"{sum(run['lost'] for run in runs)}"),
        ("all current after the server was ready, median / worst", spread(together("current_after_s"), " s")),
        ("requests for each restart, median / worst", spread(together("requests_after"))),
        ("requests in the worst second, median / worst", spread(together("most_requests_in_a_second"))),
        ("connections asked for in the worst second, median / worst", spread(together("most_connects_in_a_second"))),
    ]
    lines = [f"{report['objects']} objects, commit {report['commit']}:", "", "| figure | |", "|---|---|"]
    return "\n".join([*lines, *(f"| {title} | {value} |" for title, value in rows)])


def spread(values: list[float], unit: str = "") -> str:
    return f"{statistics.median(values):g}{unit} / {max(values):g}{unit}"


def main(words: list[str]) -> None:
    if words[:1] == ["follow"]:
        uvloop.run(follow(Path(words[1]), int(words[2])))
        return
    count = next((int(each) for each in words if each.isdigit()), RESTARTS)
    measured = commit()
    with running_cluster(new_etcd=True) as cluster:
        run = uvloop.run(restarts(cluster, PODS, count))
    before = json.loads(RESULTS.read_text())["runs"] if "--add" in words and RESULTS.exists() else []
    report = {"commit": measured, "objects": 3 * PODS, "runs": [*before, run]}
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    update_document(table(report), DOCUMENT, MARKS)
    print(json.dumps(run))
    if run["lost"]:
        sys.exit(f"{run['lost']} objects were not as the server has them")
    if max(run["most_requests_in_a_second"]) > QPS + BURST or max(run["most_connects_in_a_second"]) > MOST_CONNECTS:
        sys.exit(f"a stampede: more than {QPS + BURST:g} requests or {MOST_CONNECTS} connections in a second")


if __name__ == "__main__":
    main(sys.argv[1:])
