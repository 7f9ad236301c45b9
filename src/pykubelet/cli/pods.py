"""Pods for commands: listing them, finding one by name, and their status as kubectl writes it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from pykubelet.api.codec import convert
from pykubelet.api.types import ContainerStatus, Pod
from pykubelet.cli.client import NodeClient
from pykubelet.cli.errors import CommandFailed
from pykubelet.model.pod import all_containers, is_sidecar, is_static, name_of, namespace_of


def list_pods(node: NodeClient) -> list[Pod]:
    """Pods of the node; from the local socket also those that are still ending."""
    answer = node.get("/local/pods") if node.is_local else node.get("/pods")
    if node.is_local and answer.status == 404:
        answer = node.get("/pods")
    if answer.status != 200:
        raise CommandFailed(answer.text or f"the node answered {answer.status}")
    return [convert(Pod, item) for item in msgspec.json.decode(answer.body).get("items") or []]


def short_name(pod: Pod) -> str:
    """What people type: static pods without the node's name at the end."""
    name, node = name_of(pod), pod.spec.node_name
    return name.removesuffix(f"-{node}") if node and is_static(pod) else name


def find(pods: Sequence[Pod], namespace: str, name: str) -> Pod:
    """By full name, or by the name in a static pod's manifest. Raises CommandFailed."""
    here = [pod for pod in pods if namespace_of(pod) == namespace]
    found = [pod for pod in here if name_of(pod) == name] or [pod for pod in here if short_name(pod) == name]
    if found:
        return found[0]
    elsewhere = sorted({namespace_of(pod) for pod in pods if name in (name_of(pod), short_name(pod))})
    hint = f"; there is one in namespace {', '.join(elsewhere)} (-n)" if elsewhere else ""
    raise CommandFailed(f'pods "{name}" not found in namespace {namespace}{hint}')


def find_on(node: NodeClient, namespace: str, name: str) -> Pod:
    return find(list_pods(node), namespace, name)


def container_of(pod: Pod, wanted: str | None) -> str:
    """The container that is meant: the one named, the annotated default, or the first. Raises CommandFailed."""
    names = [container.name for _, container in all_containers(pod)]
    if wanted:
        if wanted not in names:
            raise CommandFailed(f"container {wanted} is not in pod {short_name(pod)}; it has {', '.join(names)}")
        return wanted
    default = pod.metadata.annotations.get("kubectl.kubernetes.io/default-container")
    return default if default in names else (pod.spec.containers[0].name or "")


# --- as kubectl writes them -----------------------------------------------------------------------


def ready_text(pod: Pod) -> str:
    sidecars = [c.name for c in pod.spec.init_containers if is_sidecar(c)]
    statuses = [*pod.status.container_statuses, *(s for s in pod.status.init_container_statuses if s.name in sidecars)]
    return f"{sum(bool(each.ready) for each in statuses)}/{len(pod.spec.containers) + len(sidecars)}"


def restarts(pod: Pod) -> tuple[int, datetime | None]:
    """How often its containers were restarted, and when last."""
    statuses = [*pod.status.init_container_statuses, *pod.status.container_statuses]
    ends = [s.last_state.terminated.finished_at for s in statuses if s.last_state and s.last_state.terminated]
    last = max((end for end in ends if end is not None), default=None)
    return sum(each.restart_count or 0 for each in statuses), last


def status_text(pod: Pod) -> str:
    """The STATUS column."""
    text = pod.status.reason or pod.status.phase or "Pending"
    text = _init_text(pod) or _regular_text(pod, text)
    if pod.metadata.deletion_timestamp is not None and pod.status.phase not in ("Succeeded", "Failed"):
        return "Unknown" if pod.status.reason == "NodeLost" else "Terminating"
    return text


def _init_text(pod: Pod) -> str:
    statuses = {each.name: each for each in pod.status.init_container_statuses}
    total = len(pod.spec.init_containers)
    for number, container in enumerate(pod.spec.init_containers):
        state = statuses[container.name].state if container.name in statuses else None
        if state is None:
            return f"Init:{number}/{total}" if pod.status.init_container_statuses else ""
        if state.terminated is not None and state.terminated.exit_code == 0:
            continue
        if is_sidecar(container) and statuses[container.name].started:
            continue
        if state.terminated is not None:
            return f"Init:{_ended_text(state.terminated.reason, state.terminated.exit_code, state.terminated.signal)}"
        if state.waiting is not None and state.waiting.reason not in (None, "", "PodInitializing"):
            return f"Init:{state.waiting.reason}"
        return f"Init:{number}/{total}"
    return ""


def _regular_text(pod: Pod, text: str) -> str:
    running = False
    for each in reversed(pod.status.container_statuses):
        state = each.state
        if state is None:
            continue
        if state.waiting is not None and state.waiting.reason:
            text = state.waiting.reason
        elif state.terminated is not None:
            text = _ended_text(state.terminated.reason, state.terminated.exit_code, state.terminated.signal)
        elif state.running is not None and each.ready:
            running = True
    if text == "Completed" and running:
        ready = any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
        return "Running" if ready else "NotReady"
    return text


def _ended_text(reason: str | None, code: int | None, signal: int | None) -> str:
    if reason:
        return reason
    return f"Signal:{signal}" if signal else f"ExitCode:{code or 0}"


def age_text(since: datetime | None, now: datetime) -> str:
    """kubectl's short ages: 5s, 3m10s, 2h5m, 4d3h, 12d."""
    if since is None:
        return "<unknown>"
    seconds = max(0, int((now - since).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return _pair(minutes, "m", seconds % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _pair(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _pair(days, "d", hours % 24, "h")
    return f"{days}d" if days < 730 else f"{days // 365}y"


def _pair(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"


def born(pod: Pod) -> datetime | None:
    """When it was made; static pods have no creation time, their start counts."""
    return pod.metadata.creation_timestamp or pod.status.start_time


def reported_container(pod: Pod, name: str) -> ContainerStatus | None:
    groups = (
        pod.status.init_container_statuses,
        pod.status.container_statuses,
        pod.status.ephemeral_container_statuses,
    )
    return next((each for group in groups for each in group if each.name == name), None)
