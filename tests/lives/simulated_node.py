"""Plays a history on a whole node of fakes, tells the model what happens, and looks whether all is well in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pykubelet.api.types import ContainerState as ApiState
from pykubelet.api.types import ContainerStatus, Pod, ResourceRequirements
from pykubelet.clients.kube.transport import error_of
from pykubelet.eviction.manager import EvictionOrder
from pykubelet.eviction.ranking import EvictionText
from pykubelet.hollow.cri_values import Behaviour, Exec, MemoryContainer
from pykubelet.model.errors import CriError, Expired
from pykubelet.model.pod import is_mirror, is_terminal_phase, uid_of
from pykubelet.model.runtime_status import ContainerState, ExecResult, SandboxState
from pykubelet.node.shutdown import REFUSED, two_periods
from pykubelet.sync.evict import PodEvictor
from tests.harness import IMAGE
from tests.invariants import broken_invariants
from tests.lives.held import mentions
from tests.lives.history import FINALIZER, HERE, History, Spec, build
from tests.lives.model import Model, all_statuses, tells_end
from tests.lives.parts import LaggingKube, WatchedCri
from tests.lives.values import PodModel
from tests.scenarios.cluster_node import ClusterHarness

QUIET = 25.0
"""Seconds after the last event in which statuses must reach the API server and nothing is late."""
SETTLES = 75.0
"""Seconds after the last grace in which a deleted pod must leave no trace: containers that died long ago are collected
once a minute."""
READY_WITHIN = 12.0
"""Seconds after its start in which a container whose probes succeed is told to be ready."""
FORGETS = 65.0
"""Seconds after which nothing in memory mentions a pod that is gone: the slowest sweep runs once a minute."""
FLAGS = ("--node-status-update-frequency=1h", "--eviction-hard=memory.available<1Mi")


class SimulatedNode:
    def __init__(self, folder: Path, *, deep: bool) -> None:
        self.deep = deep
        """Look through the agent's whole memory in the end."""
        self.harness = ClusterHarness(folder, *FLAGS)
        self.api = self.harness.kube = LaggingKube(self.harness.clock)
        self.cri = self.harness.cri = WatchedCri(self.harness.clock, images=[IMAGE, *HERE], write_logs=True)
        self.cri.add_to_registry("pulled:1", takes=2.0)
        self.cri.on_exec(self._exec)
        self.model = Model(self.harness.clock.monotonic)
        self.cri.model = self.model
        self.model.refuses = self._refuses
        self.api.store.listeners.append(self._stored)
        self.running = False
        self.static: dict[str, Pod] = {}
        self._serial = 0
        self._helpers: set[asyncio.Task[Any]] = set()

    # --- what the containers' programs do -------------------------------------------------------

    def _exec(self, container: MemoryContainer, command: Sequence[str]) -> Exec:
        program = self.model.pods[container.sandbox.pod_uid].program(container.name)
        if command[0] in ("pre", "post"):
            self.model.hooked(container, command[0])
            return Exec(takes=program[command[0]])
        well = (container.sandbox.pod_uid, container.name) not in self.model.unwell
        return Exec(result=ExecResult(exit_code=0 if well else 1))

    def _program(self, uid: str, spec: Spec) -> None:
        for program in spec["programs"]:
            name, stops = program["name"], program["stops"]
            exits = program["exits"] or [[None, 0]]
            for attempt, (after, code) in reversed(list(enumerate(exits))):
                last = attempt == len(exits) - 1
                behaviour = Behaviour(exits_after=after, exit_code=code, stops_after=stops)
                self.cri.program(behaviour, name=name, pod=uid, attempt=None if last else attempt)

    def _refuses(self, uid: str) -> bool:
        status = self.harness.node.table.reported_status(uid) if self.running else None
        return status is not None and (status.phase, status.reason) == ("Failed", REFUSED)

    def _stored(self, before: Any, after: Any) -> None:
        if isinstance(after or before, Pod):
            self.model.api_changed(before, after)

    # --- the agent ------------------------------------------------------------------------------

    async def start(self) -> None:
        if self.running:
            return
        self.running = True
        self.model.calm_down(15)
        self.model.agent_started()
        for pod in self.model.pods.values():
            if pod.gone and any(run.ended is None for runs in pod.runs.values() for run in runs):
                pod.orphaned = True
                self.model.wish(pod.uid, 1, ends_pod=True)
        await self.harness.start()
        # Explaining has tests of its own and would take a quarter of the time.
        self.harness.node.sync.statuses.explained = lambda pod, status: status

    async def stop(self, *, hard: bool) -> None:
        """`hard`: none of its last words is heard."""
        if not self.running:
            return
        self.running = False
        self.model.goes_down(begins=False)
        for task in list(self._helpers):
            task.cancel()
        was = self.api.down, self.cri.down
        if hard:
            self.api.down = self.cri.down = True
        await self.harness.kill()
        self.api.down, self.cri.down = was
        self.model.disturb()

    # --- events ---------------------------------------------------------------------------------

    async def play(self, history: History) -> None:
        await self.start()
        for at, what, *parameters in history:
            await self.harness.clock.sleep(at - self.harness.clock.monotonic())
            if self.model.violations:
                return
            act = getattr(self, "do_" + what.replace(" ", "_"))
            await act(*parameters)
            self._check_records()

    async def settle(self) -> None:
        """All trouble is over: statuses must be right, and what is deleted must leave no trace."""
        self.api.start()
        self.cri.restore()
        self.model.calm_down(40)
        self.api._faults.clear()
        self.cri._faults = [fault for fault in self.cri._faults if fault.verb == "*"]
        self.model.unwell.clear()
        await self.do_shutdown_up()
        await self.start()
        now = self.harness.clock.monotonic()
        excused = max((end for _, end in self.model.disturbed), default=now)
        await self.harness.clock.sleep(max(QUIET, excused + 10.0 - now))
        await self._until_none(self.untold, 20.0)
        self._check_records()
        self.model.check_starts()
        longest = 0
        for name in list(self.static):
            longest = max(longest, self.model.pods[uid_of(self.static[name])].grace)
            self._remove_manifest(name)
        for pod in self._api_pods():
            await self._delete(pod, None)
            longest = max(longest, self.model.pods[uid_of(pod)].grace)
        if not self.model.violations:
            await self._until_none(self.left_over, longest + SETTLES)
        if self.deep and not self.model.violations:
            await self.harness.clock.sleep(FORGETS)
            if found := mentions(self.harness.node, list(self.model.pods)):
                self.model.fail(f"remembered: {'; '.join(found[:5])}")

    def _check_records(self) -> None:
        if self.running:
            for text in broken_invariants(self.harness.node.table):
                self.model.fail(f"record of {text}")

    async def _until_none(self, look: Callable[[], list[str]], within: float) -> None:
        end = self.harness.clock.monotonic() + within
        while (found := look()) and not self.model.violations:
            if self.harness.clock.monotonic() > end:
                self.model.fail("; ".join(found))
                return
            await self.harness.clock.sleep(1.0)

    async def do_add(self, name: str, spec: Spec) -> None:
        if self._find(name) is not None:
            return
        self._serial += 1
        uid = f"uid-{name}-{self._serial}"
        self.model.pods[uid] = PodModel(uid, spec, spec["grace"], self.harness.clock.monotonic())
        self._program(uid, spec)
        if spec["static"]:
            self.static[name] = self.harness.run(build(name, uid, spec))
        else:
            self.api.add(build(name, uid, spec))

    async def do_delete(self, name: str, grace: int | None) -> None:
        pod = self._find(name)
        if name in self.static:
            self._remove_manifest(name)
        elif pod is not None:
            await self._delete(pod, grace)

    def _remove_manifest(self, name: str) -> None:
        uid = uid_of(self.static.pop(name))
        pod = self.model.pods[uid]
        pod.gone = True
        pod.orphaned = not self.running or self.harness.node.table.worker(uid) is None
        self.model.wish(uid, 1 if pod.orphaned else pod.grace, ends_pod=True)
        self.harness.remove(name)

    async def _delete(self, pod: Pod, grace: int | None) -> None:
        """As a user would; what holds a pod back besides the node lets go of it at the same time."""
        model, uid = self.model.pods[uid_of(pod)], uid_of(pod)
        own = model.grace if grace is None else grace
        if own == 0 and not pod.metadata.finalizers:
            # The agent never sees the 0: the object is gone, and the pod's last known grace counts.
            own = model.grace if model.deletion_grace is None else model.deletion_grace
            if not self.running or self.harness.node.table.worker(uid) is None:
                model.orphaned, own = True, 1  # only the runtime can tell of it
        model.deletion_grace = own if model.deletion_grace is None else min(own, model.deletion_grace)
        self.model.wish(uid, own, ends_pod=True)
        with self._as_user():
            await self.api.delete(Pod, pod.metadata.name or "", "default", grace_seconds=grace)

    async def do_crash(self, name: str, container: str, code: int) -> None:
        pod = self._find(name)
        if pod is not None:
            for found in self.cri.containers.values():
                is_it = (found.sandbox.pod_uid, found.name) == (uid_of(pod), container)
                if is_it and found.state is ContainerState.RUNNING:
                    self.cri._end(found, code, "")

    async def do_lose_container(self, name: str, container: str) -> None:
        """The runtime cannot tell what became of it; upstream kills such a container and starts another."""
        pod = self._find(name)
        last = self.model.pods[uid_of(pod)].last(container) if pod is not None else None
        if pod is not None and last is not None and last.container.state is ContainerState.RUNNING:
            last.lost = True
            self.model.wish(uid_of(pod), self.model.pods[uid_of(pod)].grace, only=container)
            self.cri.lose(last.container.id)

    async def do_reboot(self) -> None:
        """The machine is gone and comes back: nothing runs, and what was only in memory is lost."""
        await self.stop(hard=True)
        for container in list(self.cri.containers.values()):
            if container.state in (ContainerState.RUNNING, ContainerState.UNKNOWN):
                self.cri._end(container, 255, "Unknown")
        for box in self.cri.sandboxes.values():
            box.state, box.ips = SandboxState.NOT_READY, ()
            self.model.pods[box.pod_uid].box_lost = True
        for entry in [each for each in self.harness.mounts.entries if "uid-" in each.mount_point]:
            self.harness.mounts.unmount(Path(entry.mount_point))
        for path in [each for each in self.harness.cgroups.groups if each.startswith("/kubepods")]:
            del self.harness.cgroups.groups[path]

    async def do_lose_sandbox(self, name: str) -> None:
        pod = self._find(name)
        if pod is not None and any(box.pod_uid == uid_of(pod) for box in self.cri.sandboxes.values()):
            self.model.wish(uid_of(pod), self.model.pods[uid_of(pod)].grace)
            self.model.pods[uid_of(pod)].box_lost = True
            self.cri.kill_sandbox(uid_of(pod))

    async def do_image(self, name: str, container: str, number: int) -> None:
        self._change(name, container, image=HERE[number % len(HERE)])

    async def do_resize(self, name: str, container: str, number: int) -> None:
        self._change(name, container, resources=ResourceRequirements(requests={"cpu": f"{number}00m"}))

    def _change(self, name: str, container: str, **fields: Any) -> None:
        pod = self._find(name)
        if pod is None or name in self.static or pod.metadata.deletion_timestamp is not None:
            return
        if container not in {each.name for each in pod.spec.containers}:
            return
        program = self.model.pods[uid_of(pod)].program(container)
        if program["image"] != "here" and "image" in fields:
            return
        # A pass that is under way when a second change comes still starts what the first one asked for.
        self.model.wish(uid_of(pod), self.model.pods[uid_of(pod)].grace, only=container, lasts=120)
        changed = [
            msgspec.structs.replace(each, **fields) if each.name == container else each for each in pod.spec.containers
        ]
        spec = msgspec.structs.replace(pod.spec, containers=changed)
        metadata = msgspec.structs.replace(pod.metadata, generation=(pod.metadata.generation or 0) + 1)
        with self._as_user():
            self.api.change(msgspec.structs.replace(pod, spec=spec, metadata=metadata))

    async def do_label(self, name: str) -> None:
        pod = self._find(name)
        if pod is not None and name not in self.static:
            metadata = msgspec.structs.replace(pod.metadata, labels={**pod.metadata.labels, "colour": "blue"})
            with self._as_user():
                self.api.change(msgspec.structs.replace(pod, metadata=metadata))

    async def do_probe(self, name: str, container: str, well: bool) -> None:
        pod = self._find(name)
        if pod is not None:
            self.model.unwell.discard((uid_of(pod), container))
            if not well:
                self.model.unwell.add((uid_of(pod), container))
                self.model.wish(uid_of(pod), self.model.pods[uid_of(pod)].grace, only=container, probe=True)

    async def do_evict(self, name: str, grace: int) -> None:
        pod = self._find(name)
        if pod is None or not self.running or self.harness.node.table.worker(uid_of(pod)) is None:
            return
        node = self.harness.node
        known = node.table.pod(uid_of(pod)) or pod
        evictor = PodEvictor(node.ctx, workers=node.sync.workers, table=node.table, active=node.table.active_pods)
        self.model.wish(uid_of(pod), grace, ends_pod=True)
        text = EvictionText(message="The node was low on resource: memory.")
        order = EvictionOrder(text=text, grace=grace, signal="memory.available", disruption=True)
        self._help(evictor.evict(known, order))

    async def do_shutdown_down(self) -> None:
        if not self.running:
            return
        for worker in self.harness.node.table.workers():
            pod = self.model.pods[worker.uid]
            self.model.wish(pod.uid, min(max(1, pod.grace), 20), ends_pod=True)
        self.model.goes_down(begins=True)
        self._help(self.harness.node.sync.shutdown.manager.shut_down(two_periods(30, 10)))

    async def do_shutdown_up(self) -> None:
        if self.running:
            self.harness.node.sync.shutdown.manager.cancel()
            self.model.goes_down(begins=False)

    def _help(self, work: Any) -> None:
        task = asyncio.create_task(work, name="helper")
        self._helpers.add(task)
        task.add_done_callback(self._helpers.discard)

    async def do_agent_down(self, hard: bool) -> None:
        await self.stop(hard=hard)

    async def do_agent_up(self) -> None:
        await self.start()

    async def do_api_down(self) -> None:
        self.model.disturb()
        self.api.stop()

    async def do_api_up(self) -> None:
        self.model.calm_down(40)
        self.api.start()

    async def do_runtime_down(self) -> None:
        self.model.disturb()
        self.model.runtime_failed = self.model.stops_failed = self.model.starts_failed = True
        self.cri.crash()

    async def do_runtime_up(self) -> None:
        self.model.calm_down(20)
        self.cri.restore()

    async def do_api_fails(self, verb: str, code: int, times: int) -> None:
        self.model.disturb(60)
        self.api.fail_next(verb, error_of(code, b"{}"), times=times)

    async def do_runtime_fails(self, verb: str, times: int) -> None:
        self.model.disturb(60)
        self.model.runtime_failed = True
        self.model.stops_failed |= verb in ("stop_container", "container_status", "list_containers")
        self.model.starts_failed |= verb in ("create_container", "start_container", "run_pod_sandbox")
        self.cri.fail_next(verb, CriError(f"{verb} failed on purpose"), times=times)

    async def do_runtime_slow(self, verb: str, seconds: float, times: int) -> None:
        self.model.disturb(60 + seconds * times)
        self.cri.slow(verb, seconds, times=times)

    async def do_latency(self, runtime: float, api: float) -> None:
        """Every call takes a moment, so that other things can happen meanwhile."""
        self.api.lag = api
        if runtime:
            self.cri.slow("*", runtime)

    async def do_watch_ends(self, name: str) -> None:
        self.model.disturb(40)
        self.api.break_watches()

    async def do_watch_expires(self, name: str) -> None:
        self.model.disturb(40)
        self.api.compact()
        self.api.break_watches(Expired("too old resource version", code=410, reason="Expired"))

    def _find(self, name: str) -> Pod | None:
        return self.static.get(name) or self.api.find(Pod, name, "default")

    @contextmanager
    def _as_user(self) -> Iterator[None]:
        """Whatever stands between the node and the API server does not stand in the user's way."""
        self.model.user_acts = True
        self.api.down, self.api._faults, was = False, [], (self.api.down, self.api._faults)
        try:
            yield
        finally:
            self.model.user_acts = False
            self.api.down, self.api._faults = was

    # --- looking --------------------------------------------------------------------------------

    def _api_pods(self) -> list[Pod]:
        return [pod for pod in self.api.everything(Pod) if not is_mirror(pod)]

    def untold(self) -> list[str]:
        """What the API server does not know, or knows wrongly."""
        found = []
        for pod in self._api_pods():
            name, uid = pod.metadata.name, uid_of(pod)
            told = self.harness.node.table.reported_status(uid)
            if told is None:
                if not is_terminal_phase(pod.status.phase):
                    found.append(f"nothing is known of {name}")
                continue
            if told.phase != pod.status.phase and self.harness.node.table.is_finished(uid):
                found.append(f"{name} is {told.phase} and the API server says {pod.status.phase}")
            here = [*told.init_container_statuses, *told.container_statuses]
            if _plain(here) != _plain(all_statuses(pod)):
                found.append(
                    f"statuses of containers of {name}: here {_short(here)}, there {_short(all_statuses(pod))}"
                )
            model = self.model.pods[uid]
            over = self.model.has_ended(model) and all(runs[-1].ended is not None for runs in model.runs.values())
            if not model.ends and over and not is_terminal_phase(pod.status.phase):
                found.append(f"{name} ended and is told to be {pod.status.phase}")
            if self.harness.node.table.is_finished(uid):
                found += [f"{name} is over and holds {what}" for what in self._held(uid)]
            if not self.model.is_stuck(pod):
                found += [f"{name}: {text}" for each in all_statuses(pod) if (text := self._untrue(uid, each))]
            if pod.metadata.deletion_timestamp is not None:
                self._let_go(pod)
        return found

    def _held(self, uid: str) -> list[str]:
        """What a pod whose life is over must have given back, whether or not it is deleted."""
        boxes = [box for box in self.cri.sandboxes.values() if box.pod_uid == uid and box.state is SandboxState.READY]
        found = ["a ready sandbox"] if boxes else []
        found += [f"mount {point}" for point in self.harness.mounts.points() if uid in point]
        return found + [f"cgroup {path}" for path in self.harness.cgroups.groups if uid in path]

    def _let_go(self, pod: Pod) -> None:
        """A controller that has seen the end takes its finalizer away; then the server removes the object."""
        finished = is_terminal_phase(pod.status.phase) and self.harness.node.table.is_finished(uid_of(pod))
        if not finished or FINALIZER not in pod.metadata.finalizers:
            return
        metadata = msgspec.structs.replace(pod.metadata, finalizers=[])
        self.api.change(msgspec.structs.replace(pod, metadata=metadata))
        if pod.metadata.deletion_grace_period_seconds == 0:
            with self._as_user():
                self.api.remove(Pod, pod.metadata.name or "", "default")

    def _untrue(self, uid: str, told: ContainerStatus) -> str:
        model, now = self.model.pods[uid], self.harness.clock.monotonic()
        last = model.last(told.name or "")
        if last is None or told.state is None or any(now < at + model.grace + QUIET for at in model.touched):
            return ""  # nothing ran, or a pass that stops something may still be under way
        if last.told_by and last.told_by < self.model.agent:
            return ""  # what was collected before it could be told is lost with the agent's life
        if last.container.state is ContainerState.RUNNING:
            if told.state.running is None:
                return f"{told.name} runs and is told to be {told.state}"
            young = self.harness.clock.monotonic() - (last.started or 0.0) < READY_WITHIN
            is_init = self.model.pods[uid].program(last.container.name)["kind"] == "init"
            if not (told.ready and told.started) and not young and not is_init and not self.model.pods[uid].ends:
                return f"{told.name} runs and is told to be ready: {told.ready}, started: {told.started}"
            return ""
        code = last.container.exit_code
        wrong = told.state.running is not None or not tells_end(told, code)
        if last.container.state is ContainerState.EXITED and wrong:
            return f"{told.name} ended with {code} and is told to be {told.state}"
        return ""

    def left_over(self) -> list[str]:
        """What is held although all pods were deleted."""
        for pod in self._api_pods():
            self._let_go(pod)
        harness, node = self.harness, self.harness.node
        found = [f"API object {pod.metadata.name} ({pod.status.phase})" for pod in self.api.everything(Pod)]
        found += [f"container {each.name} ({each.state.value})" for each in self.cri.containers.values()]
        found += [f"sandbox of {each.name} ({each.state.value})" for each in self.cri.sandboxes.values()]
        found += [f"folder {uid}" for uid in harness.folders.pod_uids()]
        found += [f"log folder {path.name}" for path in harness.paths.pod_logs.iterdir()]
        found += [f"log link {path.name}" for path in harness.paths.container_logs.iterdir()]
        found += [f"mount {point}" for point in harness.mounts.points() if "uid-" in point]
        found += [f"cgroup {path}" for path in harness.cgroups.groups if "uid-" in path]
        found += [f"worker of {worker.full_name} ({worker.state.value})" for worker in node.table.workers()]
        found += [f"status of {uid}" for uid, _ in node.table.reports()]
        found += [f"pod {pod.metadata.name}" for pod in node.table.pods()]
        for uid in self.model.pods:
            if not found and node.table.runtime_status(uid).sandboxes:
                found.append(f"runtime status of {uid}")
        return found


def _plain(statuses: Sequence[ContainerStatus]) -> list[Any]:
    return sorted(
        ((each.name, each.restart_count, each.state, each.last_state or ApiState(), each.ready) for each in statuses),
        key=lambda pair: pair[0] or "",
    )


def _short(statuses: Sequence[ContainerStatus]) -> str:
    return ", ".join(f"{each.name}: {each.restart_count} {each.state}" for each in statuses)
