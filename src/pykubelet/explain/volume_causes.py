"""Causes that are about volumes: an object is missing, a mount fails or does not come back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pykubelet.explain.cause import Cause, Finding, State
from pykubelet.explain.facts import PodFacts
from pykubelet.explain.signs import missing_object
from pykubelet.explain.texts import first_line
from pykubelet.model.problems import VolumeFailed
from pykubelet.recorder import Step

STUCK_MOUNT = 30.0
"""Seconds after which a mount that is still under way counts as stuck."""


@Cause(
    id="object-missing",
    title="A volume needs a ConfigMap, Secret or claim that is not there",
    state=State.STUCK,
    chain=(
        "no container can start before all volumes are mounted",
        "{volume} needs {object}, which does not exist",
    ),
    next="The agent looks again {when}, and at once when it appears.",
    advice=(
        "create it in the pod's namespace, or correct the name in spec.volumes",
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
