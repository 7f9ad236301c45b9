"""Causes that concern the whole pod: the node, admission, eviction, volumes, the sandbox, and its end.

A finder takes the facts and gives what it found, most often nothing or one thing. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.explain.cause import Cause, Finding
from pykubelet.explain.facts import PodFacts, seconds
from pykubelet.explain.signs import is_network_trouble, missing_object
from pykubelet.explain.texts import first_line, ordinal, span
from pykubelet.explain.view import State
from pykubelet.model.pod import uses_host_network
from pykubelet.model.problems import NotAdmitted, SandboxFailed, Shortage, VolumeFailed
from pykubelet.pods.record import WorkerState
from pykubelet.recorder import Outcome, Step

SLOW_STEP = 10.0
"""Seconds after which a step that is still under way counts as slow."""


@Cause(
    id="runtime-down",
    title="The container runtime does not answer",
    state=State.STUCK,
    chain=(
        "nothing can be started, stopped or looked at on this node",
        "the container runtime does not answer: {problem}",
    ),
    next="The agent asks again several times a second and goes on with every pod as soon as it answers.",
    advice=(
        "look at the runtime: `systemctl status containerd`, or with `pykubelet up` the end of "
        "<state folder>/runtime/containerd.log",
        "containers that run keep running meanwhile; restarting the runtime does not end them",
    ),
    shown="whatever it was before",
)
def runtime_down(facts: PodFacts) -> Sequence[Finding]:
    if facts.node.runtime_up:
        return ()
    entry = facts.failing(Step.SYNC)
    since = facts.failing_since(Step.SYNC) if entry is not None and entry.reason == "RuntimeDown" else None
    return [Finding(values={"problem": first_line(facts.node.runtime_problem)}, since=since, next_in=facts.next_run_in)]


@Cause(
    id="unreadable",
    title="The pod cannot be read",
    state=State.STUCK,
    chain=("the node does not run the pod", "the object that the API server has cannot be read: {problem}"),
    next="The agent takes the pod as soon as a version of it comes that can be read.",
    advice=(
        "`kubectl get pod -o json` shows the field; correct it or make the pod anew without it",
        "a field that the Go kubelet reads and this agent does not is a mistake here: please report it",
    ),
    shown="not at all",
    final=True,
)
def unreadable(facts: PodFacts) -> Sequence[Finding]:
    """The pod was never read on this node."""
    return [Finding(values={"problem": facts.unreadable})] if facts.unreadable and facts.worker is None else ()


@Cause(
    id="unreadable-change",
    title="The newest version of the pod cannot be read",
    state=State.NOTE,
    chain=("the node goes on with an older version of the pod", "the newest one cannot be read: {problem}"),
    next="The agent takes the next version that can be read; if the pod is deleted, it ends all the same.",
    advice=("`kubectl get pod -o json` shows the field; correct it or make the pod anew without it",),
    shown="whatever it was before",
)
def unreadable_change(facts: PodFacts) -> Sequence[Finding]:
    """The node goes on with the last version that it could read."""
    return [Finding(values={"problem": facts.unreadable})] if facts.unreadable and facts.worker is not None else ()


# --- admission ------------------------------------------------------------------------------------


def _rejected(facts: PodFacts) -> NotAdmitted | None:
    entry = facts.failing(Step.ADMISSION)
    if entry is None or not isinstance(entry.cause, NotAdmitted):
        return None
    return entry.cause if facts.phase == "Failed" and facts.status.reason else None


@Cause(
    id="node-short",
    title="The node has too little of a resource",
    state=State.FAILED,
    chain=("the pod was not let in and will not run", "the node has too little {resource}: {shown}"),
    next="Nothing: a pod that was not let in is not tried again. Changing its manifest makes a new try.",
    advice=(
        "lower resources.requests.{resource} in the manifest, or stop another pod: `pykubelet top pods` shows who "
        "uses what",
        "the node's share for pods is what is left after kubeReserved and systemReserved",
    ),
    shown="OutOfcpu, OutOfmemory, OutOfpods, …",
    final=True,
)
def node_short(facts: PodFacts) -> Sequence[Finding]:
    problem = _rejected(facts)
    if problem is None or problem.short_of is None:
        return ()
    short = problem.short_of
    return [Finding(values={"resource": short.resource, "shown": _shown(short)}, since=_started(facts))]


def _shown(short: Shortage) -> str:
    if short.preempting:
        # Critical pods, and static ones are, may have others stopped for them; there was none to stop.
        return f"{amount(short.resource, short.missing)} are missing, and no lesser pod could be stopped for it"
    requested, free, capacity = (amount(short.resource, n) for n in (short.requested, short.free, short.capacity))
    return f"it asks for {requested} and {free} of {capacity} are free"


@Cause(
    id="not-admitted",
    title="The node does not let the pod in",
    state=State.FAILED,
    chain=("the pod was not let in and will not run", "{reason}: {message}"),
    next="Nothing: a pod that was not let in is not tried again. Changing its manifest makes a new try.",
    advice=(
        "change what the message names: node selector, tolerations, host ports, sysctls or security profile",
        "when the node has reached its volume attachment limit: a controller makes the pod anew, and the scheduler "
        "knows the new limit by then; a pod without one has to be made again",
    ),
    shown="the reason, such as NodeAffinity, SysctlForbidden or VolumeAttachmentLimitExceeded",
    final=True,
)
def not_admitted(facts: PodFacts) -> Sequence[Finding]:
    problem = _rejected(facts)
    if problem is None or problem.short_of is not None:
        return ()
    values = {"reason": problem.reason, "message": first_line(problem.message)}
    return [Finding(values=values, since=_started(facts))]


@Cause(
    id="evicted-measured",
    title="The node ended the pod because it ran short, or because the pod broke a limit of its own",
    state=State.FAILED,
    chain=("the node ended the pod (Evicted): {short}", "{why}"),
    next="Nothing: an evicted pod stays ended until it is made anew.",
    advice=(
        "give the pod requests that cover what it really uses, so that it is among the last to be evicted",
        "free what is short on the node: disk (`pykubelet image ls`), memory (`pykubelet top pods`)",
        "if it broke a limit of its own, raise that limit or have it write less",
    ),
    shown="Evicted",
    final=True,
)
def evicted_measured(facts: PodFacts) -> Sequence[Finding]:
    """Ended by this agent's own eviction, which wrote down what it had measured."""
    entry = facts.failing(Step.EVICTION)
    if entry is None or facts.phase != "Failed" or facts.status.reason != "Evicted":
        return ()
    own = entry.subject.endswith(".limit")
    values = {
        "why": entry.message.strip(),
        "short": "a limit of its own on the node's disk" if own else f"the node ran short ({entry.subject})",
    }
    return [Finding(values=values, since=entry.at)]


@Cause(
    id="evicted",
    title="The node ended the pod to save itself or a more important pod",
    state=State.FAILED,
    chain=("the node ended the pod ({reason})", "{message}"),
    next="Nothing: an evicted pod stays ended until it is made anew.",
    advice=(
        "give the pod requests that cover what it really uses, so that it is among the last to be evicted",
        "free what is short on the node: disk (`pykubelet image ls`), memory (`pykubelet top pods`)",
    ),
    shown="Evicted, Preempting",
    final=True,
)
def evicted(facts: PodFacts) -> Sequence[Finding]:
    if facts.phase != "Failed" or facts.status.reason not in ("Evicted", "Preempting", "Preempted", "Terminated"):
        return ()
    values = {"reason": facts.status.reason, "message": first_line(facts.status.message or "no reason was given")}
    return [Finding(values=values, since=_started(facts))]


@Cause(
    id="deadline",
    title="The pod ran longer than it may",
    state=State.FAILED,
    chain=("the pod was ended by the node", "it ran longer than spec.activeDeadlineSeconds allows ({allowed})"),
    next="Nothing: the pod stays ended.",
    advice=("raise spec.activeDeadlineSeconds or make the work shorter",),
    shown="DeadlineExceeded",
    final=True,
)
def deadline(facts: PodFacts) -> Sequence[Finding]:
    if facts.status.reason != "DeadlineExceeded":
        return ()
    allowed = facts.pod.spec.active_deadline_seconds or 0
    return [Finding(values={"allowed": span(float(allowed))}, since=_started(facts))]


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


@Cause(
    id="network-not-ready",
    title="The pod network of the node is not ready",
    state=State.STUCK,
    chain=("no pod with a network of its own can start on this node", "{problem}"),
    next="The agent looks again {when} and starts the pod as soon as the network is there.",
    advice=(
        "install the cluster's network plugin; its configuration belongs into /etc/cni/net.d of the node",
        "pods with hostNetwork start without it",
    ),
    shown="ContainerCreating",
)
def network_not_ready(facts: PodFacts) -> Sequence[Finding]:
    if not facts.node.network_problem or uses_host_network(facts.pod) or facts.phase != "Pending":
        return ()
    since = facts.failing_since(Step.SYNC)
    return [Finding(values={"problem": first_line(facts.node.network_problem)}, since=since, next_in=facts.next_run_in)]


@Cause(
    id="cgroup-failed",
    title="The pod's cgroup cannot be made",
    state=State.STUCK,
    chain=("the pod cannot start", "its cgroup cannot be made: {problem}"),
    next="The agent tries again {when}.",
    advice=(
        "check that cgroupDriver is what the runtime uses and that cgroupRoot exists",
        "on cgroup v2, the controllers cpu, memory and pids must be on in the parent's cgroup.subtree_control",
    ),
    shown="ContainerCreating",
)
def cgroup_failed(facts: PodFacts) -> Sequence[Finding]:
    entry = facts.failing(Step.CGROUP)
    if entry is None:
        return ()
    since = facts.failing_since(Step.CGROUP)
    return [Finding(values={"problem": first_line(entry.message)}, since=since, next_in=facts.next_run_in)]


@Cause(
    id="sandbox-network",
    title="The pod's network cannot be set up",
    state=State.STUCK,
    chain=("the pod cannot start: its sandbox cannot be made", "the network plugin failed: {problem}"),
    next="The agent tries again {when}.",
    advice=(
        "check the CNI configuration (/etc/cni/net.d, or <state folder>/runtime/cni with `pykubelet up`) and that "
        "the plugins it names are installed",
        "when addresses have run out, remove what dead pods left under /var/lib/cni/networks",
        "host ports must be free on the node",
    ),
    shown="ContainerCreating",
)
def sandbox_network(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _sandbox(facts) if is_network_trouble(found.values["problem"])]


@Cause(
    id="sandbox-failed",
    title="The pod's sandbox cannot be made",
    state=State.STUCK,
    chain=("the pod cannot start", "the runtime cannot make its sandbox: {problem}"),
    next="The agent tries again {when}.",
    advice=(
        "the pause image must be on the node or its registry reachable",
        "the runtime's own log says more",
    ),
    shown="ContainerCreating",
)
def sandbox_failed(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _sandbox(facts) if not is_network_trouble(found.values["problem"])]


def _sandbox(facts: PodFacts) -> list[Finding]:
    entry = facts.newest(Step.SANDBOX)
    if entry is None or facts.is_ending:
        return []
    since = facts.failing_since(Step.SANDBOX)
    if entry.outcome is Outcome.FAILED:
        problem = entry.cause.text if isinstance(entry.cause, SandboxFailed) else entry.message
        return [Finding(values={"problem": first_line(problem)}, since=since, next_in=facts.next_run_in)]
    if entry.outcome is Outcome.BEGUN and facts.now - entry.at >= SLOW_STEP:
        problem = (
            f"the runtime has been making the sandbox for {span(facts.now - entry.at)}, which is often the network"
        )
        return [Finding(values={"problem": problem}, since=entry.at)]
    return []


# --- the end --------------------------------------------------------------------------------------


@Cause(
    id="stopping-hook",
    title="The end waits for a preStop hook",
    state=State.ENDING,
    chain=(
        "the pod is ending and container {container} still runs",
        "its preStop hook has been running for {took}; it may use all of the {grace} of grace",
    ),
    next="In at most {left} the hook is given up and the container is stopped, then killed.",
    advice=(
        "`pykubelet describe pod {name}` shows the hook, `pykubelet logs {name} -c {container}` what the program says",
        "make the hook end sooner, or lower spec.terminationGracePeriodSeconds",
    ),
    shown="Terminating",
)
def stopping_hook(facts: PodFacts) -> Sequence[Finding]:
    return _stopping(facts, hooked=True)


@Cause(
    id="stopping-container",
    title="The end waits for a container",
    state=State.ENDING,
    chain=(
        "the pod is ending and container {container} still runs",
        "it was asked to stop {took} ago and has {grace} to do so",
    ),
    next="In at most {left} it is killed.",
    advice=(
        "a program that is the first process of a container must handle SIGTERM itself; a shell script needs a "
        "trap or `exec` before the last command",
        "lower spec.terminationGracePeriodSeconds if the program has nothing to finish",
    ),
    shown="Terminating",
)
def stopping_container(facts: PodFacts) -> Sequence[Finding]:
    return _stopping(facts, hooked=False)


def _stopping(facts: PodFacts, *, hooked: bool) -> list[Finding]:
    if not facts.is_ending or (facts.worker is not None and facts.worker.state is WorkerState.TERMINATED):
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
        values = {
            "container": container.name,
            "grace": span(grace),
            "left": span(left),
            "took": span(facts.now - entry.at),
        }
        found.append(Finding(subject=container.name, values=values, since=entry.at, next_in=left))
    return found


@Cause(
    id="stopping-volumes",
    title="The end waits for volumes",
    state=State.ENDING,
    chain=("nothing of the pod runs any more, but it still holds volumes", "{problem}"),
    next="The agent tries again {when}; other pods are not affected.",
    advice=(
        "see who uses the mount: `fuser -vm <path>` or `lsof <path>` on the node",
        "for network storage, check that its server answers",
    ),
    shown="Terminating",
)
def stopping_volumes(facts: PodFacts) -> Sequence[Finding]:
    if not facts.is_ending:
        return ()
    cleanup = facts.under_way(Step.CLEANUP) or facts.failing(Step.CLEANUP)
    if cleanup is None and not facts.volume_problems:
        return ()
    problem = facts.volume_problems[0].describe(facts.now) if facts.volume_problems else ""
    if cleanup is not None and cleanup.outcome is Outcome.FAILED:
        problem = problem or cleanup.message
    since = cleanup.at if cleanup is not None else None
    shown = first_line(problem) if problem else "volumes are being unmounted"
    return [Finding(values={"problem": shown}, since=since, next_in=facts.next_run_in)]


@Cause(
    id="stopping-failed",
    title="Ending the pod fails",
    state=State.ENDING,
    chain=("the pod should end and does not", "{problem}"),
    next="The agent tries again {when}.",
    advice=("look at the runtime's log for the container that resists", "look at the agent's log for this pod"),
    shown="Terminating",
)
def stopping_failed(facts: PodFacts) -> Sequence[Finding]:
    """Ending, and the last try to end it failed, or a driver is slow to take back what the pod claimed."""
    slow = facts.under_way(Step.CLAIMS) if facts.is_ending else None
    if slow is not None and facts.now - slow.at >= SLOW_STEP:
        return [Finding(values={"problem": f"{slow.subject} has not answered"}, since=slow.at)]
    if not facts.is_ending or facts.worker is None or not facts.worker.last_error:
        return ()
    since = facts.failing_since(Step.SYNC)
    values = {"problem": first_line(facts.worker.last_error)}
    return [Finding(values=values, since=since, next_in=facts.next_run_in)]


@Cause(
    id="stopping",
    title="The pod is ending",
    state=State.ENDING,
    chain=("the pod is no longer wanted and is being stopped",),
    next="What it holds is given back as soon as its containers have ended.",
    advice=(),
    shown="Terminating",
    final=True,
)
def stopping(facts: PodFacts) -> Sequence[Finding]:
    if not facts.is_ending:
        return ()
    entry = facts.newest(Step.KILL)
    return [Finding(since=entry.at if entry is not None else None, next_in=None)]


@Cause(
    id="host-hangs",
    title="The host does not answer",
    state=State.NOTE,
    chain=("something the agent asked the host for this pod has not come back", "{call}, for {took}"),
    next="The agent goes on without it and asks again when it has come back; other pods are not affected.",
    advice=(
        "check that the file server behind the pod's volumes answers from this node",
        "processes in state D (`ps -eo pid,stat,wchan,cmd`) show which mount hangs",
    ),
    shown="any",
)
def host_hangs(facts: PodFacts) -> Sequence[Finding]:
    """The host does not answer something that was asked for this pod."""
    return [
        Finding(values={"call": call, "took": span(seconds)}, since=facts.now - seconds)
        for call, seconds in facts.hanging[:1]
    ]


# --- last resort ----------------------------------------------------------------------------------


@Cause(
    id="sync-failing",
    title="Something else keeps failing",
    state=State.STUCK,
    chain=("the pod cannot be brought to what its spec says (try {tries})", "{problem}"),
    next="The agent tries again {when}.",
    advice=("look at the agent's log for this pod", "`pykubelet events {name}`"),
    shown="any",
    brief="the pod cannot be brought to what its spec says: {problem}",
)
def sync_failing(facts: PodFacts) -> Sequence[Finding]:
    """Something else keeps failing: say what the worker says."""
    if facts.worker is None or not facts.worker.failures or not facts.worker.last_error:
        return ()
    values = {"problem": first_line(facts.worker.last_error), "tries": str(facts.worker.failures)}
    return [Finding(values=values, since=facts.failing_since(Step.SYNC), next_in=facts.next_run_in)]


@Cause(
    id="same-name-ending",
    title="A pod of the same name is still ending",
    state=State.STARTING,
    chain=("the pod has not been started yet", "another static pod of this name is still being stopped"),
    next="The agent starts it as soon as the other has ended.",
    advice=(),
    shown="Pending",
)
def same_name_ending(facts: PodFacts) -> Sequence[Finding]:
    """A static pod of the same name is still ending."""
    if (
        facts.worker is None
        or facts.worker.state is not WorkerState.SYNCING
        or facts.status.phase
        or facts.newest(Step.CGROUP)
    ):
        return ()
    first = facts.newest(Step.SEEN)
    if first is None or facts.now - first.at < SLOW_STEP:
        return ()
    return [Finding(since=first.at)]


# --- volumes --------------------------------------------------------------------------------------

STUCK_MOUNT = 30.0
"""Seconds after which a mount that is still under way counts as stuck."""


@Cause(
    id="waits-for-turn",
    title="The pod waits for its turn",
    state=State.STARTING,
    chain=("the runtime is busy with other pods", "the pod waits for its turn, {place}"),
    next="The agent goes on with it when the pods before it are through.",
    advice=("metrics pykubelet_runtime_turns and pykubelet_runtime_turn_wait_seconds show how it goes on",),
    shown="ContainerCreating",
)
def waits_for_turn(facts: PodFacts) -> Sequence[Finding]:
    entry = facts.under_way(Step.TURN)
    place = facts.turn() if entry is not None and not facts.is_ending else None
    return [Finding(values={"place": ordinal(place)}, since=entry.at)] if entry is not None and place else ()


@Cause(
    id="object-missing",
    title="A volume needs a ConfigMap, Secret or claim that is not there",
    state=State.STUCK,
    chain=(
        "no container can start before all volumes are mounted",
        "{volume} needs {object}, which does not exist",
    ),
    next="The agent looks again {when}; a ConfigMap or Secret that the pod itself names is noticed when it appears.",
    advice=(
        "create it in the pod's namespace, or correct the name in spec.volumes",
        "the secret of a persistent volume belongs into the namespace that the volume names",
        "mark the reference `optional: true` if the pod can do without",
        "a node without a cluster has no ConfigMaps and Secrets: use hostPath or env values there",
    ),
    shown="ContainerCreating",
)
def object_missing(facts: PodFacts) -> Sequence[Finding]:
    """A volume waits for an object of the API server."""
    return [
        _found(facts, problem, {"object": missing})
        for problem in _unmounted(facts)
        if (missing := problem.missing or missing_object(problem.text))
    ]


@Cause(
    id="mount-failing",
    title="A volume cannot be mounted",
    state=State.STUCK,
    chain=("no container can start before all volumes are mounted", "{volume}: {problem}"),
    next="The agent tries again {when}.",
    advice=(
        "correct what the message names: path, type, server or driver",
        "`pykubelet events {name}` has every try",
    ),
    shown="ContainerCreating",
)
def mount_failing(facts: PodFacts) -> Sequence[Finding]:
    return [_found(facts, problem) for problem in _failing(facts) if problem.since is None]


@Cause(
    id="mount-stuck",
    title="A volume operation does not come back",
    state=State.STUCK,
    chain=("no container can start before all volumes are mounted", "{volume}: {problem}"),
    next="The agent waits for it in the background and tells every two minutes; other pods are not affected.",
    advice=(
        "check that the storage server (NFS, iSCSI, CSI driver) answers from this node",
        "processes in state D (`ps -eo pid,stat,wchan,cmd`) show which mount hangs",
    ),
    shown="ContainerCreating",
)
def mount_stuck(facts: PodFacts) -> Sequence[Finding]:
    """A volume operation that does not come back, failed before or not."""
    stuck = [_found(facts, problem) for problem in _failing(facts) if problem.since is not None]
    if stuck or facts.is_ending:
        return stuck
    waiting = facts.under_way(Step.VOLUMES, "")
    if waiting is None or facts.now - waiting.at < STUCK_MOUNT or facts.volume_problems:
        return ()
    values = {"volume": "a volume", "problem": "its mount has not come back"}
    return [Finding(values=values, since=waiting.at)]


def _failing(facts: PodFacts) -> list[VolumeFailed]:
    """Volumes that cannot be mounted although what they need exists."""
    return [each for each in _unmounted(facts) if not (each.missing or missing_object(each.text))]


def _unmounted(facts: PodFacts) -> Sequence[VolumeFailed]:
    return () if facts.is_ending else facts.volume_problems


def _found(facts: PodFacts, problem: VolumeFailed, values: Mapping[str, str] | None = None) -> Finding:
    known = {"volume": f"volume {problem.volume}", "problem": first_line(problem.text or "not finished")}
    return Finding(
        subject=problem.volume,
        values={**known, **(values or {})},
        since=facts.failing_since(Step.VOLUMES, problem.volume),
        next_in=None if problem.retry_at is None else float(round(max(0.0, problem.retry_at - facts.now))),
    )
