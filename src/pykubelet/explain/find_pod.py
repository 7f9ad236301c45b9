"""Finders for troubles of the whole pod: the node, admission, volumes, the sandbox, and the pod's end.

Each takes the facts and gives what it found, most often nothing or one thing. Which of them counts when several
find something is the order of the table in causes.py. Pure; troubles of single containers are in find_container.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from pykubelet.explain.facts import PodFacts, seconds
from pykubelet.explain.findings import Finding, first_line, span
from pykubelet.explain.signs import (
    MOST_READ,
    PREEMPTION_SIGN,
    RESOURCE_SIGN,
    UNMOUNTED_SIGN,
    is_network_trouble,
    missing_object,
    next_try,
)
from pykubelet.model.pod import uses_host_network
from pykubelet.recorder import Outcome, Step

SLOW_STEP = 10.0
"""Seconds after which a step that is still under way is worth telling."""
STUCK_MOUNT = 30.0


def runtime_down(facts: PodFacts) -> Sequence[Finding]:
    if facts.node.runtime_up:
        return ()
    entry = facts.failing(Step.SYNC)
    since = facts.failing_since(Step.SYNC) if entry is not None and entry.reason == "RuntimeDown" else None
    return [Finding(words={"problem": first_line(facts.node.runtime_problem)}, since=since, next_in=facts.next_run_in)]


def unreadable(facts: PodFacts) -> Sequence[Finding]:
    """The pod was never read on this node."""
    return [Finding(words={"problem": facts.unreadable})] if facts.unreadable and facts.worker is None else ()


def unreadable_change(facts: PodFacts) -> Sequence[Finding]:
    """The node goes on with the last version that it could read."""
    return [Finding(words={"problem": facts.unreadable})] if facts.unreadable and facts.worker is not None else ()


# --- admission ------------------------------------------------------------------------------------


def _rejected(facts: PodFacts) -> bool:
    return facts.phase == "Failed" and facts.failing(Step.ADMISSION) is not None and bool(facts.status.reason)


def node_short(facts: PodFacts) -> Sequence[Finding]:
    if not _rejected(facts):
        return ()
    found = shortage(facts.status.reason or "", facts.status.message or "")
    if found is None:
        return ()
    return [Finding(words={"resource": found[0], "shown": found[1]}, since=_started(facts))]


def shortage(reason: str, message: str) -> tuple[str, str] | None:
    """Of what the node has too little, and how much; None when admission failed for another reason."""
    if preempting := PREEMPTION_SIGN.search(message[:MOST_READ]):
        # Critical pods, and static ones are, may have others stopped for them; there was nobody to stop.
        resource, missing = preempting["resource"], int(preempting["missing"])
        return resource, f"{amount(resource, missing)} are missing, and no lesser pod could be stopped for it"
    if not reason.startswith("OutOf"):
        return None
    found = RESOURCE_SIGN.search(message[:MOST_READ])
    if found is None:
        return reason.removeprefix("OutOf"), "the node has too little"
    resource, capacity = found["resource"], int(found["capacity"])
    asked, left = amount(resource, int(found["requested"])), amount(resource, capacity - int(found["used"]))
    return resource, f"it asks for {asked} and {left} of {amount(resource, capacity)} are free"


def not_admitted(facts: PodFacts) -> Sequence[Finding]:
    reason = facts.status.reason or ""
    message = (facts.status.message or "").removeprefix("Pod was rejected: ")
    if not _rejected(facts) or shortage(reason, message) is not None:
        return ()
    return [Finding(words={"reason": reason, "message": first_line(message)}, since=_started(facts))]


def evicted_measured(facts: PodFacts) -> Sequence[Finding]:
    """Ended by this agent's own eviction, which wrote down what it had measured."""
    entry = facts.failing(Step.EVICTION)
    if entry is None or facts.phase != "Failed" or facts.status.reason != "Evicted":
        return ()
    own = entry.subject.endswith(".limit")
    words = {
        "why": entry.message.strip(),
        "short": "a limit of its own on the node's disk" if own else f"the node ran short ({entry.subject})",
    }
    return [Finding(words=words, since=entry.at)]


def evicted(facts: PodFacts) -> Sequence[Finding]:
    if facts.phase != "Failed" or facts.status.reason not in ("Evicted", "Preempting", "Preempted", "Terminated"):
        return ()
    words = {"reason": facts.status.reason, "message": first_line(facts.status.message or "no reason was given")}
    return [Finding(words=words, since=_started(facts))]


def deadline(facts: PodFacts) -> Sequence[Finding]:
    if facts.status.reason != "DeadlineExceeded":
        return ()
    allowed = facts.pod.spec.active_deadline_seconds or 0
    return [Finding(words={"allowed": span(float(allowed))}, since=_started(facts))]


def _started(facts: PodFacts) -> float | None:
    return seconds(facts.status.start_time)


def amount(resource: str, value: int) -> str:
    """Admission counts cpu in thousandths of a core and the rest in whole units."""
    if resource == "cpu":
        return f"{value / 1000:g} cores"
    if resource == "memory" or resource.startswith(("ephemeral-storage", "hugepages")):
        return f"{value / (1 << 20):.0f} MiB"
    return f"{value} {resource}"


# --- before containers ----------------------------------------------------------------------------


def network_not_ready(facts: PodFacts) -> Sequence[Finding]:
    if not facts.node.network_problem or uses_host_network(facts.pod) or facts.phase != "Pending":
        return ()
    since = facts.failing_since(Step.SYNC)
    return [Finding(words={"problem": first_line(facts.node.network_problem)}, since=since, next_in=facts.next_run_in)]


def cgroup_failed(facts: PodFacts) -> Sequence[Finding]:
    entry = facts.failing(Step.CGROUP)
    if entry is None:
        return ()
    since = facts.failing_since(Step.CGROUP)
    return [Finding(words={"problem": first_line(entry.message)}, since=since, next_in=facts.next_run_in)]


def object_missing(facts: PodFacts) -> Sequence[Finding]:
    """A volume waits for an object of the API server."""
    return [found for found, missing in _volumes(facts) if missing]


def mount_failing(facts: PodFacts) -> Sequence[Finding]:
    return [found for found, missing in _volumes(facts) if not missing and found.words["hangs"] == ""]


def mount_stuck(facts: PodFacts) -> Sequence[Finding]:
    """A volume operation that does not come back, failed before or not."""
    stuck = [found for found, missing in _volumes(facts) if not missing and found.words["hangs"]]
    if stuck or facts.is_ending:
        return stuck
    waiting = facts.under_way(Step.VOLUMES, "")
    if waiting is None or facts.now - waiting.at < STUCK_MOUNT or facts.volume_problems:
        return ()
    words = {"volume": "a volume", "problem": "its mount has not come back", "hangs": "yes"}
    return [Finding(words=words, since=waiting.at)]


def _volumes(facts: PodFacts) -> list[tuple[Finding, str]]:
    """Each volume problem, and the object that is missing if one is."""
    if facts.is_ending:
        return []
    found = []
    for text in facts.volume_problems:
        sign = UNMOUNTED_SIGN.match(text[:MOST_READ])
        name, problem = (sign["name"], sign["problem"]) if sign else ("", text)
        missing = missing_object(problem)
        words = {
            "volume": f"volume {name}" if name else "a volume",
            "problem": first_line(problem),
            "tries": (sign["tries"] or "") if sign else "",
            "object": missing,
            "hangs": "yes" if ", trying for " in text else "",
        }
        since = facts.failing_since(Step.VOLUMES, name)
        found.append((Finding(subject=name, words=words, since=since, next_in=next_try(text)), missing))
    return found


def sandbox_network(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _sandbox(facts) if is_network_trouble(found.words["problem"])]


def sandbox_failed(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _sandbox(facts) if not is_network_trouble(found.words["problem"])]


def _sandbox(facts: PodFacts) -> list[Finding]:
    entry = facts.newest(Step.SANDBOX)
    if entry is None or facts.is_ending:
        return []
    since = facts.failing_since(Step.SANDBOX)
    if entry.outcome is Outcome.FAILED:
        problem = entry.message.removeprefix("Failed to create pod sandbox: ")
        return [Finding(words={"problem": first_line(problem)}, since=since, next_in=facts.next_run_in)]
    if entry.outcome is Outcome.BEGUN and facts.now - entry.at >= SLOW_STEP:
        problem = (
            f"the runtime has been making the sandbox for {span(facts.now - entry.at)}, which is often the network"
        )
        return [Finding(words={"problem": problem}, since=entry.at)]
    return []


# --- the end --------------------------------------------------------------------------------------


def stopping_hook(facts: PodFacts) -> Sequence[Finding]:
    return _stopping(facts, hooked=True)


def stopping_container(facts: PodFacts) -> Sequence[Finding]:
    return _stopping(facts, hooked=False)


def _stopping(facts: PodFacts, *, hooked: bool) -> list[Finding]:
    if not facts.is_ending or (facts.worker is not None and facts.worker.phase == "terminated"):
        return []
    found = []
    for container in facts.containers():
        entry = facts.under_way(Step.KILL, container.name)
        if entry is None:
            continue
        lifecycle = container.spec.lifecycle
        hook = lifecycle is not None and lifecycle.pre_stop is not None
        failed = facts.newest(Step.HOOK, container.name)
        over = failed is not None and failed.outcome is Outcome.FAILED and failed.at >= entry.at
        if (hook and not over) is not hooked:
            continue
        grace = float(facts.grace or 30)
        left = max(0.0, grace - (facts.now - entry.at))
        words = {
            "container": container.name,
            "grace": span(grace),
            "left": span(left),
            "took": span(facts.now - entry.at),
        }
        found.append(Finding(subject=container.name, words=words, since=entry.at, next_in=left))
    return found


def stopping_volumes(facts: PodFacts) -> Sequence[Finding]:
    if not facts.is_ending:
        return ()
    cleanup = facts.under_way(Step.CLEANUP) or facts.failing(Step.CLEANUP)
    if cleanup is None and not facts.volume_problems:
        return ()
    problem = facts.volume_problems[0] if facts.volume_problems else ""
    if cleanup is not None and cleanup.outcome is Outcome.FAILED:
        problem = problem or cleanup.message
    since = cleanup.at if cleanup is not None else None
    shown = first_line(problem) if problem else "volumes are being unmounted"
    return [Finding(words={"problem": shown}, since=since, next_in=facts.next_run_in)]


def stopping_failed(facts: PodFacts) -> Sequence[Finding]:
    """Ending, and the last try to end it failed, or a driver is slow to take back what the pod claimed."""
    asked = facts.under_way(Step.CLAIMS) if facts.is_ending else None
    if asked is not None and facts.now - asked.at >= SLOW_STEP:
        return [Finding(words={"problem": f"{asked.subject} has not answered"}, since=asked.at)]
    if not facts.is_ending or facts.worker is None or not facts.worker.last_error:
        return ()
    since = facts.failing_since(Step.SYNC)
    words = {"problem": first_line(facts.worker.last_error)}
    return [Finding(words=words, since=since, next_in=facts.next_run_in)]


def stopping(facts: PodFacts) -> Sequence[Finding]:
    if not facts.is_ending:
        return ()
    entry = facts.newest(Step.KILL)
    return [Finding(since=entry.at if entry is not None else None, next_in=None)]


def host_hangs(facts: PodFacts) -> Sequence[Finding]:
    """The host does not answer something that was asked for this pod."""
    return [
        Finding(words={"call": call, "took": span(seconds)}, since=facts.now - seconds)
        for call, seconds in facts.hanging[:1]
    ]


# --- last resort ----------------------------------------------------------------------------------


def sync_failing(facts: PodFacts) -> Sequence[Finding]:
    """Something else keeps failing: say what the worker says."""
    if facts.worker is None or not facts.worker.failures or not facts.worker.last_error:
        return ()
    words = {"problem": first_line(facts.worker.last_error), "tries": str(facts.worker.failures)}
    return [Finding(words=words, since=facts.failing_since(Step.SYNC), next_in=facts.next_run_in)]


def waits_for_turn(facts: PodFacts) -> Sequence[Finding]:
    """A static pod of the same name is still ending."""
    if facts.worker is None or facts.worker.phase != "syncing" or facts.status.phase or facts.newest(Step.CGROUP):
        return ()
    seen = facts.newest(Step.SEEN)
    if seen is None or facts.now - seen.at < SLOW_STEP:
        return ()
    return [Finding(since=seen.at)]
