"""`pykubelet up PATH`: keep the pods of a file or folder running on this machine, in the foreground.

Supervises a private containerd under the state folder and feeds the very same agent that joins clusters; there is
no second way of running pods. Ctrl-C leaves the agent; pods keep running until they are no longer wanted.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from pykubelet.api.types import PodStatus
from pykubelet.app import Node, assemble, live
from pykubelet.cli.agent import stop_requested
from pykubelet.cli.edges import connected_edges
from pykubelet.kit import log
from pykubelet.kit.clock import SystemClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import readable
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.problems import SettingsError
from pykubelet.settings.settings import Settings
from pykubelet.standalone.containerd import PrivateContainerd
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.images import BUSYBOX, PAUSE, TESTSERVER, ensure_images
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.programs import find_runtime

logger = logging.getLogger(__name__)

DEFAULT_STATE = Path("/var/lib/pykubelet")


def run_up(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="pykubelet up", description="Keep pods from files running on this machine.")
    parser.add_argument("path", metavar="PATH", type=Path, help="a manifest, or a folder of manifests")
    parser.add_argument("--state-dir", type=Path, default=DEFAULT_STATE, help="where everything is kept (%(default)s)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the agent's log too")
    chosen = parser.parse_args(arguments)
    log.set_up(verbosity=4 if chosen.verbose else 0)
    if not chosen.verbose:
        logging.getLogger("pykubelet").setLevel(logging.ERROR)
    try:
        if not chosen.path.exists():
            raise StandaloneError(f"{chosen.path}: no such file or folder")
        return asyncio.run(_up(chosen.path.resolve(), chosen.state_dir.resolve()))
    except SettingsError as error:
        print("\n".join(error.problems), file=sys.stderr)
    except PykubeletError as error:
        print(f"pykubelet: {error}", file=sys.stderr)
    return 1


async def _up(path: Path, state: Path) -> int:
    clock = SystemClock()
    begun = clock.monotonic()
    private = PrivateContainerd(Layout(state / "runtime"), find_runtime(), clock=clock)
    say("starting the private container runtime" if not private.layout.socket.exists() else "looking for the runtime")
    async with private:
        imported = await ensure_images(private.ctr, [PAUSE, BUSYBOX, TESTSERVER], clock=clock)
        if imported:
            say(f"prepared images offline: {', '.join(imported)}")
        settings = standalone_settings(path, state, private.endpoint)
        async with connected_edges(settings) as edges, running(private):
            node = assemble(settings, edges)
            say(f"runtime {edges.runtime_name} is up after {clock.monotonic() - begun:.1f} s; watching {path}")
            show_changes(node)
            stop = stop_requested()
            async with live(node):
                await stop.wait()
            say("leaving; pods keep running (start again to take them over)")
    return 0


def standalone_settings(path: Path, state: Path, endpoint: str) -> Settings:
    loaded = load_settings(
        [
            f"--pod-manifest-path={path}",
            f"--root-dir={state / 'kubelet'}",
            f"--container-runtime-endpoint={endpoint}",
            "--fail-swap-on=false",
            "--fail-cgroupv1=false",
            f"--config={_config_file(state)}",
        ],
        environ=os.environ,
    )
    assert isinstance(loaded, LoadedSettings)
    return loaded.settings


def _config_file(state: Path) -> Path:
    """Settings that have no flag go through a file, as for any other agent."""
    state.mkdir(mode=0o750, parents=True, exist_ok=True)
    path = state / "config.yaml"
    path.write_text(
        "apiVersion: kubelet.config.k8s.io/v1beta1\n"
        "kind: KubeletConfiguration\n"
        f"podLogsDir: {state / 'logs' / 'pods'}\n"
        "serializeImagePulls: false\n"
    )
    return path


def show_changes(node: Node) -> None:
    """One line whenever a pod's phase or what it waits for changes."""
    shown: dict[str, str] = {}

    def changed(uid: str) -> None:
        entry = node.statuses.entry(uid)
        if entry is None:
            return
        text = describe(entry.status)
        if shown.get(uid) != text:
            shown[uid] = text
            say(f"{readable(entry.pod)}: {text}")

    node.statuses.listen(changed)


def describe(status: PodStatus) -> str:
    waiting = []
    for container in (*status.init_container_statuses, *status.container_statuses):
        state = container.state
        if state is not None and state.waiting is not None and state.waiting.reason:
            waiting.append(f"{container.name} {state.waiting.reason}")
    ready = any(c.type == "Ready" and c.status == "True" for c in status.conditions)
    text = f"{status.phase}{' and ready' if ready else ''}"
    if status.pod_ip:
        text += f" at {status.pod_ip}"
    if status.reason:
        text += f" ({status.reason}: {status.message})"
    return text + (f", waiting: {', '.join(waiting)}" if waiting else "")


def say(text: str) -> None:
    print(text, flush=True)
