"""Causes that concern single containers: configuration, hooks, crashes, probes, and what is not there yet.

A finder gives at most one finding a container. A container shows one cause, the first in the order of explain.py.
Pure; images are in image_causes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from pykubelet.api.types import Probe
from pykubelet.explain.cause import Cause, Finding, container_finding, waiting_findings
from pykubelet.explain.facts import ContainerFacts, PodFacts, seconds
from pykubelet.explain.signs import exit_text, is_command_trouble, missing_object
from pykubelet.explain.steps import step_text
from pykubelet.explain.texts import first_line, span, times
from pykubelet.explain.view import State
from pykubelet.model import reasons
from pykubelet.model.pod import ContainerKind, is_sidecar, probes_of, restarts_on_exit
from pykubelet.model.problems import CrashLoop, CreateFailed, KillCause
from pykubelet.model.runtime_status import ContainerState
from pykubelet.recorder import Step

LOG_LINES = 5
SLOW_HOOK = 10.0
RECENT = 600.0
"""Seconds after which a restart is history."""
CALM = 60.0
"""Seconds a container must run again for its last end to be a mere note."""

# --- configuration and creation -------------------------------------------------------------------


@Cause(
    id="config-missing",
    title="A container needs a ConfigMap, Secret or key that is not there",
    state=State.STUCK,
    chain=("{kind} {container} cannot start ({reason})", "its environment needs {object}, which does not exist"),
    next="The agent looks again {when}.",
    advice=(
        "create it in the pod's namespace, or correct the name in env or envFrom",
        "mark the reference `optional: true` if the container can do without",
    ),
    shown="CreateContainerConfigError",
)
def config_missing(facts: PodFacts) -> Sequence[Finding]:
    return [
        replace(found, values={**found.values, "object": missing})
        for found in waiting_findings(facts, reasons.CREATE_CONTAINER_CONFIG_ERROR)
        if (missing := _missing(facts, found.subject))
    ]


@Cause(
    id="config-error",
    title="The container's configuration cannot be made",
    state=State.STUCK,
    chain=("{kind} {container} cannot start ({reason})", "{text}"),
    next="The agent tries again {when}.",
    advice=("correct what the message names in the manifest or in what it refers to",),
    shown="CreateContainerConfigError",
)
def config_error(facts: PodFacts) -> Sequence[Finding]:
    waiting = waiting_findings(facts, reasons.CREATE_CONTAINER_CONFIG_ERROR)
    return [found for found in waiting if not _missing(facts, found.subject)]


def _missing(facts: PodFacts, container: str) -> str:
    """The object that the container's config refers to and that does not exist."""
    problem = facts.failures.get(container)
    return (problem.missing or missing_object(problem.text)) if isinstance(problem, CreateFailed) else ""


@Cause(
    id="command-missing",
    title="The container's command cannot be run",
    state=State.STUCK,
    chain=(
        "{kind} {container} cannot start",
        "its command is not in image {image} or cannot be run: {text}",
    ),
    next="The agent tries again {when}.",
    advice=(
        "correct command and args; without a shell in the image, `sh -c` cannot work",
        "`exec format error` means an image for another processor",
    ),
    shown="RunContainerError, CrashLoopBackOff",
)
def command_missing(facts: PodFacts) -> Sequence[Finding]:
    return [f for f in _creating(facts) if is_command_trouble(f.values["text"])]


@Cause(
    id="create-failed",
    title="The runtime cannot create or start the container",
    state=State.STUCK,
    chain=("{kind} {container} cannot start ({reason})", "the runtime said: {text}"),
    next="The agent tries again {when}.",
    advice=("often a mount or a security setting the host cannot give", "the runtime's own log says more"),
    shown="CreateContainerError, RunContainerError",
)
def create_failed(facts: PodFacts) -> Sequence[Finding]:
    return [f for f in _creating(facts) if not is_command_trouble(f.values["text"])]


def _creating(facts: PodFacts) -> Sequence[Finding]:
    """The start failed just now, or it did before and the next try has to wait (CrashLoopBackOff)."""
    found = waiting_findings(facts, reasons.CREATE_CONTAINER_ERROR, reasons.RUN_CONTAINER_ERROR)
    for container in facts.containers():
        ended = container.last_end
        known = container.is_running or any(each.subject == container.name for each in found)
        if not known and ended is not None and ended.reason in ("StartError", "ContainerCannotRun"):
            values = {
                "text": first_line(ended.message or ""),
                "image": container.spec.image or "",
                "reason": container.waiting_reason or ended.reason,
            }
            due = _restart_in(facts, container)
            found.append(container_finding(container, values, since=seconds(ended.finished_at), next_in=due))
    return found


# --- hooks ----------------------------------------------------------------------------------------


@Cause(
    id="hook-failed",
    title="The postStart hook fails",
    state=State.RESTARTING,
    chain=("{kind} {container} is stopped right after its start", "its postStart hook failed: {text}"),
    next="The agent starts it again {when}.",
    advice=("a hook runs beside the program, which may not be up yet: let it retry", "correct the hook"),
    shown="PostStartHookError, CrashLoopBackOff",
)
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
        values = {"text": first_line(entry.message)}
        found.append(container_finding(container, values, since=since, next_in=facts.next_run_in))
    return found


@Cause(
    id="hook-hangs",
    title="A hook does not end",
    state=State.STUCK,
    chain=(
        "the start of the pod does not go on after {kind} {container}",
        "its postStart hook has been running for {took}",
    ),
    next="The agent waits: a postStart hook has no time limit. Containers that come later start after it.",
    advice=(
        "see what it does: `pykubelet exec {name} -c {container} -- ps`",
        "correct the hook so that it ends; `pykubelet restart {name}/{container}` starts over",
    ),
    shown="ContainerCreating",
    brief="the postStart hook of {kind} {container} does not end",
)
def hook_hangs(facts: PodFacts) -> Sequence[Finding]:
    found = []
    for container in facts.containers():
        entry = facts.under_way(Step.HOOK, container.name)
        if entry is not None and facts.now - entry.at >= SLOW_HOOK:
            values = {"took": span(facts.now - entry.at)}
            found.append(container_finding(container, values, since=entry.at, next_in=None))
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
    values = {
        "exit": exit_text(ended.exit_code or 0),
        "code": str(ended.exit_code or 0),
        "lived": lived,
        "again": f"was restarted {times(container.restarts)}" if container.restarts else "was not restarted yet",
        "limit": str(limits.get("memory", "none")),
        "message": first_line(ended.message or ""),
        "then": "It runs again now." if container.is_running else "",
        "previous": " --previous" if previous else "",
        "policy": container.spec.restart_policy or facts.pod.spec.restart_policy or "Always",
    }
    evidence = tuple(facts.last_log(container.name, previous))[-LOG_LINES:]
    due = _restart_in(facts, container)
    crash = container_finding(container, values, since=finished, next_in=due, evidence=evidence)
    return replace(
        crash,
        runs=container.is_running,
        calm=facts.now - (container.running_since or facts.now) >= CALM,
        restarts=_will_restart(facts, container),
    )


def _restart_in(facts: PodFacts, container: ContainerFacts) -> float | None:
    """Seconds until the container is started again; None when it runs or will not be."""
    if container.is_running:
        return None
    problem = facts.failures.get(container.name)
    if isinstance(problem, CrashLoop) and problem.retry_at is not None:
        return max(0.0, problem.retry_at - facts.now)
    return facts.next_run_in


def _will_restart(facts: PodFacts, container: ContainerFacts) -> bool:
    ended = container.last_end
    return facts.phase not in ("Failed", "Succeeded") and (
        ended is None or restarts_on_exit(facts.pod, container.spec, ended.exit_code or 0)
    )


@Cause(
    id="out-of-memory",
    title="The kernel killed the container for its memory",
    state=State.RESTARTING,
    chain=(
        "{kind} {container} ended after {lived} and {again}. {then}",
        "it used more memory than its limit ({limit}) and the kernel killed it (OOMKilled, exit code {code})",
    ),
    next="The agent starts it again {when}; the wait doubles from 10 s up to 5 minutes.",
    advice=(
        "raise resources.limits.memory, or make the program use less: `pykubelet top pods` shows what it uses",
        "files in emptyDir volumes with medium Memory count, too",
    ),
    shown="OOMKilled, CrashLoopBackOff",
    brief="{kind} {container} used more memory than its limit ({limit}) and the kernel killed it",
)
def out_of_memory(facts: PodFacts) -> Sequence[Finding]:
    return _crashes(facts, lambda c: c.last_end is not None and c.last_end.reason == reasons.OOM_KILLED)


@Cause(
    id="memory-child",
    title="The kernel killed a process in a container",
    state=State.NOTE,
    chain=(
        "{kind} {container} runs, but a process inside it was killed by the kernel",
        "{killed}; {limit}",
    ),
    next="Nothing: the container's first process goes on.",
    advice=("raise resources.limits.memory or run fewer workers",),
    shown="Running",
)
def memory_child(facts: PodFacts) -> Sequence[Finding]:
    """The kernel killed a process inside a container whose first process goes on."""
    found = []
    for container in facts.containers():
        run = facts.runtime.container(container.name) if facts.runtime is not None else None
        if run is None or run.state is not ContainerState.RUNNING:
            continue
        limits = container.spec.resources.limits if container.spec.resources is not None else {}
        limit = f"its memory limit is {limits.get('memory', 'not set')}"
        kill = facts.failing(Step.OOM, container.name)
        if kill is not None and kill.reason == "ChildKilled" and kill.last_at >= run.started_at / 1e9:
            values = {"killed": kill.message, "limit": limit}
            found.append(container_finding(container, values, since=kill.at, next_in=None))
        elif run.reason == reasons.OOM_KILLED:
            values = {"killed": "a process was killed: its processes together hit a memory limit", "limit": limit}
            found.append(container_finding(container, values, since=run.started_at / 1e9, next_in=None))
    return found


@Cause(
    id="probe-kills",
    title="A failing probe restarts the container",
    state=State.RESTARTING,
    chain=(
        "{kind} {container} {again}. {then}",
        "its {probe} probe ({action}) failed {threshold} times in a row, so the agent stopped it",
        "the probe saw: {text}",
    ),
    next="The agent starts it again {when} and probes it every {period}.",
    advice=(
        "if the program is only slow to come up, give it a startupProbe or a larger failureThreshold",
        "ask it yourself: `pykubelet exec {name} -c {container} -- …`, `pykubelet port-forward {name} PORT`",
        "the log before the restart: `pykubelet logs {name} -c {container} --previous`",
    ),
    shown="Running with restarts, CrashLoopBackOff",
    brief="{kind} {container} is restarted because its {probe} probe ({action}) fails",
)
def probe_kills(facts: PodFacts) -> Sequence[Finding]:
    """Restarted because its liveness or startup probe failed."""
    found = []
    for crash in _crashes(facts, lambda c: True) + _restarted_well(facts):
        kill = _kill_before(facts, crash)
        if kill not in (KillCause.LIVENESS, KillCause.STARTUP):
            continue
        container = next(c for c in facts.containers() if c.name == crash.subject)
        found.append(_with_probe(facts, container, kill.value, crash))
    return found


def _kill_before(facts: PodFacts, crash: Finding) -> KillCause | None:
    """Why the agent stopped the container around that end, if it did."""
    entry = facts.newest(Step.KILL, crash.subject)
    if entry is None or abs(entry.at - (crash.since or 0.0)) > RECENT:
        return None
    return entry.cause if isinstance(entry.cause, KillCause) else None


def _restarted_well(facts: PodFacts) -> list[Finding]:
    """A program that stops politely when asked ends with 0, also when a probe's failure was the reason."""
    known = []
    for container in facts.containers():
        ended = container.last_end
        finished = seconds(ended.finished_at) if ended is not None else None
        if ended is not None and finished is not None and (ended.exit_code or 0) == 0 and facts.now - finished < RECENT:
            known.append(_crash(facts, container, finished))
    return known


@Cause(
    id="restarted-by-hand",
    title="A person restarted the container",
    state=State.NOTE,
    chain=("{kind} {container} ended and was started again", "somebody asked for it with `pykubelet restart`"),
    next="Nothing: it runs on.",
    advice=("the log before the restart: `pykubelet logs {name} -c {container} --previous`",),
    shown="Running with restarts",
)
def restarted_by_hand(facts: PodFacts) -> Sequence[Finding]:
    """Stopped because a person asked for a restart: no crash, whatever the program ended with."""
    crashes = _crashes(facts, lambda c: True) + _restarted_well(facts)
    return [crash for crash in crashes if _kill_before(facts, crash) is KillCause.RESTART_REQUESTED]


@Cause(
    id="init-failed",
    title="An init container fails",
    state=State.RESTARTING,
    chain=(
        "the containers of the pod wait for init container {container}",
        "it ended after {lived} with {exit}, and {again}",
    ),
    next="The agent runs it again {when}; the wait doubles from 10 s up to 5 minutes.",
    advice=(
        "see what it said: `pykubelet logs {name} -c {container}{previous}`",
        "correct what it complains about",
    ),
    shown="Init:Error, Init:CrashLoopBackOff",
    brief="init container {container} keeps failing ({exit})",
)
def init_failed(facts: PodFacts) -> Sequence[Finding]:
    return [
        found
        for found in _crashes(facts, lambda c: c.kind is ContainerKind.INIT and not is_sidecar(c.spec))
        if _kept(facts, found)
    ]


@Cause(
    id="crash-loop",
    title="The container's program keeps ending",
    state=State.RESTARTING,
    chain=(
        "{kind} {container} {again}. {then}",
        "its program ended after {lived} with {exit}",
    ),
    next="The agent starts it again {when}; the wait doubles from 10 s up to 5 minutes and is forgotten after 10 "
    "good minutes.",
    advice=(
        "see what it said: `pykubelet logs {name} -c {container}{previous}`",
        "a program that ends with 0 and should not be started again needs restartPolicy: OnFailure or Never",
    ),
    shown="Error, Completed, CrashLoopBackOff",
    brief="the program of {kind} {container} keeps ending ({exit})",
)
def crash_loop(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _crashes(facts, lambda c: True) if _kept(facts, found)]


def _kept(facts: PodFacts, found: Finding) -> bool:
    container = next(c for c in facts.containers() if c.name == found.subject)
    return _will_restart(facts, container)


@Cause(
    id="failed-for-good",
    title="A container failed and is not restarted",
    state=State.FAILED,
    chain=(
        "{kind} {container} has failed and will not run again (restartPolicy {policy})",
        "it ended after {lived} with {exit}",
    ),
    next="Nothing: the pod stays as it is until it is made anew.",
    advice=(
        "see what it said: `pykubelet logs {name} -c {container}`",
        "to have it tried again, set restartPolicy: OnFailure",
    ),
    shown="Error",
    brief="{kind} {container} has failed ({exit}) and will not run again (restartPolicy {policy})",
)
def failed_for_good(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _crashes(facts, lambda c: True) if not _kept(facts, found)]


# --- probes ---------------------------------------------------------------------------------------


@Cause(
    id="probe-startup",
    title="The startup probe has not passed yet",
    state=State.NOT_READY,
    chain=(
        "{kind} {container} runs and does not count as started",
        "its startup probe ({action}) failed {failures}; after {threshold} failures in a row it is restarted",
        "the probe saw: {text}",
    ),
    next="The agent probes again {when}.",
    advice=("raise failureThreshold × periodSeconds above the time the program needs to come up",),
    shown="Running, not ready",
    brief="the startup probe of {kind} {container} ({action}) has not passed yet",
)
def probe_startup(facts: PodFacts) -> Sequence[Finding]:
    return _probing(facts, "startup", lambda c: c.is_running and not (c.status and c.status.started))


@Cause(
    id="probe-readiness",
    title="The readiness probe fails",
    state=State.NOT_READY,
    chain=(
        "the pod is not ready: no traffic of services goes to it",
        "the readiness probe of {kind} {container} ({action}) failed {failures}",
        "the probe saw: {text}",
    ),
    next="The agent probes again {when}; readiness never restarts a container.",
    advice=(
        "ask it yourself: `pykubelet port-forward {name} PORT`, or the same path from inside with `pykubelet exec`",
        "check port and path of the probe, and that the program listens on all addresses, not only on 127.0.0.1",
    ),
    shown="Running, not ready",
    brief="the readiness probe of {kind} {container} ({action}) fails",
)
def probe_readiness(facts: PodFacts) -> Sequence[Finding]:
    return _probing(facts, "readiness", lambda c: c.is_running and not (c.status and c.status.ready))


@Cause(
    id="probe-liveness",
    title="The liveness probe fails",
    state=State.NOT_READY,
    chain=(
        "{kind} {container} will soon be restarted",
        "its liveness probe ({action}) failed {failures}; after {threshold} failures in a row it is restarted",
        "the probe saw: {text}",
    ),
    next="The agent probes again {when}.",
    advice=("see what it says: `pykubelet logs {name} -c {container}`",),
    shown="Running",
    brief="the liveness probe of {kind} {container} ({action}) fails",
)
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
    values = {
        **base.values,
        "probe": kind,
        "action": probe_action(probe),
        "text": first_line(entry.message, 160) if entry is not None and entry.message else "no answer",
        "failures": times(entry.repeats + 1) if entry is not None else "several times",
        "threshold": str(probe.failure_threshold or 3),
        "period": span(period),
    }
    next_in = base.next_in
    if next_in is None and entry is not None:
        next_in = max(0.0, min(period, entry.last_at + period - facts.now))
    found = container_finding(container, values, since=base.since, next_in=next_in, evidence=base.evidence)
    return replace(found, runs=base.runs, calm=base.calm, restarts=base.restarts)


def probe_action(probe: Probe) -> str:
    """What a probe does."""
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


@Cause(
    id="readiness-gate",
    title="A readiness gate is closed",
    state=State.NOT_READY,
    chain=("every container is ready and the pod is not", "somebody else must set the condition: {gates}"),
    next="Nothing: the condition is set by another program, through the API server.",
    advice=("find the controller that the condition belongs to", "remove the gate from spec.readinessGates"),
    shown="Running, not ready",
)
def readiness_gate(facts: PodFacts) -> Sequence[Finding]:
    if facts.phase != "Running" or facts.is_ready:
        return ()
    true = {each.type for each in facts.status.conditions if each.status == "True"}
    open_gates = [
        gate.condition_type or "" for gate in facts.pod.spec.readiness_gates if gate.condition_type not in true
    ]
    if not open_gates or "ContainersReady" not in true:
        return ()
    return [Finding(values={"gates": ", ".join(open_gates)})]


# --- no trouble, only not there yet ---------------------------------------------------------------


@Cause(
    id="init-running",
    title="An init container is at work",
    state=State.STARTING,
    chain=("the containers of the pod wait for init container {container}", "it has been running for {took}"),
    next="The next one starts when it has ended with 0.",
    advice=("see what it does: `pykubelet logs {name} -c {container} -f`",),
    shown="Init:0/1",
)
def init_running(facts: PodFacts) -> Sequence[Finding]:
    for container in facts.containers():
        if container.kind is ContainerKind.INIT and not is_sidecar(container.spec) and container.is_running:
            since = container.running_since
            values = {"took": span(facts.now - since) if since is not None else "a while"}
            return [container_finding(container, values, since=since, next_in=None)]
    return ()


@Cause(
    id="starting",
    title="The pod is starting",
    state=State.STARTING,
    chain=("the pod is on its way", "last seen at: {step}"),
    next="The agent goes on by itself.",
    advice=(),
    shown="Pending, ContainerCreating",
)
def starting(facts: PodFacts) -> Sequence[Finding]:
    if facts.phase not in ("Pending", "Running") or facts.is_ready:
        return ()
    entry = facts.life[-1] if facts.life else None
    values = {"step": step_text(entry.step, entry.subject) if entry is not None else "the agent has just seen it"}
    return [Finding(values=values, since=entry.at if entry is not None else None, next_in=facts.next_run_in)]
