"""One case for every cause: from facts to the right one, with texts that name what matters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from pykubelet.api.types import ContainerState as ToldState
from pykubelet.api.types import (
    ContainerStateTerminated,
    ExecAction,
    HTTPGetAction,
    Lifecycle,
    LifecycleHandler,
    PodCondition,
    PodReadinessGate,
    Probe,
    ResourceRequirements,
)
from pykubelet.api.types import ContainerStatus as ToldStatus
from pykubelet.explain.explain import CAUSES, explain
from pykubelet.explain.facts import NodeFacts, PodFacts
from pykubelet.explain.view import State
from pykubelet.model.problems import (
    CreateFailed,
    KillCause,
    NotAdmitted,
    SandboxFailed,
    Shortage,
    VolumeFailed,
)
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.pods.record import WorkerState
from pykubelet.recorder import LifeEntry, Step
from tests.builders import NOW, a_container, a_pod, ns
from tests.unit.explain.making import Worker, begun, crashed, ended, entry, facts, failed, running, waiting

GATE = PodReadinessGate(condition_type="example.com/up")
PROBE = Probe(http_get=HTTPGetAction(path="/healthz", port=8080), period_seconds=5, failure_threshold=3)
HOOK = LifecycleHandler(exec=ExecAction(command=["sleep", "1000"]))
IMAGE = "busybox:1"


@dataclass(frozen=True)
class Case:
    cause: str
    facts: PodFacts
    says: tuple[str, ...]
    """Found in the text of the explanation."""
    since: float | None = None
    next_in: float | None = None


def pull(text: str, reason: str = "ImagePullBackOff") -> PodFacts:
    return facts(
        waiting(reason, f"Back-off pulling image: {text}"),
        life=[failed(Step.PULL, IMAGE, text, ago=30), entry(Step.PULL, IMAGE, reason="BackOff")],
        worker=Worker(next_run_in=17.0),
    )


def volume(text: str, **more: Any) -> PodFacts:
    return facts(
        waiting("ContainerCreating"),
        life=[failed(Step.VOLUMES, "cfg", "old", ago=40), failed(Step.VOLUMES, "cfg", "new")],
        volume_problems=[VolumeFailed(volume="cfg", text=text, **more)],
    )


def rejected(reason: str, message: str, short_of: Shortage | None = None) -> PodFacts:
    cause = NotAdmitted(reason=reason, text=message, short_of=short_of)
    life = [failed(Step.ADMISSION, "", message, reason=reason, cause=cause)]
    return facts(phase="Failed", reason=reason, message=f"Pod was rejected: {message}", life=life)


def sandbox_failed(text: str) -> LifeEntry:
    cause = SandboxFailed(text=text)
    return failed(Step.SANDBOX, "", cause.message, cause=cause)


def ending(*life: LifeEntry, **more: Any) -> PodFacts:
    return facts(running(), phase="Running", worker=Worker(state=WorkerState.TERMINATING), life=life, grace=30, **more)


def probing(kind: str, **told: Any) -> PodFacts:
    probes = {f"{kind}_probe": PROBE}
    seen = failed(Step.PROBE, f"app/{kind}", "HTTP probe failed with statuscode: 503", repeats=1, last_at=NOW - 2)
    return facts(running(**told), containers=[a_container(**probes)], phase="Running", life=[seen])


def stopped(end: ContainerStateTerminated) -> ToldStatus:
    return ToldStatus(name="app", image=IMAGE, image_id="", ready=False, state=ToldState(terminated=end))


def out_of_memory() -> PodRuntimeStatus:
    run = ContainerStatus(id="1", name="app", state=ContainerState.RUNNING, reason="OOMKilled", started_at=ns(NOW - 50))
    return PodRuntimeStatus(uid="uid-web", containers=(run,))


def with_containers_ready(about: PodFacts) -> PodFacts:
    about.status.conditions.append(PodCondition(type="ContainersReady", status="True"))
    return about


def untold(about: PodFacts) -> PodFacts:
    about.status.phase = None
    return about


CASES = [
    Case(
        "runtime-down",
        facts(
            running(),
            phase="Running",
            node=NodeFacts(runtime_up=False, runtime_problem="connection refused"),
            life=[failed(Step.SYNC, "", "x", reason="RuntimeDown", ago=20)],
        ),
        ("does not answer: connection refused", "systemctl status containerd"),
        since=NOW - 20,
    ),
    Case(
        "unreadable",
        facts(unreadable="spec.containers: expected array, got str"),
        ("does not run the pod", "spec.containers: expected array", "kubectl get pod -o json"),
    ),
    Case(
        "stopping-hook",
        ending(
            begun(Step.KILL, "app", ago=10),
            pod=a_pod(containers=[a_container(lifecycle=Lifecycle(pre_stop=HOOK))]),
        ),
        ("preStop hook has been running for 10 s", "30 s of grace", "In at most 20 s"),
        since=NOW - 10,
        next_in=20.0,
    ),
    Case(
        "stopping-container",
        ending(begun(Step.KILL, "app", ago=10)),
        ("asked to stop 10 s ago and has 30 s", "In at most 20 s it is killed", "SIGTERM"),
        since=NOW - 10,
        next_in=20.0,
    ),
    Case(
        "stopping-volumes",
        facts(
            phase="Running",
            worker=Worker(state=WorkerState.TERMINATED),
            life=[begun(Step.CLEANUP, ago=15)],
            volume_problems=[VolumeFailed(volume="data", text="device is busy", attempts=2, retry_at=NOW + 3)],
        ),
        ("still holds volumes", "device is busy"),
        since=NOW - 15,
    ),
    Case(
        "stopping-failed",
        facts(
            phase="Running",
            worker=Worker(
                state=WorkerState.TERMINATING, last_error="containers still run after the kill: app", next_run_in=4.0
            ),
        ),
        ("still run after the kill: app", "again in 4 s"),
        next_in=4.0,
    ),
    Case("stopping", ending(), ("no longer wanted",)),
    Case(
        "node-short",
        rejected(
            "OutOfcpu",
            "Node didn't have enough resource: cpu, requested: 64000, used: 500, capacity: 2000",
            Shortage(resource="cpu", missing=62500, requested=64000, free=1500, capacity=2000),
        ),
        ("too little cpu", "asks for 64 cores and 1.5 cores of 2 cores are free", "not tried again"),
    ),
    Case(
        "not-admitted",
        rejected("NodeAffinity", "Predicate NodeAffinity failed: node(s) didn't match"),
        ("NodeAffinity: Predicate NodeAffinity failed", "node selector"),
    ),
    Case(
        "evicted-measured",
        facts(
            phase="Failed",
            reason="Evicted",
            message="The node was low on resource: memory. ",
            life=[failed(Step.EVICTION, "memory.available", "memory.available 5Mi is below the hard threshold 1Gi.")],
        ),
        ("the node ran short (memory.available)", "5Mi is below the hard threshold 1Gi"),
    ),
    Case(
        "evicted",
        facts(phase="Failed", reason="Evicted", message="The node was low on resource: memory."),
        ("low on resource: memory", "stays ended"),
    ),
    Case(
        "deadline",
        facts(phase="Failed", reason="DeadlineExceeded", pod=a_pod(active_deadline_seconds=90)),
        ("longer than spec.activeDeadlineSeconds allows (1 min 30 s)",),
    ),
    Case(
        "unreadable-change",
        facts(running(), phase="Running", worker=Worker(), unreadable="metadata.labels: odd"),
        ("goes on with an older version", "metadata.labels: odd", "it ends all the same"),
    ),
    Case(
        "network-not-ready",
        facts(
            node=NodeFacts(network_problem="NetworkReady=false reason:NetworkPluginNotReady"),
            worker=Worker(next_run_in=2.0),
        ),
        ("NetworkPluginNotReady", "/etc/cni/net.d", "again in 2 s"),
        next_in=2.0,
    ),
    Case(
        "cgroup-failed",
        facts(life=[failed(Step.CGROUP, "", "No space left on device")], worker=Worker(next_run_in=9.0)),
        ("cgroup cannot be made: No space left on device",),
        since=NOW - 5,
        next_in=9.0,
    ),
    Case(
        "object-missing",
        volume("configmap default/web not found", missing="configmap default/web", attempts=3, retry_at=NOW + 4.2),
        ("volume cfg needs configmap default/web, which does not exist", "again in 4 s"),
        since=NOW - 40,
        next_in=4.0,
    ),
    Case(
        "mount-stuck",
        volume("not finished", since=NOW - 95),
        ("volume cfg: not finished", "other pods are not affected"),
    ),
    Case(
        "mount-failing",
        volume("hostPath type check failed: /srv is not a directory", attempts=2, retry_at=NOW + 1),
        ("/srv is not a directory", "again in 1 s"),
        next_in=1.0,
    ),
    Case(
        "sandbox-network",
        facts(
            life=[sandbox_failed('plugin type="bridge" failed (add): no IP')],
            worker=Worker(next_run_in=8.0),
        ),
        ("network plugin failed", "no IP", "again in 8 s"),
        next_in=8.0,
    ),
    Case(
        "sandbox-failed",
        facts(
            life=[sandbox_failed("pause image is missing")],
            worker=Worker(next_run_in=8.0),
        ),
        ("cannot make its sandbox: pause image is missing",),
        since=NOW - 5,
    ),
    Case(
        "registry-denied",
        pull("pull access denied, repository does not exist or may require authorization: 401 Unauthorized"),
        ("not allowed, or no such image", "imagePullSecrets", "pulls again in 17 s"),
        since=NOW - 30,
        next_in=17.0,
    ),
    Case("image-missing", pull("busybox:1: not found"), ("image busybox:1 does not exist", "image load")),
    Case(
        "registry-unreachable",
        pull("dial tcp: lookup registry.example: no such host"),
        ("cannot be reached", "no such host", "firewall"),
    ),
    Case("image-disk-full", pull("write /var/lib: no space left on device"), ("no room for image", "image rm")),
    Case("image-pull-failed", pull("unpacking went wrong"), ("cannot be pulled: unpacking went wrong",)),
    Case(
        "image-never-pulled",
        facts(waiting("ErrImageNeverPull", "is not present with pull policy of Never")),
        ("imagePullPolicy is Never", "image load"),
    ),
    Case(
        "image-name-invalid",
        facts(waiting("InvalidImageName", "couldn't parse image name"), containers=[a_container(image="BAD name")]),
        ("`BAD name` is not the name of an image", "until the manifest changes"),
    ),
    Case(
        "image-signature",
        facts(waiting("SignatureValidationFailed", "no signature found")),
        ("policy refuses image busybox:1",),
    ),
    Case(
        "image-slow",
        facts(waiting("ContainerCreating"), life=[begun(Step.PULL, IMAGE, ago=300)]),
        ("pulled for 5 min without an end", "no time limit"),
        since=NOW - 300,
    ),
    Case(
        "config-missing",
        facts(
            waiting("CreateContainerConfigError", 'secret "db" not found'),
            failures={
                "app": CreateFailed(container="app", reason="CreateContainerConfigError", text="…", missing="secret db")
            },
            life=[failed(Step.CREATE, "app", "x", ago=8)],
            worker=Worker(next_run_in=3.0),
        ),
        ("environment needs secret db, which does not exist", "again in 3 s"),
        since=NOW - 8,
        next_in=3.0,
    ),
    Case(
        "config-error",
        facts(waiting("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")),
        ("runAsNonRoot and image will run as root",),
    ),
    Case(
        "command-missing",
        facts(waiting("RunContainerError", 'exec: "nope": executable file not found in $PATH: unknown')),
        ("not in image busybox:1 or cannot be run", '"nope"'),
    ),
    Case(
        "create-failed",
        facts(waiting("CreateContainerError", "failed to reserve container name")),
        ("the runtime said: failed to reserve container name",),
    ),
    Case(
        "hook-failed",
        facts(
            waiting("PostStartHookError", "x"),
            containers=[a_container(lifecycle=Lifecycle(post_start=HOOK))],
            life=[failed(Step.HOOK, "app", "command 'sleep 1000' exited with 7: no")],
        ),
        ("postStart hook failed: command 'sleep 1000' exited with 7",),
        since=NOW - 5,
    ),
    Case(
        "hook-hangs",
        facts(
            waiting("ContainerCreating"),
            containers=[a_container(lifecycle=Lifecycle(post_start=HOOK))],
            life=[begun(Step.HOOK, "app", ago=75)],
        ),
        ("postStart hook has been running for 1 min 15 s", "no time limit"),
        since=NOW - 75,
    ),
    Case(
        "restarted-by-hand",
        facts(
            running(ago=5, restart_count=1, last_state=crashed(ended(137)).last_state),
            phase="Running",
            ready=True,
            life=[entry(Step.KILL, "app", ago=14, cause=KillCause.RESTART_REQUESTED)],
        ),
        ("somebody asked for it", "--previous"),
    ),
    Case(
        "out-of-memory",
        facts(
            crashed(ended(137, reason="OOMKilled")),
            containers=[a_container(resources=ResourceRequirements(limits={"memory": "64Mi"}))],
            phase="Running",
        ),
        ("more memory than its limit (64Mi)", "exit code 137", "again in 28 s"),
        since=NOW - 12,
        next_in=28.0,
    ),
    Case(
        "probe-kills",
        facts(
            running(ago=5, restart_count=2, last_state=crashed(ended(143)).last_state),
            containers=[a_container(liveness_probe=PROBE)],
            phase="Running",
            life=[
                failed(Step.PROBE, "app/liveness", "connection refused", ago=14),
                entry(Step.KILL, "app", ago=14, cause=KillCause.LIVENESS),
            ],
        ),
        ("restarted twice", "GET http://the pod:8080/healthz", "failed 3 times in a row", "saw: connection refused"),
        since=NOW - 12,
    ),
    Case(
        "init-failed",
        facts(
            waiting("PodInitializing"),
            pod=a_pod(init=[a_container("prepare")]),
            init=[crashed(ended(1), name="prepare", delay="20s")],
        ),
        ("wait for init container prepare", "exit code 1", "again in 8 s", "logs web -c prepare"),
        since=NOW - 12,
        next_in=8.0,
    ),
    Case(
        "failed-for-good",
        facts(stopped(ended(3)), phase="Failed", pod=a_pod(restart_policy="Never")),
        ("will not run again (restartPolicy Never)", "exit code 3", "Nothing: the pod stays"),
        since=NOW - 12,
    ),
    Case(
        "crash-loop",
        facts(crashed(ended(1)), phase="Running", last_log=lambda container, previous: ["one", "KeyError: 'PORT'"]),
        ("restarted 3 times", "after 3 s with exit code 1", "| KeyError: 'PORT'", "again in 28 s", "logs web -c app"),
        since=NOW - 12,
        next_in=28.0,
    ),
    Case(
        "probe-startup", probing("startup", ready=False, started=False), ("does not count as started", "503", "in 3 s")
    ),
    Case("probe-readiness", probing("readiness", ready=False), ("not ready", "failed twice", "503", "again in 3 s")),
    Case("probe-liveness", probing("liveness"), ("will soon be restarted", "503")),
    Case(
        "readiness-gate",
        with_containers_ready(facts(running(), phase="Running", pod=a_pod(readiness_gates=[GATE]))),
        ("must set the condition: example.com/up",),
    ),
    Case(
        "memory-child",
        facts(running(), phase="Running", ready=True, runtime=out_of_memory()),
        ("a process inside it was killed by the kernel", "its memory limit is not set"),
    ),
    Case(
        "sync-failing",
        facts(worker=Worker(failures=4, last_error="error making pod data directories", next_run_in=10.0)),
        ("try 4", "error making pod data directories", "again in 10 s"),
        next_in=10.0,
    ),
    Case(
        "host-hangs",
        facts(running(), phase="Running", ready=True, hanging=[("measuring a volume of uid-web/data", 75.0)]),
        ("measuring a volume of uid-web/data, for 1 min 15 s",),
        since=NOW - 75,
    ),
    Case(
        "same-name-ending",
        untold(facts(worker=Worker(), life=[entry(Step.SEEN, ago=30)])),
        ("another static pod of this name",),
        since=NOW - 30,
    ),
    Case(
        "waits-for-turn",
        facts(waiting("ContainerCreating"), life=[begun(Step.TURN, "new", ago=4)], turn=lambda: 22),
        ("busy with other pods", "waits for its turn, 22nd"),
        since=NOW - 4,
    ),
    Case(
        "image-pulling",
        facts(waiting("ContainerCreating"), life=[begun(Step.PULL, IMAGE, ago=3)]),
        ("pulled for 3 s",),
        since=NOW - 3,
    ),
    Case(
        "init-running",
        facts(
            waiting("PodInitializing"),
            pod=a_pod(init=[a_container("prepare")]),
            init=[running("prepare", ago=20, ready=False)],
        ),
        ("wait for init container prepare", "running for 20 s"),
        since=NOW - 20,
    ),
    Case("starting", facts(life=[entry(Step.CGROUP), begun(Step.SANDBOX, ago=1)]), ("making the sandbox",)),
]


@pytest.mark.parametrize("case", CASES, ids=[case.cause for case in CASES])
def test_the_cause_is_found_and_told(case: Case) -> None:
    found = explain(case.facts)
    assert [view.id for view in found.causes] == [case.cause], found.to_text()
    text, view = found.to_text(), found.causes[0]
    for words in case.says:
        assert words in text, text
    assert "?" not in "".join(view.chain) + view.next, "a gap of the text was not filled"
    if case.since is not None:
        assert view.since == pytest.approx(case.since, abs=1)
    if case.next_in is not None:
        assert view.next_in == pytest.approx(case.next_in, abs=1)
    assert found.healthy is (case.cause in ("memory-child", "restarted-by-hand", "host-hangs", "unreadable-change"))


def test_every_row_has_a_case() -> None:
    assert [case.cause for case in CASES] == [cause.id for cause in CAUSES]


def test_ids_are_unique_and_texts_are_whole() -> None:
    assert len({cause.id for cause in CAUSES}) == len(CAUSES)
    for cause in CAUSES:
        assert cause.title and not cause.title.endswith("."), cause.id
        assert cause.next.endswith("."), cause.id
        assert cause.advice or cause.state in (State.STARTING, State.ENDING), cause.id
