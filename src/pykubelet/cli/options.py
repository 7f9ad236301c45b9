"""Options that many commands share, as decorators: which node, which namespace, which pod; with shell completion."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.local_socket import candidates
from pykubelet.settings.default_root import DEFAULT_ROOT

DEFAULT_STATE = Path("/var/lib/pykubelet")

F = TypeVar("F", bound=Callable[..., Any])


def root_of(state: Path) -> Path:
    """The root folder of the agent that `up` runs."""
    return state / "kubelet"


def sockets(state: str | None) -> tuple[Path, ...]:
    """Candidates, the most specific first: the one given, or `up`'s usual place and the agent's."""
    if state:
        return tuple(candidates(root_of(Path(state).resolve())))
    return (*candidates(root_of(DEFAULT_STATE)), *candidates(Path(DEFAULT_ROOT)))


NODE_OPTIONS = (
    click.option("--state-dir", metavar="FOLDER", envvar="PYKUBELET_STATE_DIR", help="State folder of `up`."),
    click.option(
        "--socket", "socket_path", metavar="FILE", envvar="PYKUBELET_SOCKET", help="Local socket of the agent."
    ),
    click.option("--node", "url", metavar="URL", help="Another node's server, https://HOST[:10250]."),
    click.option("--client-certificate", metavar="FILE", help="Who we are, for --node."),
    click.option("--client-key", metavar="FILE", help="Key of the certificate."),
    click.option("--certificate-authority", metavar="FILE", help="Who signed the node's certificate."),
    click.option("--token", metavar="TEXT", help="Bearer token instead of a certificate."),
    click.option("--insecure-skip-tls-verify", is_flag=True, help="Do not check the node's certificate."),
)


def on_node(command: F) -> F:
    """Adds the options that choose a node and hands the command a `NodeClient` as `node`."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> Any:
        return command(node=NodeClient(take_target(given)), **given)

    for option in reversed(NODE_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def take_target(given: dict[str, Any]) -> Target:
    """The target from a command's options, which are taken out."""
    state, path = given.pop("state_dir", None), given.pop("socket_path", None)
    return Target(
        sockets=(Path(path),) if path else sockets(state),
        url=given.pop("url", None) or "",
        certificate=given.pop("client_certificate", None) or "",
        key=given.pop("client_key", None) or "",
        authority=given.pop("certificate_authority", None) or "",
        token=given.pop("token", None) or "",
        insecure=bool(given.pop("insecure_skip_tls_verify", False)),
    )


def namespace_option(command: F) -> F:
    option = click.option("-n", "--namespace", default="default", metavar="NAME", help="Namespace of the pod.")
    return option(command)


def pod_argument(command: F) -> F:
    return click.argument("pod", metavar="POD", shell_complete=complete_pods)(command)


def container_option(command: F) -> F:
    option = click.option(
        "-c",
        "--container",
        metavar="NAME",
        help="Container; the first one by default.",
        shell_complete=complete_containers,
    )
    return option(command)


def bare_pod(text: str) -> str:
    """`pod/web` and `pods/web` mean `web`, as with kubectl."""
    kind, slash, rest = text.partition("/")
    return rest if slash and kind in ("pod", "pods", "po") else text


# --- completion -----------------------------------------------------------------------------------


def complete_pods(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    from pykubelet.cli.pods import list_pods, short_name

    try:
        pods = list_pods(_completing_node(context))
    except CommandFailed:
        return []
    namespace = context.params.get("namespace") or "default"
    names = [short_name(pod) for pod in pods if pod.metadata.namespace == namespace]
    return [CompletionItem(name) for name in names if name.startswith(typed)]


def complete_containers(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    from pykubelet.cli.pods import find, list_pods
    from pykubelet.model.pod import all_containers

    name = context.params.get("pod")
    if not name:
        return []
    try:
        pods = list_pods(_completing_node(context))
        pod = find(pods, context.params.get("namespace") or "default", bare_pod(name))
    except CommandFailed:
        return []
    names = [container.name for _, container in all_containers(pod)]
    return [CompletionItem(each) for each in names if each.startswith(typed)]


def _completing_node(context: click.Context) -> NodeClient:
    given = {name: context.params.get(name) for name in ("state_dir", "socket_path", "url")}
    given["state_dir"] = given["state_dir"] or os.environ.get("PYKUBELET_STATE_DIR")
    return NodeClient(take_target(dict(given)))
