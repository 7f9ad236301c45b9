"""What must hold in every life of a pod, told by what the runtime and the API server see.

Short on purpose: it does not predict what the agent does next, it refuses what it must never do. Bounds are only
judged where no disturbance (agent or runtime away, requests that fail) could explain a delay.
"""

from __future__ import annotations

from collections.abc import Callable

from pykubelet.api.types import ContainerStatus, Pod
from pykubelet.hollow.cri_values import MemoryContainer, MemorySandbox
from pykubelet.model.pod import is_terminal_phase, name_of, uid_of
from pykubelet.model.reasons import CONTAINER_STATUS_UNKNOWN
from pykubelet.model.runtime_status import SandboxState
from tests.lives.history import Program
from tests.lives.values import PodModel, Run, Wait, Wish

LATE = 8.0
"""Seconds by which a restart or the end of a grace may be late."""
ROUNDING = 0.01
FIRST_BACKOFF, LAST_BACKOFF, HEALTHY_AFTER = 10.0, 300.0, 600.0


class Model:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.pods: dict[str, PodModel] = {}
        self.violations: list[str] = []
        self.agent = 0
        self.disturbed: list[tuple[float, float]] = []
        self.runtime_failed = False
        self.stops_failed = False
        self.starts_failed = False
        """Starts that failed count for the back-off, and nobody sees them here."""
        self.unwell: set[tuple[str, str]] = set()
        """Containers whose probes fail."""
        self.user_acts = False
        """The API object that changes now is changed by a user."""
        self.refuses: Callable[[str], bool] = lambda uid: False
        """Whether the agent refused the pod because the node goes down."""
        self.shutdowns: list[list[float]] = []
        """From when to when the node went down."""
        self.agent_since = 0.0
        self._waits: dict[tuple[str, str, str, int], Wait] = {}

    def fail(self, text: str) -> None:
        self.violations.append(f"at {self._now():.1f} s: {text}")

    def disturb(self, seconds: float = float("inf")) -> None:
        """For so long, or until `calm_down`, delays have an excuse."""
        self.disturbed.append((self._now(), self._now() + seconds))

    def calm_down(self, after: float) -> None:
        """What lasted until now is over; its effects last a little longer."""
        end = self._now() + after
        self.disturbed = [(begin, end if until == float("inf") else until) for begin, until in self.disturbed]

    def is_calm(self, since: float, until: float) -> bool:
        return not any(begin <= until and end >= since for begin, end in self.disturbed)

    def wish(
        self,
        uid: str,
        grace: float,
        *,
        ends_pod: bool = False,
        only: str = "",
        lasts: float = 0.0,
        probe: bool = False,
    ) -> None:
        pod = self.pods[uid]
        pod.wishes.append(Wish(self._now(), grace, ends_pod, only, lasts, probe))
        pod.touched.append(self._now())

    def agent_started(self) -> None:
        self.agent += 1
        self.agent_since = self._now()
        self._waits.clear()

    def goes_down(self, *, begins: bool) -> None:
        for times in self.shutdowns:
            times[1] = min(times[1], self._now())
        if begins:
            self.shutdowns.append([self._now(), float("inf")])

    def _is_refused(self, pod: PodModel) -> bool:
        """Whether the agent, going down, did not take the pod. If it ran before the agent, it is an orphan then."""
        seen_since = max(pod.added, self.agent_since)
        if not any(end >= seen_since for _, end in self.shutdowns) or not self.refuses(pod.uid):
            return False
        if not pod.orphaned:
            pod.rejected = pod.orphaned = True
            self.wish(pod.uid, 1, ends_pod=True)
        return True

    # --- the runtime ----------------------------------------------------------------------------

    def sandbox_made(self, box: MemorySandbox, others: list[MemorySandbox]) -> None:
        ready = [each for each in others if each.pod_uid == box.pod_uid and each.state is SandboxState.READY]
        if len(ready) > 1:
            self.fail(f"{box.name} has {len(ready)} ready sandboxes")

    def created(self, container: MemoryContainer) -> None:
        pod = self.pods[container.sandbox.pod_uid]
        run = Run(container, self._now(), self.agent)
        before = pod.last(container.name)
        expected = 0 if before is None else before.container.attempt + 1
        # Init containers and sidecars are cleared away with their sandbox; upstream too counts them anew after that.
        anew = before is not None and before.container.removed and bool(pod.program(container.name)["kind"] or pod.ends)
        if container.attempt != expected and not (anew and container.attempt == 0):
            self.fail(f"{container.name} of {container.sandbox.name} has attempt {container.attempt}, not {expected}")
        if before is not None and self._is_replaced(pod, before):
            pod.unsure = True  # stopped and started in one go: judged by what had ended before that
        elif before is not None and before.ended is not None:
            self._check_backoff(pod, before, container)
            self._waited(pod, before, container)
        pod.runs.setdefault(container.name, []).append(run)

    def _is_replaced(self, pod: PodModel, before: Run) -> bool:
        wishes = [wish for wish in pod.wishes if wish.only in ("", before.container.name)]
        lasts = any(wish.at + wish.lasts >= before.created for wish in wishes)
        return any(wish.at >= before.created for wish in wishes) or (lasts and before.container.signalled)

    def started(self, container: MemoryContainer) -> None:
        pod, name = self.pods[container.sandbox.pod_uid], container.name
        run = pod.runs[name][-1]
        run.started = self._now()
        if (pod.uid, name) in self.unwell:
            pod.wishes.append(Wish(self._now(), pod.grace, False, name, probe=True))
        if any(each.ended is None and each.started is not None for each in pod.runs[name][:-1]):
            self.fail(f"{name} of {container.sandbox.name} runs twice at once")
        for program in pod.spec["programs"]:
            if program["name"] == name and program["kind"]:
                break  # init containers: only those before it
            if program["kind"] == "init" and not self._init_done(pod, program["name"], container.sandbox):
                self.fail(f"{name} of {container.sandbox.name} started before init container {program['name']} ended")

    def _init_done(self, pod: PodModel, name: str, box: MemorySandbox) -> bool:
        runs = pod.runs.get(name, [])
        return any(
            run.container.sandbox is box and run.ended is not None and run.container.exit_code == 0 for run in runs
        )

    def hooked(self, container: MemoryContainer, which: str) -> None:
        pod = self.pods[container.sandbox.pod_uid]
        run = next(each for each in pod.runs[container.name] if each.container is container)
        if which == "post":
            run.post += 1
            times = run.post
        else:
            times = run.pre[self.agent] = run.pre.get(self.agent, 0) + 1
        if times > 1 and not (which == "pre" and self.runtime_failed):
            self.fail(f"the {which} hook of {container.name} of {container.sandbox.name} ran {times} times")

    def signalled(self, container: MemoryContainer) -> None:
        pod = self.pods[container.sandbox.pod_uid]
        program = pod.program(container.name)
        self._is_refused(pod)
        run = next(each for each in pod.runs[container.name] if each.container is container)
        hook = program["pre"] is not None and program["kind"] != "init"
        # A pod that ends has a second at the least; what is stopped for another reason has the pod's own grace.
        hasty = not pod.grace and any(not wish.ends_pod for wish in self._wishes_for(pod, container))
        if hook and not run.pre and not pod.orphaned and (pod.grace or pod.ends) and not hasty:
            self.fail(f"{container.name} of {container.sandbox.name} was stopped without its preStop hook")
        self._check_asked(pod, container, "stopped")

    def ended(self, container: MemoryContainer, *, killed: bool) -> None:
        now, pod = self._now(), self.pods[container.sandbox.pod_uid]
        run = next(each for each in pod.runs[container.name] if each.container is container)
        run.ended, run.told_by = now, self.agent
        program = pod.program(container.name)
        if killed and not run.lost:
            self._check_kill(pod, run)
        if program["post"] is not None and program["kind"] != "init":
            self._check_post(pod, run, program)
        if program["kind"] != "side":
            for sidecar in (each for each in pod.spec["programs"] if each["kind"] == "side"):
                pod.wishes.append(Wish(now, pod.grace, False, sidecar["name"]))

    def _check_post(self, pod: PodModel, run: Run, program: Program) -> None:
        begun, ended = run.started, run.ended
        if begun is None or ended is None or ended - begun < 1 or run.post:
            return
        early = any(begun - 1 <= at <= begun + 1 for at in pod.touched)
        if not early and self.is_calm(begun - 1, begun + 1):
            self.fail(f"the post hook of {program['name']} of {run.container.sandbox.name} never ran")

    def _wishes_for(self, pod: PodModel, container: MemoryContainer) -> list[Wish]:
        began = container.started_at / 1e9 - START
        return [
            each for each in pod.wishes
            if each.only in ("", container.name) and (each.ends_pod or each.at + each.lasts >= began - ROUNDING)
        ]  # fmt: skip

    def _check_asked(self, pod: PodModel, container: MemoryContainer, what: str) -> list[Wish]:
        wishes = self._wishes_for(pod, container)
        program = pod.program(container.name)
        if program["kind"] == "side" and not wishes:
            wishes = self._last_ones_fail(pod)
        hook_failed = self.runtime_failed and program["post"] is not None
        # The end of a pod that is cut short may start a sidecar once more, as upstream's does, to stop it at once.
        again = program["kind"] == "side" and self.has_ended(pod)
        if not wishes and not hook_failed and not again:
            self.fail(f"{container.name} of {container.sandbox.name} was {what} although nobody wanted that")
        return wishes

    def _last_ones_fail(self, pod: PodModel) -> list[Wish]:
        """The failing probes that end a pod with policy Never: no regular container of it is left to run."""
        found: list[Wish] = []
        for program in pod.spec["programs"]:
            last = pod.last(program["name"])
            if program["kind"] or (last is not None and last.ended is not None):
                continue
            since = last.started if last is not None else None
            fails = [
                wish for wish in pod.wishes
                if since is not None and wish.probe and wish.only == program["name"] and wish.at >= since - ROUNDING
            ]  # fmt: skip
            if pod.spec["policy"] != "Never" or program["probe"] not in ("liveness", "startup") or not fails:
                return []
            found += fails
        return found

    def _check_kill(self, pod: PodModel, run: Run) -> None:
        """Not before the earliest end of a grace that somebody gave, and not long after it."""
        now, container = self._now(), run.container
        wishes = self._check_asked(pod, container, "killed")
        if not wishes or self.stops_failed:
            return
        first = min(wish.at + max(1.0, wish.grace) for wish in wishes)
        if now < first - ROUNDING:
            told = ", ".join(f"{wish.grace:g} s at {wish.at:.1f}" for wish in wishes)
            self.fail(f"{container.name} of {container.sandbox.name} was killed before its grace was over ({told})")
        if run.started is None:
            return
        # A static pod may get another life after a shutdown that was called off.
        ending = [wish for wish in wishes if wish.ends_pod and (wish.at >= run.started or not pod.spec["static"])]
        if not ending:
            return
        last = min(max(wish.at, run.started) + max(2.0, wish.grace) for wish in ending)
        sidecars = sum(each["kind"] == "side" for each in pod.spec["programs"])
        if now > last + LATE + 2 * sidecars and self.is_calm(min(wish.at for wish in ending), now):
            self.fail(f"{container.name} of {container.sandbox.name} was killed {now - last:.1f} s late")

    # --- back-off -------------------------------------------------------------------------------

    def _delay(self, wait: Wait | None, finished: float) -> float:
        return 0.0 if wait is None or finished - wait.updated > HEALTHY_AFTER else wait.delay

    def _longest_delay(self, pod: PodModel, name: str, finished: float) -> float:
        """Whatever it is going to run."""
        waits = [wait for key, wait in self._waits.items() if key[:2] == (pod.uid, name)]
        return max((self._delay(wait, finished) for wait in waits), default=0.0)

    def _waited(self, pod: PodModel, before: Run, again: MemoryContainer) -> None:
        """It starts again: the next wait is twice as long."""
        finished = before.ended or 0.0
        if before.container.removed and pod.program(again.name)["kind"]:
            pod.unsure = True  # cleared away with its sandbox; whether its end is remembered depends on the pass
            return
        wait = self._waits.get(what_runs(again))
        if wait is None or finished - wait.updated > HEALTHY_AFTER:
            self._waits[what_runs(again)] = Wait(FIRST_BACKOFF, self._now())
        else:
            wait.delay, wait.updated = min(LAST_BACKOFF, 2 * wait.delay), self._now()

    def _check_backoff(self, pod: PodModel, before: Run, again: MemoryContainer) -> None:
        name, now, finished = again.name, self._now(), before.ended or 0.0
        delay = self._delay(self._waits.get(what_runs(again)), finished)
        if pod.program(name)["kind"] and before.container.removed:
            return
        if now < finished + delay - ROUNDING:
            self.fail(f"{name} of {again.sandbox.name} started again after {now - finished:.1f} s, not {delay:g}")
        if not pod.unsure:
            self._check_late(pod, name, finished + delay, finished)

    def _check_late(self, pod: PodModel, name: str, due: float, since: float) -> None:
        """Something of a pod that nobody touched since was due then, or as soon as no trouble excused it any more."""
        now = self._now()
        excused = max((end for begin, end in self.disturbed if begin <= now), default=0.0)
        late = now - max(due, excused)
        touched = any(since - 1 <= at <= now for at in pod.touched)
        simple = all(each["image"] == "here" and each["post"] in (None, 0.0) for each in pod.spec["programs"])
        if late > LATE and simple and not touched and not pod.ends and not self.starts_failed:
            self.fail(f"{name} of {pod.uid} is {late:.1f} s late to start")

    def check_starts(self) -> None:
        """Whoever should run and does not is late."""
        for pod in self.pods.values():
            if pod.ends or pod.gone or pod.rejected or self._is_refused(pod) or self.has_ended(pod):
                continue
            if pod.box_lost and pod.spec["policy"] == "Never":
                continue  # neither started again nor ended while a container never ran, as upstream leaves it
            for program in pod.spec["programs"]:
                name, last = program["name"], pod.last(program["name"])
                if last is None:
                    box, due, since = None, pod.added, pod.added
                elif last.ended is not None and self._restarts(pod, name, last.container.exit_code):
                    box, since = last.container.sandbox, last.ended
                    due = last.ended + self._longest_delay(pod, name, last.ended)
                else:
                    continue
                if not pod.unsure and self._may_start(pod, name, box):
                    self._check_late(pod, name, due, since)

    def _may_start(self, pod: PodModel, name: str, box: MemorySandbox | None) -> bool:
        """Whether everything that must have ended or started before it has, in its sandbox or the newest one."""
        for program in pod.spec["programs"]:
            last = pod.last(program["name"])
            if program["name"] == name and program["kind"]:
                return True
            if program["kind"] == "init" and program["name"] != name:
                where = box or (last.container.sandbox if last is not None else None)
                if where is None or not self._init_done(pod, program["name"], where):
                    return False
            if program["kind"] == "side" and (last is None or last.ended is not None):
                return False
        return True

    def _restarts(self, pod: PodModel, name: str, code: int) -> bool:
        kind, policy = pod.program(name)["kind"], pod.spec["policy"]
        if kind == "side":
            return not self.has_ended(pod)
        if kind == "init":
            return code != 0 and policy != "Never"
        return policy == "Always" or (policy == "OnFailure" and code != 0)

    def has_ended(self, pod: PodModel) -> bool:
        """All regular containers ended for good, or an init container failed for good."""
        codes: dict[str, int | None] = {}
        for program in pod.spec["programs"]:
            last = pod.last(program["name"])
            codes[program["name"]] = last.container.exit_code if last is not None and last.ended is not None else None
        kinds = {program["name"]: program["kind"] for program in pod.spec["programs"]}
        if pod.spec["policy"] == "Never" and any(code for name, code in codes.items() if kinds[name] == "init"):
            return True
        regular = {name: code for name, code in codes.items() if not kinds[name]}
        return all(code is not None and not self._restarts(pod, name, code) for name, code in regular.items())

    # --- the API server -------------------------------------------------------------------------

    def api_changed(self, before: Pod | None, after: Pod | None) -> None:
        known = after or before
        assert known is not None
        pod = self.pods.get(uid_of(known))
        if pod is None:
            return
        if after is not None and after.status.phase == "Failed" and after.status.reason:
            pod.rejected = True
        if after is not None and before is not None:
            self._check_counts(pod, before, after)
        elif after is None and before is not None:
            pod.gone = True
            if not self.user_acts:
                self._check_end(pod, before)

    def is_stuck(self, told: Pod) -> bool:
        """Whether nothing more is told of a pod with policy Never before its containers end.

        A lost container is started again whatever the policy; its end was told by then and is not taken back.
        """
        pod = self.pods[uid_of(told)]
        for each in all_statuses(told):
            runs, end = pod.runs.get(each.name or "", []), each.state.terminated if each.state is not None else None
            again = any(run.lost for run in runs[:-1]) and runs[-1].ended is None
            if again and pod.spec["policy"] == "Never" and end is not None and end.reason == CONTAINER_STATUS_UNKNOWN:
                return True
        return False

    def _check_counts(self, pod: PodModel, before: Pod, after: Pod) -> None:
        old = {each.name: each.restart_count or 0 for each in all_statuses(before)}
        for each in all_statuses(after):
            count, name = each.restart_count or 0, each.name or ""
            cleared = bool(pod.program(name)["kind"]) and any(run.container.removed for run in pod.runs.get(name, []))
            if count < old.get(name, 0) and not cleared:
                self.fail(f"the restart count of {name} of {name_of(after)} fell from {old[name]} to {count}")
            # Upstream too takes a container that was cleared away while it ran for one that was restarted.
            runs = pod.runs.get(name, [])
            forgotten = any(run.container.removed and run.told_by < self.agent for run in runs)
            vanished = bool(pod.program(name)["kind"]) or any(run.lost for run in runs) or forgotten
            if count > max(0, len(runs) - 1) and not vanished:
                self.fail(f"{name} of {name_of(after)} is told to have {count} restarts")
        if is_terminal_phase(before.status.phase) and after.status.phase != before.status.phase:
            self.fail(f"{name_of(after)} went from {before.status.phase} to {after.status.phase}")

    def _check_end(self, pod: PodModel, before: Pod) -> None:
        """What the API server knew last before the agent let it forget the pod."""
        name = name_of(before)
        if not is_terminal_phase(before.status.phase):
            self.fail(f"{name} was deleted while {before.status.phase}")
        for each in all_statuses(before):
            last = pod.last(each.name or "")
            if last is None or last.started is None:
                continue
            if last.ended is None:
                self.fail(f"{name} was deleted while {each.name} runs")
            elif not tells_end(each, last.container.exit_code) and last.told_by == self.agent:
                self.fail(
                    f"{name} was deleted and the end of {each.name} ({last.container.exit_code}) never told: {each}"
                )


START = 1_700_000_000.0
"""Wall time at the beginning of a life."""


def what_runs(container: MemoryContainer) -> tuple[str, str, str, int]:
    """What a back-off belongs to: another image or other resources start it afresh, once the agent knows of them."""
    config = container.config
    return (
        container.sandbox.pod_uid,
        container.name,
        config.image.user_specified_image,
        config.linux.resources.cpu_shares,
    )


def tells_end(status: ContainerStatus, code: int) -> bool:
    """Whether the status shows this end, be it the last one of a container that waited to start again."""
    states = (status.state, status.last_state)
    ends = [each.terminated for each in states if each is not None and each.terminated is not None]
    return any(each.exit_code == code for each in ends)


def all_statuses(pod: Pod) -> list[ContainerStatus]:
    return [*pod.status.init_container_statuses, *pod.status.container_statuses]
