"""`pykubelet status`: is an agent running here, does its runtime answer, how are its pods. Ends with 3 when none is."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import msgspec

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.errors import NO_AGENT, CommandFailed
from pykubelet.cli.options import DEFAULT_STATE, sockets
from pykubelet.cli.pods import list_pods, status_text
from pykubelet.cli.up import UpState
from pykubelet.explain.texts import span


@click.command("status", short_help="say whether an agent runs here, and how its pods are")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    envvar="PYKUBELET_STATE_DIR",
    help=f"The state folder of `up`.  [default: {DEFAULT_STATE}]",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the answer.")
def command(state_dir: Path | None, output: str) -> int:
    """Say whether an agent runs on this machine, on what runtime, and how its pods are."""
    state = UpState((state_dir or DEFAULT_STATE).resolve())
    facts = gathered(state, NodeClient(Target(sockets=sockets(str(state_dir) if state_dir else None))))
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(facts), indent=2).decode())
    else:
        for name, text in lines_of(facts):
            click.echo(f"{name + ':':10}{text}")
    return 0 if facts["answers"] else NO_AGENT


def gathered(state: UpState, node: NodeClient) -> dict[str, Any]:
    agent, containerd = state.agent(), state.containerd()
    facts: dict[str, Any] = {
        "stateDir": str(state.folder),
        "agentPid": agent.pid if agent is not None else None,
        "runtimePid": containerd.pid if containerd is not None else None,
        "paths": [str(path) for path in state.recorded()[0]],
        "answers": False,
        "socket": str(node.target.socket),
        "problem": "",
        "about": {},
        "pods": {},
    }
    try:
        about = node.ask("GET", "/local/about", timeout=5.0)
        facts["answers"] = True
        facts["about"] = about.json() if about.status == 200 else {}
        for pod in list_pods(node):
            word = status_text(pod)
            facts["pods"][word] = facts["pods"].get(word, 0) + 1
    except CommandFailed as problem:
        facts["problem"] = str(problem)
    return facts


def lines_of(facts: dict[str, Any]) -> list[tuple[str, str]]:
    about, pods = facts["about"], facts["pods"]
    if not facts["answers"]:
        state = "does not answer" if facts["agentPid"] else "not running"
        lines = [("agent", f"{state}: {facts['problem']}" if facts["agentPid"] else state)]
    else:
        since = f", since {span(time.time() - about['started'])}" if about.get("started") else ""
        lines = [("agent", f"running, pid {about.get('pid', facts['agentPid'])}{since}")]
    if about:
        lines.append(("node", f"{about['node']} ({about['version']})"))
        bad = about["runtimeProblem"] or about["networkProblem"]
        lines.append(("runtime", f"{about['runtime']} at {about['endpoint']}: {bad or 'ready'}"))
        lines += [("unread", f"left out, from the API server: {text}") for text in about.get("unreadable", ())]
    elif facts["runtimePid"]:
        lines.append(("runtime", f"containerd, pid {facts['runtimePid']}, running; its containers go on"))
    if facts["answers"]:
        shown = ", ".join(f"{count} {word}" for word, count in sorted(pods.items()))
        lines.append(("pods", shown or "none"))
    if facts["paths"]:
        lines.append(("watches", ", ".join(facts["paths"])))
    return [*lines, ("state", facts["stateDir"])]
