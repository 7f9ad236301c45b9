"""Plugins come and go by their sockets: GetInfo, checks, registration with the handler, NotifyRegistrationStatus.

Every socket has a task of its own that brings what is registered in line with what is there, with its own
back-off: a plugin that hangs or answers nonsense delays no other. What registering means is for the handler of its
type (devices, dynamic resources, storage). Socket names carry no meaning.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from pykubelet.clients.plugins.port import PluginInfo, Registrations
from pykubelet.kit.clock import Clock
from pykubelet.kit.keyed import WHEN_WOKEN, KeyedTasks
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import Wakeup
from pykubelet.model.errors import PluginError, PykubeletError

logger = logging.getLogger(__name__)


# --- sockets --------------------------------------------------------------------------------------------------
# A socket is known by path and identity: a program that restarts makes a new one at the same path, and that is a new
# plugin. Names that begin with a dot, and all that is not a socket, are ignored.


if TYPE_CHECKING:
    from asyncinotify import Inotify


class Identity(Struct, frozen=True):
    """Distinguishes a socket from a later one with the same path.

    Inodes are used again at once; the time is the one that new rights or owners leave alone."""

    inode: int
    made_ns: int


Sockets = Mapping[Path, Identity]


def open_tree_watch(root: Path) -> TreeWatch:
    """Make the folder if it is missing and follow all that is below it."""
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    return TreeWatch(root)


class TreeWatch:
    """Follows each folder of the tree by inotify; where the kernel refuses more watches, by polling."""

    def __init__(self, root: Path) -> None:
        from asyncinotify import Inotify

        self._root = root
        self._signal = Wakeup()
        self._loop = asyncio.get_running_loop()
        self._refused = False
        self._inotify: Inotify | None = None
        try:
            self._inotify = Inotify(sync_timeout=0)
        except OSError as error:
            self._without(error)
        else:
            os.set_blocking(self._inotify.fd, False)
            self._loop.add_reader(self._inotify.fd, self._drain, self._inotify.fd)

    def close(self) -> None:
        if self._inotify is not None:
            self._loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None

    async def wait(self, at_most: float) -> None:
        await self._signal.wait(at_most)

    def sockets(self) -> Sockets:
        found: dict[Path, Identity] = {}
        folders = [self._root]
        while folders:
            folder = folders.pop()
            self._follow(folder)  # before it is read: what appears in between is reported
            try:
                entries = list(os.scandir(folder))
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                logger.warning("folder of plugins not read", extra={"folder": str(folder), "problem": str(error)})
                continue
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                try:
                    facts = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(facts.st_mode):
                    folders.append(Path(entry.path))
                elif stat.S_ISSOCK(facts.st_mode):
                    found[Path(entry.path)] = Identity(facts.st_ino, facts.st_mtime_ns)
        return found

    def _follow(self, folder: Path) -> None:
        from asyncinotify import Mask

        if self._inotify is None:
            return
        wanted = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.DELETE_SELF | Mask.ONLYDIR
        try:
            self._inotify.add_watch(folder, wanted)  # adding a folder again changes nothing
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._without(error)

    def _without(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            logger.warning("plugins are noticed late, inotify refused", extra={"problem": str(error)})

    def _drain(self, descriptor: int) -> None:
        try:
            while os.read(descriptor, 65536):
                pass
        except BlockingIOError:
            pass
        self._signal.set()


FIRST_RETRY = 0.5
LAST_RETRY = 122.0
WAIT_FOR_SOURCES = 1.0
LOOK_AGAIN = 60.0
"""Seconds between scans of the folder when the kernel reported nothing."""


class PluginRefused(PykubeletError):
    """A handler refuses this plugin, which gets the text."""


class PluginHandler(Protocol):
    """What one type of plugin means. Any PykubeletError refuses; the plugin gets the text and is retried."""

    async def register(self, name: str, endpoint: Path, versions: tuple[str, ...]) -> None:
        """Check the plugin and use it."""
        ...

    async def deregister(self, name: str, endpoint: Path) -> None:
        """Stop using the plugin: its socket is gone or belongs to a new one. Must not raise."""
        ...


class PluginState(Struct, frozen=True, kw_only=True):
    """State of one socket, for people."""

    socket: Path
    type: str = ""
    name: str = ""
    problem: str = ""
    """Why it is not in use; empty when it is."""
    failures: int = 0


class _Plugin(Struct):
    """One socket: what is wanted and what is registered."""

    socket: Path
    wanted: Identity | None
    tried: Identity | None = None
    info: PluginInfo | None = None
    """Its last GetInfo response."""
    registered: Identity | None = None
    notified: bool = False
    """Whether it heard that it is registered; some wait for that."""


class PluginManager:
    name = "plugin manager"

    def __init__(
        self,
        *,
        folder: Path,
        registrations: Registrations,
        handlers: Mapping[str, PluginHandler],
        clock: Clock,
        metrics: Registry,
        may_start: Callable[[], bool] = lambda: True,
        open_watch: Callable[[Path], TreeWatch] = open_tree_watch,
    ) -> None:
        self._folder = folder
        self._registrations = registrations
        self._handlers = handlers
        self._clock = clock
        self._may_start = may_start
        self._open_watch = open_watch
        self._plugins: dict[Path, _Plugin] = {}
        self._tasks = KeyedTasks("plugin", self._reconcile, clock=clock, first_retry=FIRST_RETRY, last_retry=LAST_RETRY)
        total = metrics.gauge(
            "plugin_manager_total_plugins",
            "Plugins by socket, in the desired and in the actual state of the world",
            labels=("socket_path", "state"),
        )
        metrics.on_scrape(lambda: total.replace(self._series()))

    def states(self) -> list[PluginState]:
        """All sockets, those that failed with the reason."""
        return [self._state(plugin) for plugin in self._plugins.values()]

    def _state(self, plugin: _Plugin) -> PluginState:
        task = self._tasks.get(plugin.socket)
        problem = task.last_error if task is not None else ""
        if plugin.registered is None and not problem:
            return PluginState(socket=plugin.socket, problem="not asked yet")
        info = plugin.info
        return PluginState(
            socket=plugin.socket,
            type=info.type if info else "",
            name=info.name if info else "",
            problem=problem,
            failures=task.backoff.failures if task is not None else 0,
        )

    async def run(self) -> None:
        while not self._may_start():
            await self._clock.sleep(WAIT_FOR_SOURCES)
        watch = self._open_watch(self._folder)
        try:
            async with self._tasks:
                while True:
                    self._compare(watch.sockets())
                    await watch.wait(LOOK_AGAIN)
        finally:
            watch.close()

    def _compare(self, sockets: Mapping[Path, Identity]) -> None:
        for path in dict.fromkeys((*self._plugins, *sockets)):
            identity = sockets.get(path)
            plugin = self._plugins.setdefault(path, _Plugin(path, None))
            if plugin.wanted != identity:
                plugin.wanted = identity
                self._tasks.wake(path)

    async def _reconcile(self, socket: Path) -> float | None:
        """Register what is there and deregister what is gone."""
        plugin = self._plugins.get(socket)
        if plugin is None:
            return None
        while plugin.registered is not None and plugin.registered != plugin.wanted:
            await self._deregister(plugin)  # this waits: what is wanted may change meanwhile
        wanted = plugin.wanted
        if wanted is None:
            del self._plugins[socket]
            return None
        if wanted != plugin.tried:
            plugin.tried = wanted
            self._tasks.reset(socket)
        if plugin.registered is None:
            await self._register(plugin, wanted)
        if not plugin.notified:
            await self._notify(plugin)
        return WHEN_WOKEN

    async def _notify(self, plugin: _Plugin) -> None:
        """It is in use already; only what it waits for is missing when this fails, and is tried again."""
        try:
            await self._registrations.notify(plugin.socket, None)
        except PluginError as error:
            extra = {"socket": str(plugin.socket), "problem": str(error)}
            logger.warning("plugin not notified of its registration, will retry", extra=extra)
            raise
        plugin.notified = True

    async def _register(self, plugin: _Plugin, identity: Identity) -> None:
        plugin.info = None
        try:
            info = plugin.info = await self._registrations.info(plugin.socket)
            handler = self._handlers.get(info.type)
            if handler is None:
                known = ", ".join(sorted(self._handlers)) or "none"
                raise PluginRefused(f'no handler registered for plugin type "{info.type}" (known: {known})')
            await handler.register(info.name, self._endpoint(plugin, info), info.versions)
        except PykubeletError as error:
            await self._refused(plugin, str(error))
            raise
        except Exception as error:  # a defect in one plugin's handling must not end the others
            logger.error("plugin not registered, unexpected", extra={"socket": str(plugin.socket)}, exc_info=True)
            problem = f"{type(error).__name__}: {error}"
            await self._refused(plugin, problem)
            raise PluginRefused(problem) from error
        plugin.registered, plugin.notified = identity, False
        logger.info("plugin registered", extra={"type": info.type, "plugin": info.name, "socket": str(plugin.socket)})

    async def _refused(self, plugin: _Plugin, problem: str) -> None:
        task = self._tasks.get(plugin.socket)
        if task is None or task.last_error != problem:
            logger.warning("plugin not registered", extra={"socket": str(plugin.socket), "problem": problem})
        if plugin.info is None:
            return  # GetInfo failed: a notification would fail as well
        try:
            await self._registrations.notify(plugin.socket, problem)
        except PluginError as silent:
            logger.debug("refused plugin not notified", extra={"socket": str(plugin.socket), "problem": str(silent)})

    async def _deregister(self, plugin: _Plugin) -> None:
        info, plugin.registered = plugin.info, None
        if info is None:
            return
        logger.info("plugin gone", extra={"type": info.type, "plugin": info.name, "socket": str(plugin.socket)})
        try:
            await self._handlers[info.type].deregister(info.name, self._endpoint(plugin, info))
        except Exception:  # as above: it is gone also when its handler fails
            logger.error("plugin not taken out of use, unexpected", extra={"plugin": info.name}, exc_info=True)

    def _endpoint(self, plugin: _Plugin, info: PluginInfo) -> Path:
        return Path(info.endpoint) if info.endpoint else plugin.socket

    def _series(self) -> dict[tuple[str, ...], float]:
        series: dict[tuple[str, ...], float] = {}
        for path, plugin in self._plugins.items():
            if plugin.wanted is not None:
                series[(str(path), "desired_state_of_world")] = 1
            if plugin.registered is not None:
                series[(str(path), "actual_state_of_world")] = 1
        return series
