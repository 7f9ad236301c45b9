"""Reconciler: brings each volume from its actual to its desired state, independently of all others.

One task per volume, alive only while there is something to do: it decides the next step, carries it out under a
deadline, and after a failure waits for its back-off or a change. Nothing is shared between volumes, so one that hangs
delays no other. The manager decides which volumes are desired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial

from pykubelet.api.types import Pod
from pykubelet.clients.host.port import Mounts, VolumePaths
from pykubelet.context import Context
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import PykubeletError
from pykubelet.model.life import Step as LifeStep
from pykubelet.model.pod import namespace_of
from pykubelet.model.reasons import WARNING
from pykubelet.volumes.actual_state import State, Step, VolumeEntry, VolumeTable, failure_of
from pykubelet.volumes.desired_state import ObjectKey, claim_name, fs_user, nested_folders, resolve_claim
from pykubelet.volumes.errors import ClaimProblem, GrowthProblem, VolumeProblem
from pykubelet.volumes.objects import VolumeObjects, VolumeRules
from pykubelet.volumes.ownership import tell_slow_ownership
from pykubelet.volumes.plugins.plugin import Files, RemotePlugin, SetUp, VolumePlugin
from pykubelet.volumes.reconstruct import forget_attached, note_attached
from pykubelet.volumes.spec import VolumeSpec, is_claimed, spec_of
from pykubelet.volumes.subpath import clean_subpaths

logger = logging.getLogger(__name__)

FIRST_RETRY, LAST_RETRY = 0.5, 122.0
GATHER_SECONDS = 30.0
"""For all questions to the API server that one set-up needs."""
ATTACH_SECONDS = 600.0
ATTACH_LOOK = 15.0
"""Seconds between looks at what an attacher has to say."""
OPERATION_SECONDS = 120.0
"""For the blocking part; what takes longer goes on, but is reported."""
PATIENCE = (30.0, 60.0, OPERATION_SECONDS - 90.0)
"""Its parts, in seconds: after the first and second a slow change of owners is told."""
RESIZE_FAILED = "VolumeResizeFailed"
_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)


class Reconciler:
    def __init__(
        self,
        ctx: Context,
        *,
        table: VolumeTable,
        plugins: Mapping[str, VolumePlugin],
        objects: VolumeObjects,
        mounts: Mounts,
        paths: VolumePaths,
        rules: VolumeRules,
        on_settled: Callable[[VolumeEntry], None],
    ) -> None:
        self._table = table
        self._plugins = plugins
        self._objects = objects
        self._mounts = mounts
        self._paths = paths
        self._clock, self._events, self._recorder = ctx.clock, ctx.events, ctx.recorder
        self._fits_node = rules.fits_node
        self._labels = rules.labels
        self._on_settled = on_settled
        self.tasks = TaskSet("volumes")
        self._durations = ctx.metrics.histogram(
            "storage_operation_duration_seconds",
            "How long operations on volumes took",
            ("volume_plugin", "operation_name", "status", "migrated"),
            _BUCKETS,
        )

    def begin(self, entry: VolumeEntry) -> None:
        """See to the entry: at once and to the end if that takes only a moment, else by a task of its own."""
        step = entry.next_step()
        if entry.driven:
            entry.wake.set()
        elif step is not None and not self._done_now(entry, step):
            entry.driven = True
            self.tasks.spawn(self._drive(entry), name=f"volume {entry.uid}/{entry.name}")

    def plugin_of(self, spec: VolumeSpec) -> VolumePlugin:
        plugin = self._plugins.get(spec.plugin)
        if plugin is None:
            raise VolumeProblem(f"no plugin {spec.plugin} is registered on this node")
        return plugin

    # --- the short way --------------------------------------------------------------------------

    def _done_now(self, entry: VolumeEntry, step: Step) -> bool:
        if entry.next_try > self._clock.monotonic() or entry.stuck is not None:
            return False
        if step is Step.UNMOUNT:
            return self._unmounted_now(entry)
        pod, use = entry.pod, entry.use
        if step is not Step.MOUNT or pod is None or use is None or is_claimed(use.volume):
            return False
        began = self._clock.monotonic()
        try:
            spec = entry.spec or spec_of(use.volume, namespace=namespace_of(pod), block=use.mapped)
            plugin = self.plugin_of(spec)
            entry.spec = spec
            if not plugin.is_quick(spec) or self._is_leaving(entry, spec):
                return False
            plugin.set_up(self._task(pod, spec), None)
        except (PykubeletError, OSError) as error:
            entry.state = State.UNCERTAIN
            self._failed(entry, step, error, began)
            return False
        self._succeeded(entry, step, began)
        self._on_settled(entry)
        return True

    def _unmounted_now(self, entry: VolumeEntry) -> bool:
        """Kinds that leave nothing on disk are done when no part of them is shown to a container."""
        spec = entry.spec
        if spec is None or spec.plugin not in self._plugins:
            return False
        plugin = self._plugins[spec.plugin]
        path = self._paths.volume(entry.uid, spec.plugin, spec.folder)
        if (
            isinstance(plugin, RemotePlugin)
            or plugin.where(path, spec) == path
            or (self._paths.subpaths(entry.uid) / spec.folder).exists()
        ):
            return False
        self._succeeded(entry, Step.UNMOUNT, self._clock.monotonic())
        self._on_settled(entry)
        return True

    # --- the long way ---------------------------------------------------------------------------

    async def _drive(self, entry: VolumeEntry) -> None:
        try:
            while (step := entry.next_step()) is not None:
                left = entry.next_try - self._clock.monotonic()
                if left > 0:
                    await entry.wake.wait(at_most=left)
                    continue
                await self._attempt(entry, step)
        finally:
            entry.driven = False
        self._on_settled(entry)

    async def _attempt(self, entry: VolumeEntry, step: Step) -> None:
        began = entry.begun_at = self._clock.monotonic()
        try:
            if step is Step.UNMOUNT:
                await self._unmount(entry)
            elif not await self._mount(entry):
                return
        except Exception as error:  # this volume's trouble alone: told, kept, retried
            if not isinstance(error, PykubeletError | OSError | TimeoutError):
                logger.exception("unexpected error with a volume", extra={"volume": entry.name, "uid": entry.uid})
            self._failed(entry, step, error, began)
        else:
            self._succeeded(entry, step, began)
        finally:
            entry.begun_at = None
            entry.scope = None

    async def _mount(self, entry: VolumeEntry) -> bool:
        """Set up, or set up again with new content; False when nobody wants it any more."""
        pod = entry.pod
        assert pod is not None
        # Cleared before asking: news that come from here on must lead to another round.
        entry.stale = False
        waits_for = "the API server did not answer in time"
        try:
            async with asyncio.timeout(GATHER_SECONDS) as entry.scope:
                spec = await self._resolve(entry, pod)
                plugin = self.plugin_of(spec)
                if self._is_leaving(entry, spec):
                    raise VolumeProblem("what an earlier run left of it is still being taken away")
                self._check_alone(entry, spec)
                self._check_label(entry, pod, spec)
                if isinstance(plugin, RemotePlugin):
                    await plugin.ready()
                if unique := plugin.attached_as(spec):
                    waits_for = f"{unique} is not attached to this node"
                    entry.wait_for(waits_for)
                    entry.scope.reschedule(asyncio.get_running_loop().time() + ATTACH_SECONDS)
                    await self._attached(entry, pod, spec, unique)
                task = self._task(pod, spec)
                files = await plugin.gather(task)
        except TimeoutError as error:
            if not entry.wanted:
                return False
            raise VolumeProblem(entry.problem if entry.problem.startswith(waits_for) else waits_for) from error
        except BaseException:
            entry.stale = entry.state is State.MOUNTED
            raise
        entry.scope = None
        if not entry.wanted:
            return False
        if not entry.in_pod:
            entry.state = State.UNCERTAIN
        if isinstance(plugin, RemotePlugin):
            await plugin.obtain(task, entry.wait_for)
        else:
            await self._blocking(entry, partial(self._set_up, plugin, task, files, unique), task)
            for reason, text in task.feedback.warnings:
                self._events.pod_event(pod, WARNING, reason, text)
        return True

    def _set_up(self, plugin: VolumePlugin, task: SetUp, files: Files | None, unique: str) -> None:
        if unique:
            note_attached(self._paths, task.uid, task.spec, unique)
        plugin.set_up(task, files)

    async def _attached(self, entry: VolumeEntry, pod: Pod, spec: VolumeSpec, unique: str) -> None:
        """Until the volume is attached; who waits long is told what the attacher says."""
        plugin = self.plugin_of(spec)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ATTACH_LOOK):
                    await self._objects.attachments.wait_attached(pod, unique)
                    return
            why = ""
            try:
                why = await plugin.attach_trouble(spec) if isinstance(plugin, RemotePlugin) else ""
            except PykubeletError as error:
                logger.debug("attacher's word not read", extra={"volume": entry.name, "problem": str(error)})
            if why:
                entry.wait_for(f"{unique} is not attached to this node: {why}")

    async def _resolve(self, entry: VolumeEntry, pod: Pod) -> VolumeSpec:
        use = entry.use
        assert use is not None
        if entry.spec is None:
            if is_claimed(use.volume):
                entry.spec = await resolve_claim(self._objects.claims, pod, use, self._fits_node)
                volume = ObjectKey("persistentvolume", "", entry.spec.persistent)
                self._table.hang_on(entry, entry.objects | {volume})
                self._adopt(entry, entry.spec)
            else:
                entry.spec = spec_of(use.volume, namespace=namespace_of(pod), block=use.mapped)
        return entry.spec

    def _adopt(self, entry: VolumeEntry, spec: VolumeSpec) -> None:
        """A volume found on disk after a restart under its folder's name turns out to be this one."""
        record = self._table.of(entry.uid)
        found = record.entries.get(found_name(spec.plugin, spec.folder))
        if found is not None and not found.driven:
            self._table.remove(found)
            entry.state = State.UNCERTAIN

    def _is_leaving(self, entry: VolumeEntry, spec: VolumeSpec) -> bool:
        """Whether this very volume, found on disk after a restart, is being taken away: that has to end first."""
        found = self._table.of(entry.uid).entries.get(found_name(spec.plugin, spec.folder))
        return found is not None and found.driven and found.in_pod

    def _check_label(self, entry: VolumeEntry, pod: Pod, spec: VolumeSpec) -> None:
        """A mount has one label: whoever needs another one waits until it is gone."""
        wanted = self._labels.label(pod, spec)
        for other in self._table.entries() if wanted else ():
            if other.spec is None or other.spec.persistent != spec.persistent or other.uid == entry.uid:
                continue
            has = self._labels.label(other.pod, other.spec) if other.pod is not None else wanted
            if other.state is not State.ABSENT and has != wanted:
                raise VolumeProblem(f"another pod has it mounted with SELinux label {has!r}, this one needs {wanted!r}")

    def _check_alone(self, entry: VolumeEntry, spec: VolumeSpec) -> None:
        if spec.access_modes != ("ReadWriteOncePod",):
            return
        for other in self._table.entries():
            same = other.spec is not None and other.spec.persistent == spec.persistent
            if same and other.uid != entry.uid and other.in_pod:
                raise VolumeProblem("volume uses the ReadWriteOncePod access mode and is already in use by another pod")

    def _task(self, pod: Pod, spec: VolumeSpec) -> SetUp:
        return SetUp(
            pod=pod,
            spec=spec,
            path=self._paths.volume(pod.metadata.uid or "", spec.plugin, spec.folder),
            fs_user=fs_user(pod),
            nested=nested_folders(pod, spec.name),
            label=self._labels.label(pod, spec),
        )

    async def _unmount(self, entry: VolumeEntry) -> None:
        spec = entry.spec
        if spec is None:  # its claim was never resolved, so nothing can be there
            return
        plugin = self.plugin_of(spec)
        if entry.state is not State.STAGED:
            await self._blocking(entry, partial(self._tear_down, entry.uid, spec))
            if isinstance(plugin, RemotePlugin):
                await plugin.give_back(entry.uid, spec, entry.wait_for)
        if isinstance(plugin, RemotePlugin):
            # The pod may go from here on; the volume is in use until the node has let go of it, too.
            entry.state = State.STAGED
            self._on_settled(entry)
            await plugin.let_go(spec, entry.wait_for)

    def _tear_down(self, uid: str, spec: VolumeSpec) -> None:
        clean_subpaths(self._mounts, self._paths, uid, spec.folder)
        plugin = self.plugin_of(spec)
        if not isinstance(plugin, RemotePlugin):
            plugin.tear_down(uid, spec.folder)
            forget_attached(self._paths, uid, spec)

    async def _blocking(self, entry: VolumeEntry, work: Callable[[], None], task: SetUp | None = None) -> None:
        if entry.stuck is not None:
            await asyncio.wait({entry.stuck}, timeout=OPERATION_SECONDS)
            if not entry.stuck.done():
                raise VolumeProblem(entry.problem or "an earlier operation hangs")
            entry.stuck = None
        future = host_calls.begin(
            work,
            name="setting up a volume" if task is not None else "tearing down a volume",
            key=f"{entry.uid}/{entry.name}",
            pod=entry.uid,
            within=OPERATION_SECONDS,
        )
        for number, seconds in enumerate(PATIENCE):
            await asyncio.wait({future}, timeout=seconds)
            if future.done() or number == len(PATIENCE) - 1:
                break
            if task is not None and task.feedback.files:
                tell_slow_ownership(self._events, task, first=number == 0)
        if not future.done():
            entry.stuck = future
            raise VolumeProblem(f"the file system has not finished after {OPERATION_SECONDS:.0f} s")
        future.result()

    # --- outcomes -------------------------------------------------------------------------------

    def _succeeded(self, entry: VolumeEntry, step: Step, began: float) -> None:
        if entry.failures:
            logger.info("volume is fine now", extra={"volume": entry.name, "uid": entry.uid, "was": entry.problem})
        entry.state = State.ABSENT if step is Step.UNMOUNT else State.MOUNTED
        entry.failures, entry.problem, entry.missing, entry.next_try = 0, "", "", 0.0
        entry.refreshed_at = self._clock.monotonic()
        self._measure(entry, step, began, "success")

    def _failed(self, entry: VolumeEntry, step: Step, error: Exception, began: float) -> None:
        entry.failures += 1
        entry.problem = str(error) or type(error).__name__
        entry.missing = error.missing if isinstance(error, VolumeProblem) else ""
        delay = min(LAST_RETRY, FIRST_RETRY * 2.0 ** min(entry.failures - 1, 16))
        entry.next_try = self._clock.monotonic() + delay
        if step is Step.REFRESH:
            entry.stale = True
        self._measure(entry, step, began, "fail-unknown")
        logger.warning(
            "volume operation failed, will retry",
            extra={"volume": entry.name, "uid": entry.uid, "operation": step.value, "error": entry.problem,
                   "failures": entry.failures, "retry_in": delay},
        )  # fmt: skip
        if step is Step.UNMOUNT and entry.wanted:
            entry.retry_now()  # wanted again meanwhile: what could not be taken away is set up again
        elif entry.pod is not None:
            problem = failure_of(entry, self._clock)
            text = problem.describe(self._clock.now() - (self._clock.monotonic() - began))
            self._recorder.fail(
                entry.uid, LifeStep.VOLUMES, entry.name, reason="FailedMount", message=text, cause=problem
            )
            reason = RESIZE_FAILED if _grows_later(entry, error) else "FailedMount"
            self._events.pod_event(entry.pod, WARNING, reason, _event_text(entry, error))
        record = self._table.pods.get(entry.uid)
        if record is not None:
            record.changed()

    def _measure(self, entry: VolumeEntry, step: Step, began: float, status: str) -> None:
        plugin = entry.spec.plugin if entry.spec else ""
        migrated = "true" if entry.spec is not None and entry.spec.migrated else "false"
        name = Step.MOUNT.value if step is Step.REFRESH else step.value
        self._durations.observe(self._clock.monotonic() - began, plugin, name, status, migrated)


def found_name(plugin: str, folder: str) -> str:
    """Entry name of a volume known only from disk; has a slash, so it is never one of a pod's own names."""
    return f"{plugin}/{folder}"


def _grows_later(entry: VolumeEntry, error: Exception) -> bool:
    """A running pod goes on with the size it has."""
    return isinstance(error, GrowthProblem) and entry.state is State.MOUNTED


def _event_text(entry: VolumeEntry, error: Exception) -> str:
    if isinstance(error, GrowthProblem):
        name = entry.spec.persistent if entry.spec is not None else entry.name
        later = _grows_later(entry, error)
        what = (
            "NodeExpandVolume.NodeExpandVolume failed" if later else "MountVolume.Setup failed while expanding volume"
        )
        return f'{what} for volume "{name}" : {error}'
    if isinstance(error, ClaimProblem):
        pod, use = entry.pod, entry.use
        claim = f"{namespace_of(pod)}/{claim_name(pod, use.volume)}" if pod and use else ""
        names = f"unmounted volumes=[{entry.name}], unattached volumes=[], failed to process volumes=[{entry.name}]"
        return f"Unable to attach or mount volumes: {names}: error processing PVC {claim}: {error}"
    return f'MountVolume.SetUp failed for volume "{entry.name}" : {error}'
