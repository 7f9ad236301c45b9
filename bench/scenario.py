"""What each subject is put through, and the figures that come out. All times in seconds, memory in bytes.

Subjects take turns, round by round. A round is the same for all: single pods spaced out, restarts after a crash, a
burst, then rest with everything running, a restart of the agent, and deletion; in the last one pykubelet fills a node.
The floor's burst is repeated at several widths.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.audit import audit_cpu
from bench.measure import Ends, TookTooLong, busy, first_processes, own_cpu, pss, until
from bench.pods import CRASH, STAY
from bench.stage import Stage
from bench.subjects import NODE, WIDTHS, Agent, Floor, Subject

NS = 1e9
RESIDENTS = 7
BURST = 50
FULL = 110
SETTLE = 2.0
"""Seconds after a burst that still count as its work: statuses are written and the runtime is looked at again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much is measured."""

    rounds: int = 3
    singles: int = 8
    crashes: int = 3
    idle: float = 20.0
    full: bool = True


QUICK = Sizes(rounds=1, singles=4, crashes=2, idle=10.0)


@dataclass(slots=True)
class Figures:
    """What was measured of one subject: the value that counts, and every sample."""

    values: dict[str, float] = field(default_factory=dict)
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, sample: float) -> None:
        """One more sample; the value is their median."""
        self.samples.setdefault(name, []).append(sample)
        self.values[name] = statistics.median(self.samples[name])

    def keep_best(self, name: str, variants: Sequence[str]) -> str:
        """Of `name…@variant`, measured in several variants, take those of the variant with the least `name`."""
        best = min(variants, key=lambda variant: self.values.get(f"{name}@{variant}", float("inf")))
        for key, value in list(self.values.items()):
            figure, _, variant = key.partition("@")
            if variant == best and figure.startswith(name):
                self.values[figure] = value
        return best

    def as_json(self) -> dict[str, Any]:
        return {"values": self.values, "samples": self.samples}


class Run:
    """One subject on the stage, round after round."""

    def __init__(self, subject: Subject, stage: Stage, sizes: Sizes) -> None:
        self.subject = subject
        self._stage = stage
        self._sizes = sizes
        self._pause = random.Random(1)
        self._residents: list[str] = []
        self._round = 0
        self.figures = Figures()

    async def round(self, number: int) -> None:
        self._round = number
        await self.subject.start()
        try:
            await self._warm_up()
            await self._singles()
            if isinstance(self.subject, Floor):
                for width in WIDTHS:
                    self.subject.go_by(width)
                    await self._delete(await self._burst(f"@{width}"), f"@{width}")
                return
            await self._crashes()
            names = await self._burst()
            await self._rest()
            await self._restart()
            if self._sizes.full and self.subject.name == "pykubelet" and number == self._sizes.rounds - 1:
                await self._full_node()
            await self._delete(names)
        finally:
            await self.subject.stop()
            if isinstance(self.subject, Agent):
                await self.subject.remove(self._residents)  # their manifests: the next round begins without

    def _name(self, kind: str, number: int | str = "") -> str:
        """Of a pod: logs of earlier rounds are still there."""
        return f"r{self._round}-{kind}{number}"

    async def _warm_up(self) -> None:
        """The first pod pays for cold caches; and an agent may need a while before it takes pods."""
        began = time.time_ns()
        name = self._name("warm")
        await self.subject.add({name: STAY})
        self.figures.add("ready", (await self.subject.logs.first(name, within=30) - began) / NS)
        await self._gone([name])

    async def _singles(self) -> None:
        names = [self._name("single", number) for number in range(self._sizes.singles)]
        for name in names:
            # An uneven rhythm, so that no agent's polling happens to fit it.
            await asyncio.sleep(self._pause.uniform(0.4, 1.0))
            asked = await self.subject.add({name: STAY})
            self.figures.add("single", (await self.subject.logs.first(name) - asked) / NS)
        self._residents = names[:RESIDENTS]
        if len(names) < RESIDENTS:
            rest = [self._name("resident", number) for number in range(RESIDENTS - len(names))]
            await self.subject.add(dict.fromkeys(rest, STAY))
            await self.subject.logs.all_first(rest)
            self._residents += rest
        await self._gone(names[RESIDENTS:])

    async def _crashes(self) -> None:
        names = [self._name("crash", number) for number in range(self._sizes.crashes)]
        for name in names:
            await asyncio.sleep(self._pause.uniform(0.1, 0.6))
            await self.subject.add({name: CRASH})
            again = await self.subject.logs.first(name, restart=1)
            self.figures.add("crash", (again - self.subject.logs.stamps(name)[-1]) / NS)
        await self.subject.remove(names)  # they may be between two runs: no process to wait for
        await self._no_sandboxes(names)

    async def _burst(self, variant: str = "") -> list[str]:
        names = [self._name(f"burst{variant.removeprefix('@')}-", number) for number in range(BURST)]
        await asyncio.sleep(3.0)  # what came before has come to rest
        own, whole = self._cpu(), busy()
        asked = time.time_ns()
        await self.subject.add(dict.fromkeys(names, STAY))
        took = sorted((stamp - asked) / NS for stamp in await self.subject.logs.all_first(names))
        self.figures.add(f"burst_first{variant}", took[0])
        self.figures.add(f"burst_median{variant}", statistics.median(took))
        self.figures.add(f"burst{variant}", took[-1])
        pods = self.figures.samples.setdefault(f"burst_pods{variant}", [])
        pods += took
        self.figures.values[f"burst_p99{variant}"] = statistics.quantiles(pods, n=100, method="inclusive")[-1]
        await asyncio.sleep(SETTLE)
        self.figures.add(f"burst_cpu{variant}", self._cpu() - own)
        self.figures.add(f"burst_busy{variant}", busy() - whole)
        return names

    async def _delete(self, names: Sequence[str], variant: str = "") -> None:
        await asyncio.sleep(1.0)
        ends = Ends(await self._processes(names))
        asked = time.time_ns()
        await self.subject.remove(names)
        self.figures.add(f"delete{variant}", (await asyncio.to_thread(ends.wait, 60.0) - asked) / NS)

    async def _rest(self) -> None:
        """Nothing happens to the pods: what the agent then uses is its price."""
        pid = self._agent()
        await asyncio.sleep(5.0)
        before, began = own_cpu(pid), time.monotonic()
        await asyncio.sleep(self._sizes.idle)
        self.figures.add("idle_cpu", (own_cpu(pid) - before) / (time.monotonic() - began))
        self.figures.add("memory", pss(pid))

    async def _restart(self) -> None:
        """From the start of the process until it acts: a pod that is new by then runs, the others are as before."""
        await self.subject.stop()
        before = first_processes(self._stage.run)
        late = self._name("late")
        await self.subject.add({late: STAY})
        began = time.time_ns()
        await self.subject.start()
        self.figures.add("adopt", (await self.subject.logs.first(late) - began) / NS)
        await asyncio.sleep(3.0)
        after = first_processes(self._stage.run)
        if lost := {id for id, pid in before.items() if after.get(id) != pid}:
            raise TookTooLong(f"{len(lost)} containers did not survive the restart of {self.subject.name}")
        await self._gone([late])

    async def _full_node(self) -> None:
        """As many pods as a node takes by default: they come up, stay, and cost little each."""
        pid = self._agent()
        await asyncio.sleep(3.0)
        small = pss(pid)
        count = FULL - RESIDENTS - BURST
        names = [self._name("full", number) for number in range(count)]
        asked = time.time_ns()
        await self.subject.add(dict.fromkeys(names, STAY))
        self.figures.add("full", (max(await self.subject.logs.all_first(names, within=120)) - asked) / NS)
        await asyncio.sleep(5.0)
        self.figures.add("full_memory_per_pod", (pss(pid) - small) / count)
        before, began = own_cpu(pid), time.monotonic()
        async with self._stage.client() as cri:
            first = {record.id for record in await cri.list_containers(running_only=True)}
            self.figures.add("audit_cpu", await audit_cpu(cri))
            await asyncio.sleep(self._sizes.idle / 2)
            held = {record.id for record in await cri.list_containers(running_only=True)}
        self.figures.add("full_idle_cpu", (own_cpu(pid) - before) / (time.monotonic() - began))
        self.figures.add("full_held", len(first & held))
        await self._gone(names)

    async def _gone(self, names: Sequence[str]) -> None:
        await self.subject.remove(names)
        await self._no_sandboxes(names)

    async def _no_sandboxes(self, names: Sequence[str], within: float = 60.0) -> None:
        wanted, deadline = set(names), time.monotonic() + within
        async with self._stage.client() as cri:
            while left := {_plain(box.pod_name) for box in await cri.list_pod_sandboxes(ready_only=True)} & wanted:
                if time.monotonic() > deadline:
                    raise TookTooLong(f"{len(left)} pods are not gone after {within:g} s, e.g. {min(left)}")
                await asyncio.sleep(0.1)

    async def _processes(self, names: Sequence[str]) -> list[int]:
        """First processes of these pods: pause and container. Waits until the runtime has them all on file."""
        wanted = set(names)
        async with self._stage.client() as cri:
            sandboxes = [box for box in await cri.list_pod_sandboxes(ready_only=True) if _plain(box.pod_name) in wanted]
            inside = {box.id for box in sandboxes}
            containers = [c for c in await cri.list_containers(running_only=True) if c.sandbox_id in inside]
        ids = inside | {container.id for container in containers}
        if len(ids) != 2 * len(wanted):
            raise TookTooLong(f"{len(ids)} of {2 * len(wanted)} sandboxes and containers run, e.g. of {names[0]}")
        await until("processes on file", lambda: ids <= first_processes(self._stage.run).keys())
        files = first_processes(self._stage.run)
        return [files[id] for id in ids]

    def _agent(self) -> int:
        pid = self.subject.pid
        assert pid is not None
        return pid

    def _cpu(self) -> float:
        return time.process_time() if self.subject.pid is None else own_cpu(self.subject.pid)


def _plain(name: str) -> str:
    """A pod's name without the node's."""
    return name.removesuffix(f"-{NODE}")
