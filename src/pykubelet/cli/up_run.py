"""The work behind `up` and `down`: the private runtime, the agent on top of it, and the way out.

On SIGTERM the agent exits and pods keep running; on SIGUSR1, which `down` sends, pods end by their
grace first and the runtime after them. Also ends what an agent left behind that is no more.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from pykubelet.cli.agent import stop_requested
from pykubelet.cli.agent_edges import connected_edges
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.up import UpState
from pykubelet.cli.up_view import LiveView, LogTails, PlainView, View, rows_of
from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.edges import Edges
from pykubelet.kit import log
from pykubelet.kit.clock import Clock, SystemClock
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.memory import freeze_start_up, limit_arenas
from pykubelet.kit.tasks import Wakeup, gather_all, running
from pykubelet.kubelet import Kubelet, assemble
from pykubelet.model.container_keys import termination_grace_of
from pykubelet.model.errors import CriError
from pykubelet.pods.record import WorkerState
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.settings import Settings
from pykubelet.signals import PodStatusChanged
from pykubelet.sources.manifests import file_loader
from pykubelet.sources.static import MergedSets, StaticSource
from pykubelet.standalone.cleanup import note_pod_groups, remove_pod_groups, unmount_below
from pykubelet.standalone.containerd import PrivateContainerd
from pykubelet.standalone.image_names import OFFLINE
from pykubelet.standalone.image_record import ensure_images
from pykubelet.standalone.launch import ContainerdLaunch
from pykubelet.standalone.programs import find_runtime

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.25
"""Seconds between reads of logs and ages; changes of pods are shown at once."""
DOWN_PATIENCE = 60.0
"""Seconds that pods get beyond the longest grace."""
DEFAULT_GRACE = 30


class UpOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    paths: Sequence[Path]
    endpoint: str = ""
    logs: bool = True
    live: bool = False
    verbose: bool = False


def run_up(state: UpState, options: UpOptions, launch: ContainerdLaunch | None) -> int:
    """`launch` is the private containerd that is coming up; None where the options name a runtime."""
    note_pod_groups(state.groups_file)
    _set_up_log(state, options)
    limit_arenas()
    return on_a_loop(_Up(state, options, launch).run())


def on_a_loop(work: Coroutine[Any, Any, int]) -> int:
    """Run to the end on the loop the agent uses."""
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(work)
    except SettingsError as error:
        raise CommandFailed("\n".join(error.problems)) from error
    except KeyboardInterrupt:
        return 130


def _set_up_log(state: UpState, options: UpOptions) -> None:
    """The agent's log goes to a file, or to the terminal with -v; detached, standard error is that file."""
    if options.verbose or not sys.stderr.isatty():
        log.set_up(verbosity=4 if options.verbose else 0)
    else:
        log.set_up(stream=state.agent_log.open("a"))
    if not options.verbose:
        logging.getLogger("pykubelet").setLevel(logging.INFO if not sys.stderr.isatty() else logging.WARNING)


class _Up:
    def __init__(self, state: UpState, options: UpOptions, launch: ContainerdLaunch | None) -> None:
        self._state = state
        self._options = options
        self._launch = launch
        self._clock: Clock = SystemClock()
        self._wake = Wakeup()
        self._down = False

    async def run(self) -> int:
        begun = self._clock.monotonic()
        stop = stop_requested()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._ask_down, stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        if self._launch is None:
            await self._serve(self._options.endpoint, stop, begun, [])
            if self._down:
                remove_pod_groups(self._state.groups_file)
            return 0
        private = PrivateContainerd(self._launch, clock=self._clock)
        try:
            await private.start()
            async with GrpcCriClient(private.endpoint, clock=self._clock) as cri:
                imported = await ensure_images(private, cri, OFFLINE, clock=self._clock)
            async with running(private):
                await self._serve(private.endpoint, stop, begun, imported)
            if self._down:
                await private.stop(containers=True)
                remove_pod_groups(self._state.groups_file)
                print("the runtime is stopped; images and logs stay", flush=True)
        finally:
            private.release()
        return 0

    def _ask_down(self, stop: asyncio.Event) -> None:
        self._down = True
        stop.set()
        self._wake.set()

    async def _serve(self, endpoint: str, stop: asyncio.Event, begun: float, imported: Sequence[str]) -> None:
        settings = standalone_settings(self._options.paths[0], self._state, endpoint)
        async with connected_edges(settings) as edges:
            node = assemble(settings, edges)
            freeze_start_up()
            merged = watch_paths(node, settings, edges, self._options.paths)
            node.ctx.signals.subscribe(PodStatusChanged, lambda changed: self._wake.set())
            async with node.running():
                view = self._view(edges)
                try:
                    if imported:
                        view.say(f"prepared images offline: {', '.join(imported)}")
                    took = self._clock.monotonic() - begun
                    shown = ", ".join(str(path) for path in self._options.paths)
                    view.say(f"{edges.runtime_name} is up after {took:.1f} s; watching {shown}")
                    await self._show(node, view, stop, begun)
                    if self._down:
                        await self._end_pods(node, view, merged)
                    else:
                        view.say("leaving; pods keep running (start again to take them over, or: pykubelet down)")
                finally:
                    view.close()

    def _view(self, edges: Edges) -> View:
        if not self._options.live:
            return PlainView(lambda text: print(text, flush=True))
        from rich.console import Console

        return LiveView(Console(), f"pykubelet up · {edges.runtime_name} · Ctrl-C leaves, pods keep running")

    async def _show(self, node: Kubelet, view: View, stop: asyncio.Event, begun: float) -> None:
        tails = LogTails()
        greeted = False
        while not stop.is_set():
            rows = rows_of(node)
            view.show(rows, tails.fresh(node) if self._options.logs else [])
            if not greeted and rows and all(not row.note for row in rows):
                greeted = True
                well = "the pod is well" if len(rows) == 1 else f"all {len(rows)} pods are well"
                view.say(f"{well} after {self._clock.monotonic() - begun:.1f} s")
            await self._wake.wait(at_most=LOOK_EVERY)

    async def _end_pods(self, node: Kubelet, view: View, merged: MergedSets) -> None:
        """Every pod gets its grace; who does not end by then is ended with the runtime."""
        graces = [pod.spec.termination_grace_period_seconds or DEFAULT_GRACE for pod in node.table.pods()]
        view.say(f"stopping {len(graces)} pod{'s' if len(graces) != 1 else ''}")
        merged.close()
        deadline = self._clock.monotonic() + max(graces, default=0) + DOWN_PATIENCE
        while node.table.pods() or any(w.state is not WorkerState.FINISHED for w in node.table.workers()):
            if self._clock.monotonic() > deadline:
                view.say("some pods do not end; they are ended with the runtime")
                return
            view.show(rows_of(node), [])
            await self._wake.wait(at_most=LOOK_EVERY)
        view.show([], [])
        await until_tidy(self._state, self._clock, within=10.0)


async def until_tidy(state: UpState, clock: Clock, *, within: float) -> None:
    """Housekeeping removes pod folders a moment after the pods; leaving before that would only delay it."""
    deadline = clock.monotonic() + within
    pods = state.root / "pods"
    while pods.is_dir() and any(pods.iterdir()) and clock.monotonic() < deadline:
        await clock.sleep(0.05)


def watch_paths(node: Kubelet, settings: Settings, edges: Edges, paths: Sequence[Path]) -> MergedSets:
    """One source for each path, all of them together the pods of the files."""
    merged = MergedSets(node.sources.mux.deliver, len(paths))
    own = [
        StaticSource(
            path=path,
            check_period=settings.config.sources.file_check_frequency,
            load=file_loader(settings.node_name(edges.machine.hostname)),
            deliver=merged.part(number),
            events=node.events,
            clock=edges.clock,
        )
        for number, path in enumerate(paths)
    ]
    group = node.services.producers
    group[:] = [service for service in group if not isinstance(service, StaticSource)] + list(own)
    return merged


def standalone_settings(path: Path, state: UpState, endpoint: str) -> Settings:
    loaded = load_settings(
        [
            f"--pod-manifest-path={path}",
            f"--root-dir={state.root}",
            f"--cert-dir={state.root / 'pki'}",
            f"--container-runtime-endpoint={endpoint}",
            "--fail-swap-on=false",
            "--fail-cgroupv1=false",
            f"--config={_config_file(state)}",
        ],
        environ=os.environ,
    )
    assert isinstance(loaded, LoadedSettings)
    return loaded.settings


def _config_file(state: UpState) -> Path:
    """Settings that have no flag go through a file, as for any other agent. Only the local socket is served."""
    state.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    path = state.folder / "config.json"
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "podLogsDir": str(state.logs),
        "serializeImagePulls": False,
        "enableServer": False,
        "healthzPort": 0,
    }
    path.write_text(json.dumps(config, indent=2) + "\n")
    return path


# --- what an agent that is no more left behind ----------------------------------------------------


async def end_leftovers(state: UpState, say: View) -> None:
    """Stop the containers of a state folder without an agent: by their grace, then everything else of theirs."""
    clock = SystemClock()
    private = PrivateContainerd(ContainerdLaunch(state.runtime, find_runtime()), clock=clock)
    async with private:
        async with _polite(private.endpoint, clock) as cri:
            found = await cri.list_containers(running_only=True)
            say.say(f"stopping {len(found)} containers")
            await gather_all(
                *(cri.stop_container(each.id, termination_grace_of(each) or DEFAULT_GRACE) for each in found)
            )
        await private.stop(containers=True)
    await host_calls.run(partial(unmount_below, state.root), name="unmounting", within=120.0)
    remove_pod_groups(state.groups_file)


@asynccontextmanager
async def _polite(endpoint: str, clock: Clock) -> AsyncIterator[GrpcCriClient]:
    try:
        async with GrpcCriClient(endpoint, clock=clock) as cri:
            yield cri
    except CriError as error:
        logger.warning("the runtime does not stop its containers politely", extra={"error": str(error)})
