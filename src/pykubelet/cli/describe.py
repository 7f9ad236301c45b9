"""`pykubelet describe pod POD`: everything about one pod on one page, with its events and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click
import msgspec

from pykubelet.api.codec import encode_json
from pykubelet.api.types import ContainerState, ContainerStatus, EnvVarSource, Pod, Probe
from pykubelet.cli import table
from pykubelet.cli.client import NodeClient
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.events import fetch, row
from pykubelet.cli.explain import fetch_explanation
from pykubelet.cli.options import bare_pod, complete_pods, namespace_option, on_node
from pykubelet.cli.pods import find_on, reported_container
from pykubelet.model.pod import AnyContainer, ContainerKind, all_containers, name_of, namespace_of, qos_class

LABEL = 18
TITLES = {
    ContainerKind.INIT: "Init Containers",
    ContainerKind.REGULAR: "Containers",
    ContainerKind.EPHEMERAL: "Ephemeral Containers",
}


@click.command("describe", short_help="show a pod in full")
@click.argument("words", metavar="pod POD", nargs=-1, required=True, shell_complete=complete_pods)
@namespace_option
@on_node
def command(node: NodeClient, words: Sequence[str], namespace: str) -> None:
    """Show everything about a pod: pykubelet describe pod web."""
    names = list(words[1:]) if words[0] in ("pod", "pods", "po") and len(words) > 1 else list(words)
    for number, name in enumerate(names):
        pod = find_on(node, namespace, bare_pod(name))
        if number:
            click.echo("\n")
        for line in described(pod):
            click.echo(line)
        _trouble(node, pod)
        _events(node, pod)


def described(pod: Pod) -> Iterator[str]:
    yield _pair("Name", name_of(pod))
    yield _pair("Namespace", namespace_of(pod))
    yield _pair("Node", pod.spec.node_name or "<none>")
    yield _pair("Start Time", _time(pod.status.start_time))
    yield from _map("Labels", pod.metadata.labels)
    yield from _map("Annotations", pod.metadata.annotations)
    ending = pod.metadata.deletion_timestamp is not None and pod.status.phase not in ("Succeeded", "Failed")
    yield _pair("Status", "Terminating" if ending else pod.status.phase or "Pending")
    if pod.status.reason:
        yield _pair("Reason", pod.status.reason)
    if pod.status.message:
        yield _pair("Message", pod.status.message)
    yield _pair("IP", pod.status.pod_ip or "")
    yield _pair("QoS Class", qos_class(pod).value)
    yield _pair("Restart Policy", pod.spec.restart_policy or "Always")
    yield _pair("Grace Period", f"{pod.spec.termination_grace_period_seconds}s")
    shown = ""
    for kind, container in all_containers(pod):
        if TITLES[kind] != shown:
            shown = TITLES[kind]
            yield f"{shown}:"
        yield from _container(pod, container)
    yield "Conditions:"
    rows = [[c.type or "", c.status or "", c.reason or "", c.message or ""] for c in pod.status.conditions]
    yield from (f"  {line}" for line in table.lines(["Type", "Status", "Reason", "Message"], rows, limit=None))
    yield from _volumes(pod)


def _container(pod: Pod, container: AnyContainer) -> Iterator[str]:
    status = reported_container(pod, container.name)
    yield f"  {container.name}:"
    yield _pair("Container ID", (status.container_id if status else "") or "", 4)
    yield _pair("Image", container.image or "", 4)
    yield _pair("Image ID", (status.image_id if status else "") or "", 4)
    yield _pair("Ports", ", ".join(f"{p.container_port}/{p.protocol or 'TCP'}" for p in container.ports) or "<none>", 4)
    for title, words in (("Command", container.command), ("Args", container.args)):
        if words:
            yield f"    {title}:"
            yield from (f"      {line}" for word in words for line in word.rstrip("\n").split("\n"))
    if status is not None:
        yield from _status(status)
    for title, values in _amounts(container):
        yield f"    {title}:"
        yield from (_pair(name, str(value), 6) for name, value in values.items())
    yield from _probes(container)
    yield from _hooks(container)
    yield from _environment(pod, container)
    yield _pair("Mounts", "" if container.volume_mounts else "<none>", 4)
    for mount in container.volume_mounts:
        yield f"      {mount.mount_path} from {mount.name} ({'ro' if mount.read_only else 'rw'})"


def _status(status: ContainerStatus) -> Iterator[str]:
    yield from _state("State", status.state)
    if status.last_state is not None and status.last_state.terminated is not None:
        yield from _state("Last State", status.last_state)
    yield _pair("Ready", str(bool(status.ready)), 4)
    yield _pair("Restart Count", str(status.restart_count or 0), 4)


def _probes(container: AnyContainer) -> Iterator[str]:
    for title, probe in (
        ("Liveness", container.liveness_probe),
        ("Readiness", container.readiness_probe),
        ("Startup", container.startup_probe),
    ):
        if probe is not None:
            yield _pair(title, probe_text(probe), 4)


def _amounts(container: AnyContainer) -> Iterator[tuple[str, dict[str, Any]]]:
    if container.resources is not None:
        if container.resources.limits:
            yield "Limits", dict(container.resources.limits)
        if container.resources.requests:
            yield "Requests", dict(container.resources.requests)


def _hooks(container: AnyContainer) -> Iterator[str]:
    if container.lifecycle is not None:
        for title, hook in (("postStart", container.lifecycle.post_start), ("preStop", container.lifecycle.pre_stop)):
            if hook is not None:
                yield _pair(title, encode_json(hook).decode(), 4)


def _environment(pod: Pod, container: AnyContainer) -> Iterator[str]:
    if not container.env and not container.env_from:
        yield _pair("Environment", "<none>", 4)
        return
    yield "    Environment:"
    for source in container.env_from:
        kind, ref = (
            ("Secret", source.secret_ref) if source.secret_ref is not None else ("ConfigMap", source.config_map_ref)
        )
        prefix = f", each name after {source.prefix!r}" if source.prefix else ""
        yield f"      all of {kind} {ref.name if ref is not None else ''}{prefix}"
    for variable in container.env:
        value = variable.value or "" if variable.value_from is None else _origin(pod, variable.value_from)
        yield f"      {variable.name}: {' '.join(value.split())}".rstrip()


def _origin(pod: Pod, source: EnvVarSource) -> str:
    """Where a variable's value is from, as kubectl writes it."""
    if source.field_ref is not None:
        path = source.field_ref.field_path or ""
        values = {
            "metadata.name": name_of(pod),
            "metadata.namespace": namespace_of(pod),
            "metadata.uid": pod.metadata.uid,
            "spec.nodeName": pod.spec.node_name,
            "status.podIP": pod.status.pod_ip,
            "status.hostIP": pod.status.host_ip,
        }
        return f"{values.get(path) or ''} (v1:{path})".strip()
    if source.resource_field_ref is not None:
        return f"({source.resource_field_ref.resource})"
    for kind, ref in (("secret", source.secret_key_ref), ("config map", source.config_map_key_ref)):
        if ref is not None:
            return f"<set to the key '{ref.key}' in {kind} '{ref.name}'> Optional: {str(bool(ref.optional)).lower()}"
    return encode_json(source).decode()


def _state(title: str, state: ContainerState | None) -> Iterator[str]:
    if state is None:
        return
    if state.running is not None:
        yield _pair(title, "Running", 4)
        yield _pair("Started", _time(state.running.started_at), 6)
    elif state.terminated is not None:
        ended = state.terminated
        yield _pair(title, "Terminated", 4)
        yield _pair("Reason", ended.reason or "", 6)
        if ended.message:
            yield _pair("Message", " ".join(ended.message.split()), 6)
        yield _pair("Exit Code", str(ended.exit_code or 0), 6)
        yield _pair("Started", _time(ended.started_at), 6)
        yield _pair("Finished", _time(ended.finished_at), 6)
    elif state.waiting is not None:
        yield _pair(title, "Waiting", 4)
        if state.waiting.reason:
            yield _pair("Reason", state.waiting.reason, 6)
        if state.waiting.message:
            yield _pair("Message", " ".join(state.waiting.message.split()), 6)


def _volumes(pod: Pod) -> Iterator[str]:
    if not pod.spec.volumes:
        yield "Volumes:          <none>"
        return
    yield "Volumes:"
    for volume in pod.spec.volumes:
        about = msgspec.json.decode(encode_json(volume))
        about.pop("name", None)
        kind = next(iter(about), "emptyDir")
        inside = msgspec.json.encode(about.get(kind) or {}).decode()
        yield f"  {volume.name}: {kind} {inside if inside != '{}' else ''}".rstrip()


def probe_text(probe: Probe) -> str:
    from pykubelet.explain.container_causes import probe_action

    return (
        f"{probe_action(probe)} delay={probe.initial_delay_seconds or 0}s timeout={probe.timeout_seconds or 1}s "
        f"period={probe.period_seconds or 10}s #success={probe.success_threshold or 1} "
        f"#failure={probe.failure_threshold or 3}"
    )


def _trouble(node: NodeClient, pod: Pod) -> None:
    try:
        found = fetch_explanation(node, namespace_of(pod), name_of(pod))
    except CommandFailed:
        return  # an agent that does not explain
    click.echo(_pair("Explained", table.styled(found.state) + f": {found.summary}"))


def _events(node: NodeClient, pod: Pod) -> None:
    try:
        events = fetch(node, [("namespace", namespace_of(pod)), ("pod", name_of(pod))])
    except CommandFailed:
        return
    if not events:
        click.echo("Events:           <none>")
        return
    click.echo("Events:")
    rows = []
    for event in events:
        age, kind, reason, _, message = row(event)
        rows.append([kind, reason, age, message])
    for line in table.lines(["Type", "Reason", "Age", "Message"], rows, limit=None, coloured=0):
        click.echo(f"  {line}")


def _pair(title: str, value: str, indent: int = 0) -> str:
    # Two more for what is indented, or "Restart Count:" would push its value out of the column.
    room = LABEL - indent + (2 if indent else 0)
    return f"{' ' * indent}{title + ':':{max(room, len(title) + 2)}}{value}".rstrip()


def _map(title: str, values: dict[str, str]) -> Iterator[str]:
    if not values:
        yield _pair(title, "<none>")
        return
    for number, (name, value) in enumerate(sorted(values.items())):
        text = f"{name}={' '.join(value.split())}"
        yield _pair(title, text) if number == 0 else f"{' ' * LABEL}{text}"


def _time(moment: datetime | None) -> str:
    return f"{moment:%a, %d %b %Y %H:%M:%S %z}" if moment is not None else ""
