"""Finders for troubles of single containers: images, configuration, crashes, hooks, probes.

Each gives at most one finding a container. A container shows one cause, the first in the order of the table.
Pure; what concerns the whole pod is in find_pod.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pykubelet.api.times import parse_duration
from pykubelet.api.types import Probe
from pykubelet.explain.facts import ContainerFacts, PodFacts, seconds
from pykubelet.explain.findings import Finding, first_line, span, times
from pykubelet.explain.signs import (
    BACKOFF_SIGN,
    exit_words,
    image_trouble,
    is_command_trouble,
    missing_object,
)
from pykubelet.model import reasons
from pykubelet.model.life import Outcome, Step
from pykubelet.model.pod import ContainerKind, is_sidecar, probes_of, restarts_on_exit
from pykubelet.model.runtime_status import ContainerState

LOG_LINES = 5
SLOW_PULL = 60.0
SLOW_HOOK = 10.0
RECENT = 600.0
"""Seconds after which a restart is history."""
CALM = 60.0
"""Seconds a container must run again for its last end to be a mere note."""
ASKED = "a restart was asked for"
"""In the event of a container that server/local.py stops."""
PULL_REASONS = (reasons.ERR_IMAGE_PULL, reasons.IMAGE_PULL_BACK_OFF, reasons.REGISTRY_UNAVAILABLE)


# --- images ---------------------------------------------------------------------------------------


def _pulls(facts: PodFacts, kind: str) -> Iterator[Finding]:
    for container in facts.containers():
        if container.waiting_reason not in PULL_REASONS:
            continue
        image = container.spec.image or ""
        failed = next(
            (
                e
                for e in reversed(facts.life)
                if e.step is Step.PULL and e.subject == image and e.outcome is Outcome.FAILED
            ),
            None,
        )
        said = failed.message if failed is not None else container.waiting_message
        silent = container.waiting_reason == reasons.REGISTRY_UNAVAILABLE
        if ("unreachable" if silent else image_trouble(said)) != kind:
            continue
        since = min((e.at for e in facts.life if e.step is Step.PULL and e.subject == image), default=None)
        words = {"image": image, "said": first_line(said), "reason": container.waiting_reason}
        yield _found(facts, container, words, since=since)


def image_missing(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "missing"))


def registry_denied(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "denied"))


def registry_unreachable(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "unreachable"))


def image_disk(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "disk"))


def image_other(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "other"))


def image_never(facts: PodFacts) -> Sequence[Finding]:
    return _waiting(facts, reasons.ERR_IMAGE_NEVER_PULL)


def image_name(facts: PodFacts) -> Sequence[Finding]:
    return _waiting(facts, reasons.INVALID_IMAGE_NAME)


def image_signature(facts: PodFacts) -> Sequence[Finding]:
    return _waiting(facts, reasons.SIGNATURE_VALIDATION_FAILED)


def image_slow(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _pulling(facts) if facts.now - (found.since or facts.now) >= SLOW_PULL]


def image_pulling(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _pulling(facts) if facts.now - (found.since or facts.now) < SLOW_PULL]


def _pulling(facts: PodFacts) -> Iterator[Finding]:
    for container in facts.containers():
        image = container.spec.image or ""
        entry = facts.under_way(Step.PULL, image)
        if entry is not None and not container.is_running:
            words = {"image": image, "took": span(facts.now - entry.at)}
            yield _found(facts, container, words, since=entry.at, next_in=None)


# --- configuration and creation -------------------------------------------------------------------


def config_missing(facts: PodFacts) -> Sequence[Finding]:
    return [f for f in _waiting(facts, reasons.CREATE_CONTAINER_CONFIG_ERROR) if f.words["object"]]


def config_error(facts: PodFacts) -> Sequence[Finding]:
    return [f for f in _waiting(facts, reasons.CREATE_CONTAINER_CONFIG_ERROR) if not f.words["object"]]


def command_missing(facts: PodFacts) -> Sequence[Finding]:
    return [f for f in _creating(facts) if is_command_trouble(f.words["said"])]


def create_failed(facts: PodFacts) -> Sequence[Finding]:
    return [f for f in _creating(facts) if not is_command_trouble(f.words["said"])]


def _creating(facts: PodFacts) -> Sequence[Finding]:
    """The start failed just now, or it did before and the next try has to wait (CrashLoopBackOff)."""
    found = _waiting(facts, reasons.CREATE_CONTAINER_ERROR, reasons.RUN_CONTAINER_ERROR)
    for container in facts.containers():
        ended = container.last_end
        known = container.is_running or any(each.subject == container.name for each in found)
        if not known and ended is not None and ended.reason in ("StartError", "ContainerCannotRun"):
            words = {
                "said": first_line(ended.message or ""),
                "image": container.spec.image or "",
                "reason": container.waiting_reason or ended.reason,
            }
            due = _restart_in(facts, container, seconds(ended.finished_at))
            found.append(_found(facts, container, words, since=seconds(ended.finished_at), next_in=due))
    return found


def _waiting(facts: PodFacts, *wanted: str) -> list[Finding]:
    found = []
    for container in facts.containers():
        if container.waiting_reason not in wanted:
            continue
        said = container.waiting_message
        words = {
            "image": container.spec.image or "",
            "said": first_line(said),
            "reason": container.waiting_reason,
            "object": missing_object(said),
        }
        since = facts.failing_since(Step.CREATE, container.name) or facts.failing_since(Step.START, container.name)
        found.append(_found(facts, container, words, since=since))
    return found


# --- hooks ----------------------------------------------------------------------------------------


def hook_failed(facts: PodFacts) -> Sequence[Finding]:
    found = []
    for container in facts.containers():
        entry = facts.failing(Step.HOOK, container.name)
        lifecycle = container.spec.lifecycle
        if entry is None or lifecycle is None or lifecycle.post_start is None or container.is_running:
            continue
        if entry.reason == "FailedPreStopHook":
            continue
        since = facts.failing_since(Step.HOOK, container.name)
        found.append(_found(facts, container, {"said": first_line(entry.message)}, since=since))
    return found


def hook_hangs(facts: PodFacts) -> Sequence[Finding]:
    found = []
    for container in facts.containers():
        entry = facts.under_way(Step.HOOK, container.name)
        if entry is not None and facts.now - entry.at >= SLOW_HOOK:
            words = {"took": span(facts.now - entry.at)}
            found.append(_found(facts, container, words, since=entry.at, next_in=None))
    return found


# --- crashes --------------------------------------------------------------------------------------


def _crashes(facts: PodFacts, fits: Callable[[ContainerFacts], bool]) -> list[Finding]:
    """Containers whose newest run ended badly and that are not well again."""
    found = []
    for container in facts.containers():
        ended = container.last_end
        if ended is None or not fits(container):
            continue
        finished = seconds(ended.finished_at)
        recent = finished is not None and facts.now - finished < RECENT
        if container.is_running and not recent:
            continue
        bad = ended.exit_code != 0 or ended.reason == reasons.OOM_KILLED
        if not bad and container.waiting_reason != reasons.CRASH_LOOP_BACK_OFF:
            continue
        found.append(_crash(facts, container, finished))
    return found


def _crash(facts: PodFacts, container: ContainerFacts, finished: float | None) -> Finding:
    ended = container.last_end
    assert ended is not None
    started = seconds(ended.started_at)
    lived = span(finished - started) if started is not None and finished is not None else "an unknown time"
    previous = container.is_running
    limits = container.spec.resources.limits if container.spec.resources is not None else {}
    words = {
        "exit": exit_words(ended.exit_code or 0),
        "code": str(ended.exit_code or 0),
        "lived": lived,
        "again": f"was restarted {times(container.restarts)}" if container.restarts else "was not restarted yet",
        "limit": str(limits.get("memory", "none")),
        "message": first_line(ended.message or ""),
        "then": "It runs again now." if container.is_running else "",
        "calm": "yes" if facts.now - (container.running_since or facts.now) >= CALM else "",
        "final": "" if _will_restart(facts, container) else "yes",
        "previous": " --previous" if previous else "",
        "policy": container.spec.restart_policy or facts.pod.spec.restart_policy or "Always",
        "finished": str(finished or 0.0),
    }
    evidence = tuple(facts.last_log(container.name, previous))[-LOG_LINES:]
    return _found(
        facts, container, words, since=finished, next_in=_restart_in(facts, container, finished), evidence=evidence
    )


def _restart_in(facts: PodFacts, container: ContainerFacts, finished: float | None) -> float | None:
    """Seconds until the container is started again; None when it runs or will not be."""
    if container.is_running:
        return None
    found = BACKOFF_SIGN.search(container.waiting_message)
    if found is not None and finished is not None:
        return max(0.0, finished + parse_duration(found["delay"]) - facts.now)
    return facts.next_run_in


def _will_restart(facts: PodFacts, container: ContainerFacts) -> bool:
    ended = container.last_end
    return facts.phase not in ("Failed", "Succeeded") and (
        ended is None or restarts_on_exit(facts.pod, container.spec, ended.exit_code or 0)
    )


def out_of_memory(facts: PodFacts) -> Sequence[Finding]:
    return _crashes(facts, lambda c: c.last_end is not None and c.last_end.reason == reasons.OOM_KILLED)


def memory_child(facts: PodFacts) -> Sequence[Finding]:
    """The kernel killed a process inside a container whose first process goes on."""
    found = []
    for container in facts.containers():
        run = facts.seen.container(container.name) if facts.seen is not None else None
        if run is None or run.state is not ContainerState.RUNNING:
            continue
        limits = container.spec.resources.limits if container.spec.resources is not None else {}
        limit = f"its memory limit is {limits.get('memory', 'not set')}"
        kill = facts.failing(Step.OOM, container.name)
        if kill is not None and kill.reason == "ChildKilled" and kill.last_at >= run.started_at / 1e9:
            words = {"killed": kill.message, "limit": limit}
            found.append(_found(facts, container, words, since=kill.at, next_in=None))
        elif run.reason == reasons.OOM_KILLED:
            words = {"killed": "a process was killed: its processes together hit a memory limit", "limit": limit}
            found.append(_found(facts, container, words, since=run.started_at / 1e9, next_in=None))
    return found


def probe_kills(facts: PodFacts) -> Sequence[Finding]:
    """Restarted because its liveness or startup probe failed."""
    found = []
    for crash in _crashes(facts, lambda c: True) + _restarted_well(facts):
        event = facts.event("Killing", container=crash.subject)
        kind = next((k for k in ("liveness", "startup") if event and f"failed {k} probe" in event.message), "")
        if event is None or not kind or abs(event.last - float(crash.words["finished"])) > RECENT:
            continue
        container = next(c for c in facts.containers() if c.name == crash.subject)
        found.append(_with_probe(facts, container, kind, crash))
    return found


def _restarted_well(facts: PodFacts) -> list[Finding]:
    """A program that stops politely when asked ends with 0, also when a probe's failure was the reason."""
    known = []
    for container in facts.containers():
        ended = container.last_end
        finished = seconds(ended.finished_at) if ended is not None else None
        if ended is not None and finished is not None and (ended.exit_code or 0) == 0 and facts.now - finished < RECENT:
            known.append(_crash(facts, container, finished))
    return known


def restarted_by_hand(facts: PodFacts) -> Sequence[Finding]:
    """Stopped because a person asked for a restart: no crash, whatever the program ended with."""
    found = []
    for crash in _crashes(facts, lambda c: True) + _restarted_well(facts):
        event = facts.event("Killing", container=crash.subject)
        if event is not None and ASKED in event.message and abs(event.last - float(crash.words["finished"])) <= RECENT:
            found.append(crash)
    return found


def init_failed(facts: PodFacts) -> Sequence[Finding]:
    return [
        found
        for found in _crashes(facts, lambda c: c.kind is ContainerKind.INIT and not is_sidecar(c.spec))
        if _kept(facts, found)
    ]


def crash_loop(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _crashes(facts, lambda c: True) if _kept(facts, found)]


def _kept(facts: PodFacts, found: Finding) -> bool:
    container = next(c for c in facts.containers() if c.name == found.subject)
    return _will_restart(facts, container)


def failed_for_good(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _crashes(facts, lambda c: True) if not _kept(facts, found)]


# --- probes ---------------------------------------------------------------------------------------


def probe_startup(facts: PodFacts) -> Sequence[Finding]:
    return _probing(facts, "startup", lambda c: c.is_running and not (c.told and c.told.started))


def probe_readiness(facts: PodFacts) -> Sequence[Finding]:
    return _probing(facts, "readiness", lambda c: c.is_running and not (c.told and c.told.ready))


def probe_liveness(facts: PodFacts) -> Sequence[Finding]:
    """Failing, and not yet often enough to be restarted."""
    return _probing(facts, "liveness", lambda c: c.is_running)


def _probing(facts: PodFacts, kind: str, fits: Callable[[ContainerFacts], bool]) -> list[Finding]:
    found = []
    for container in facts.containers():
        if kind not in probes_of(container.spec) or not fits(container):
            continue
        entry = facts.failing(Step.PROBE, f"{container.name}/{kind}")
        began = container.running_since or 0.0
        if entry is not None and entry.last_at + 1 >= began:
            base = Finding(subject=container.name, since=max(entry.at, began))
            found.append(_with_probe(facts, container, kind, base))
    return found


def _with_probe(facts: PodFacts, container: ContainerFacts, kind: str, base: Finding) -> Finding:
    probe = probes_of(container.spec).get(kind, Probe())
    entry = facts.failing(Step.PROBE, f"{container.name}/{kind}") or facts.newest(
        Step.PROBE, f"{container.name}/{kind}"
    )
    period = float(probe.period_seconds or 10)
    words = {
        **base.words,
        "probe": kind,
        "asks": asks(probe),
        "said": first_line(entry.message, 160) if entry is not None and entry.message else "no answer",
        "failures": times(entry.repeats + 1) if entry is not None else "several times",
        "threshold": str(probe.failure_threshold or 3),
        "period": span(period),
    }
    next_in = base.next_in
    if next_in is None and entry is not None:
        next_in = max(0.0, min(period, entry.last_at + period - facts.now))
    return _found(facts, container, words, since=base.since, next_in=next_in, evidence=base.evidence)


def asks(probe: Probe) -> str:
    """What a probe does, in words."""
    if probe.http_get is not None:
        get = probe.http_get
        return f"GET {(get.scheme or 'HTTP').lower()}://{get.host or 'the pod'}:{get.port}{get.path or '/'}"
    if probe.tcp_socket is not None:
        return f"connecting to port {probe.tcp_socket.port}"
    if probe.grpc is not None:
        return f"the gRPC health service on port {probe.grpc.port}"
    if probe.exec is not None:
        return f"running `{' '.join(probe.exec.command)}`"
    return "it"


def readiness_gate(facts: PodFacts) -> Sequence[Finding]:
    if facts.phase != "Running" or facts.is_ready:
        return ()
    true = {each.type for each in facts.status.conditions if each.status == "True"}
    open_gates = [
        gate.condition_type or "" for gate in facts.pod.spec.readiness_gates if gate.condition_type not in true
    ]
    if not open_gates or "ContainersReady" not in true:
        return ()
    return [Finding(words={"gates": ", ".join(open_gates)})]


# --- no trouble, only not there yet ---------------------------------------------------------------


def init_running(facts: PodFacts) -> Sequence[Finding]:
    for container in facts.containers():
        if container.kind is ContainerKind.INIT and not is_sidecar(container.spec) and container.is_running:
            since = container.running_since
            words = {"took": span(facts.now - since) if since is not None else "a while"}
            return [_found(facts, container, words, since=since, next_in=None)]
    return ()


def starting(facts: PodFacts) -> Sequence[Finding]:
    if facts.phase not in ("Pending", "Running") or facts.is_ready:
        return ()
    entry = facts.life[-1] if facts.life else None
    words = {"step": step_words(entry.step, entry.subject) if entry is not None else "the agent has just seen it"}
    return [Finding(words=words, since=entry.at if entry is not None else None, next_in=facts.next_run_in)]


def step_words(step: Step, subject: str) -> str:
    text = STEP_WORDS[step]
    return f"{text} ({subject})" if subject else text


STEP_WORDS = {
    Step.SEEN: "the agent saw it",
    Step.ADMISSION: "admission",
    Step.CGROUP: "making its cgroup",
    Step.VOLUMES: "mounting volumes",
    Step.CLAIMS: "getting its devices and claims",
    Step.SANDBOX: "making the sandbox",
    Step.PULL: "getting the image",
    Step.CREATE: "creating the container",
    Step.START: "starting the container",
    Step.HOOK: "running a hook",
    Step.PROBE: "probing",
    Step.EXIT: "a container ended",
    Step.BACKOFF: "waiting before the next start",
    Step.OOM: "the kernel killed a process",
    Step.EVICTION: "eviction",
    Step.KILL: "stopping",
    Step.CLEANUP: "giving back what it held",
    Step.SYNC: "bringing it to what its spec says",
}


def _found(
    facts: PodFacts,
    container: ContainerFacts,
    words: dict[str, str],
    *,
    since: float | None,
    next_in: float | None = -1.0,
    evidence: Sequence[str] = (),
) -> Finding:
    kind = "init container" if container.kind is ContainerKind.INIT else "container"
    if container.kind is ContainerKind.EPHEMERAL:
        kind = "ephemeral container"
    known = {"container": container.name, "kind": kind, "restarts": str(container.restarts), **words}
    # -1 = not said: the worker's next run is the best guess.
    due = facts.next_run_in if next_in == -1.0 else next_in
    return Finding(subject=container.name, words=known, since=since, next_in=due, evidence=evidence)
