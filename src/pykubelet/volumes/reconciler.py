"""Reconciler: brings each volume from its actual to its desired state, independently of all others.

One task per volume, alive only while there is something to do: it decides the next step, carries it out under a
deadline, and after a failure waits for its back-off or a change. Nothing is shared between volumes, so one that hangs
delays no other. The manager decides which volumes are desired.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from pykubelet.api.references import claim_name
from pykubelet.api.types import Pod
from pykubelet.clients.host.port import Mounts, NodePaths
from pykubelet.context import Context
from pykubelet.kit import tracing
from pykubelet.kit.host_calls import host_calls
from pykubelet.kit.keyed import KeyedTasks, KeyState
from pykubelet.kit.tracing import NO_SPAN, Span
from pykubelet.model.errors import PykubeletError
from pykubelet.model.pod import namespace_of
from pykubelet.model.problems import VolumeFailed
from pykubelet.model.reasons import FAILED_MOUNT, WARNING
from pykubelet.recorder import Step as LifeStep
from pykubelet.volumes.actual_state import FIRST_RETRY, LAST_RETRY, State, Step, VolumeEntry, VolumeTable, failure_of
from pykubelet.volumes.desired_state import ObjectKey, fs_user, nested_folders, resolve_claim
from pykubelet.volumes.errors import ClaimProblem, GrowthProblem, VolumeProblem
from pykubelet.volumes.objects import VolumeObjects, VolumeRules
from pykubelet.volumes.ownership import report_slow_ownership
from pykubelet.volumes.plugins.plugin import Files, RemotePlugin, SetUp, VolumePlugin
from pykubelet.volumes.plugins.registry import Leftover, Plugins
from pykubelet.volumes.reconstruct import forget_attached, note_attached
from pykubelet.volumes.selinux import LabelMetrics
from pykubelet.volumes.spec import VolumeSpec, is_claimed, qualified_plugin, server_of, spec_of
from pykubelet.volumes.subpath import clean_subpaths

logger = logging.getLogger(__name__)

GATHER_SECONDS = 30.0
"""For all requests to the API server that one set-up needs."""
ATTACH_SECONDS = 600.0
ATTACH_ERROR_EVERY = 15.0
"""Seconds between reads of the attacher's error."""
OPERATION_SECONDS = 120.0
"""For the blocking part; what takes longer continues, but is reported."""
REPORT_AFTER = (30.0, 60.0, OPERATION_SECONDS - 90.0)
"""Its parts, in seconds: after the first and the second a slow change of owners is reported."""
API_SERVER_SILENT = "the API server did not answer in time"
MOST_MEASURED = 100
"""Plugins and drivers that metrics name although none of their operations has succeeded."""
UNKNOWN_PLUGIN = "UnknownVolumePlugin"
_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0)


_SPANS = {Step.MOUNT: "Volumes/Mount", Step.REFRESH: "Volumes/Refresh", Step.UNMOUNT: "Volumes/Unmount"}


class Reconciler:
    def __init__(
        self,
        ctx: Context,
        *,
        table: VolumeTable,
        plugins: Plugins,
        objects: VolumeObjects,
        mounts: Mounts,
        paths: NodePaths,
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
        self._label_metrics = LabelMetrics(ctx.metrics)
        self._controller_attaches = rules.controller_attaches
        self._on_settled = on_settled
        self.tasks = KeyedTasks(
            "volume",
            self._reconcile,
            clock=ctx.clock,
            first_retry=FIRST_RETRY,
            last_retry=LAST_RETRY,
            on_error=_defect,
            on_finished=on_settled,
        )
        self._durations = ctx.metrics.histogram(
            "storage_operation_duration_seconds",
            "How long operations on volumes took",
            ("volume_plugin", "operation_name", "status", "migrated"),
            _BUCKETS,
        )
        self._measured: set[str] = set()
        self._cleaned = ctx.metrics.counter(
            "force_cleaned_failed_volume_operations_total", "Volumes of plugins that are not known, taken away"
        )
        self._not_cleaned = ctx.metrics.counter(
            "force_cleaned_failed_volume_operation_errors_total",
            "Volumes of plugins that are not known, not taken away",
        )

    def begin(self, entry: VolumeEntry) -> None:
        """Reconcile the entry: at once if that takes only a moment, else in a task of its own."""
        step = entry.next_step()
        entry.begun_by = tracing.current.get()
        if self.is_active(entry) or (step is not None and not self._done_now(entry, step)):
            self.tasks.wake(entry)

    def is_active(self, entry: VolumeEntry) -> bool:
        """Whether an operation on the entry is under way or will be retried."""
        return entry in self.tasks

    def adopt(self, entry: VolumeEntry, spec: VolumeSpec) -> None:
        """Take over what an earlier run left of this volume, known until now by its folder's name."""
        found = self._table.of(entry.uid).entries.get(found_name(spec.plugin, spec.folder))
        if found is not None and not self.is_active(found):
            self._table.remove(found)
            entry.state = State.UNCERTAIN

    def plugin_of(self, spec: VolumeSpec) -> VolumePlugin:
        return self._plugins.of(spec)

    # --- on the loop, at once -------------------------------------------------------------------

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
        """Plugins that leave nothing on disk are done when no subPath of the volume is mounted."""
        spec = entry.spec
        if spec is None or spec.plugin not in self._plugins:
            return False
        plugin = self._plugins[spec.plugin]
        path = self._paths.volume(entry.uid, spec.plugin, spec.folder)
        if (
            isinstance(plugin, RemotePlugin)
            or plugin.mount_path(path, spec) == path
            or (self._paths.subpaths(entry.uid) / spec.folder).exists()
        ):
            return False
        self._succeeded(entry, Step.UNMOUNT, self._clock.monotonic())
        self._on_settled(entry)
        return True

    # --- in a task ------------------------------------------------------------------------------

    async def _reconcile(self, entry: VolumeEntry) -> float | None:
        """Returns the seconds until the next try; None when the volume is as desired."""
        while (step := entry.next_step()) is not None:
            left = entry.next_try - self._clock.monotonic()
            if left > 0:
                return left
            parent, entry.begun_by = entry.begun_by, NO_SPAN
            with tracing.span(_SPANS[step], parent=parent) as span:
                await self._attempt(entry, step)
                if span.recorded:
                    _describe(span, entry)
        return None

    async def _attempt(self, entry: VolumeEntry, step: Step) -> None:
        began = entry.begun_at = self._clock.monotonic()
        try:
            if step is Step.UNMOUNT:
                await self._unmount(entry)
            elif not await self._mount(entry):
                return
        except Exception as error:  # concerns this volume alone: reported and retried
            if not isinstance(error, PykubeletError | OSError | TimeoutError):
                logger.exception("unexpected error with a volume", extra={"volume": entry.name, "uid": entry.uid})
            self._failed(entry, step, error, began)
        else:
            self._succeeded(entry, step, began)
        finally:
            entry.begun_at = None

    async def _mount(self, entry: VolumeEntry) -> bool:
        """Set up, or set up again with new content; False when it is not desired any more."""
        pod = entry.pod
        assert pod is not None
        prepared = await self._prepare(entry, pod)
        if prepared is None or not entry.is_desired:
            return False
        plugin, task, files = prepared
        if not entry.in_pod:
            entry.state = State.UNCERTAIN
        if isinstance(plugin, RemotePlugin):
            await plugin.publish(task, entry.wait_for)
        else:
            await self._blocking(entry, partial(self._set_up, plugin, task, files), task)
            for reason, text in task.feedback.warnings:
                self._events.pod_event(pod, WARNING, reason, text)
        return True

    async def _prepare(self, entry: VolumeEntry, pod: Pod) -> tuple[VolumePlugin, SetUp, Files | None] | None:
        """Get all that set-up needs from the API server; None when the volume is not desired any more."""
        # Cleared first: changes from here on must lead to another round.
        entry.stale = False
        try:
            async with asyncio.timeout(GATHER_SECONDS) as entry.scope:
                spec = await self._resolve(entry, pod)
                plugin = self.plugin_of(spec)
                self._check(entry, pod, spec)
                await plugin.ready()
                unique, device = plugin.unique_name(spec), ""
                if unique:
                    entry.scope.reschedule(asyncio.get_running_loop().time() + ATTACH_SECONDS)
                    device = await self._attached(entry, pod, spec, unique)
                task = self._task(pod, spec, unique, device)
                return plugin, task, await plugin.gather(task)
        except TimeoutError as error:
            if not entry.is_desired:
                return None
            raise VolumeProblem(entry.waiting_for or API_SERVER_SILENT) from error
        except BaseException:
            entry.stale = entry.state is State.MOUNTED
            raise
        finally:
            entry.scope, entry.awaits_attach = None, False

    def _set_up(self, plugin: VolumePlugin, task: SetUp, files: Files | None) -> None:
        if task.unique_name:
            note_attached(self._paths, task.uid, task.spec, task.unique_name)
        plugin.set_up(task, files)

    async def _attached(self, entry: VolumeEntry, pod: Pod, spec: VolumeSpec, unique: str) -> str:
        """Wait until the volume is attached, and show the attacher's error after a while.

        Returns the device that was named then. What this agent attaches itself is a part of set-up, which is noted.
        """
        plugin = self.plugin_of(spec)
        if not self._controller_attaches:
            if plugin.cannot_attach:
                raise VolumeProblem(plugin.cannot_attach)
            return ""
        entry.wait_for(f"{unique} is not attached to this node")
        entry.awaits_attach = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ATTACH_ERROR_EVERY):
                    device = await self._objects.attachments.wait_attached(pod, unique)
                    entry.awaits_attach = False
                    return device
            try:
                if why := await plugin.attach_error(spec):
                    entry.wait_for(f"{unique} is not attached to this node: {why}")
            except PykubeletError as error:
                logger.debug("attach error not read", extra={"volume": entry.name, "problem": str(error)})

    async def _resolve(self, entry: VolumeEntry, pod: Pod) -> VolumeSpec:
        use = entry.use
        assert use is not None
        if entry.spec is None:
            if is_claimed(use.volume):
                entry.spec = await resolve_claim(self._objects.claims, pod, use, self._fits_node)
                volume = ObjectKey("persistentvolume", "", entry.spec.persistent)
                self._table.depend_on(entry, entry.objects | {volume})
                self.adopt(entry, entry.spec)
            else:
                entry.spec = spec_of(use.volume, namespace=namespace_of(pod), block=use.mapped)
        return entry.spec

    def _is_leaving(self, entry: VolumeEntry, spec: VolumeSpec) -> bool:
        """Whether this volume, found on disk after a restart, is being torn down: that has to end first."""
        found = self._table.of(entry.uid).entries.get(found_name(spec.plugin, spec.folder))
        return found is not None and found.in_pod and self.is_active(found)

    def _check(self, entry: VolumeEntry, pod: Pod, spec: VolumeSpec) -> None:
        if self._is_leaving(entry, spec):
            raise VolumeProblem("what an earlier run left of it is still being taken away")
        if self._labels.default and not entry.in_pod and not entry.failures:
            self._count_labels(entry, pod, spec)
        alone = spec.access_modes == ("ReadWriteOncePod",)
        label = self._label(pod, spec)
        labelled = bool(spec.persistent and self._labels.concern(spec) and self.plugin_of(spec).mounts_with_label(spec))
        for other in self._table.entries() if alone or labelled else ():
            if other.spec is None or other.spec.persistent != spec.persistent or other.uid == entry.uid:
                continue
            if alone and other.in_pod:
                raise VolumeProblem("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
            if not labelled or other.state is State.ABSENT:
                continue
            has = self._label(other.pod, other.spec) if other.pod is not None else label
            if has != label:
                # A mount has one label.
                raise VolumeProblem(f"another pod has it mounted with SELinux label {has!r}, this one needs {label!r}")

    def _count_labels(self, entry: VolumeEntry, pod: Pod, spec: VolumeSpec) -> None:
        others = [
            each.pod
            for each in self._table.entries()
            if each.pod is not None and each.uid != entry.uid and each.spec is not None
            if spec.persistent and each.spec.persistent == spec.persistent
        ]
        supported = self.plugin_of(spec).mounts_with_label(spec)
        self._label_metrics.count(self._labels, pod, spec, supported=supported, others=others)

    def _label(self, pod: Pod, spec: VolumeSpec) -> str:
        return self._labels.label(pod, spec, supported=self.plugin_of(spec).mounts_with_label(spec))

    def _task(self, pod: Pod, spec: VolumeSpec, unique: str = "", device: str = "") -> SetUp:
        return SetUp(
            pod=pod,
            spec=spec,
            path=self._paths.volume(pod.metadata.uid or "", spec.plugin, spec.folder),
            fs_user=fs_user(pod),
            nested=nested_folders(pod, spec.name),
            label=self._label(pod, spec),
            unique_name=unique,
            device=device,
        )

    async def _unmount(self, entry: VolumeEntry) -> None:
        spec = entry.spec
        if spec is None:  # its claim was never resolved, so nothing can be mounted
            return
        plugin = self.plugin_of(spec)
        if entry.state is not State.STAGED:
            await self._blocking(entry, partial(self._tear_down, entry.uid, spec))
            if isinstance(plugin, RemotePlugin):
                await plugin.unpublish(entry.uid, spec, entry.wait_for)
        if isinstance(plugin, RemotePlugin):
            # The pod may go from here on; the volume is in use until it is unstaged, too.
            entry.state = State.STAGED
            self._on_settled(entry)
            await plugin.unstage(spec, entry.wait_for)

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
        for number, seconds in enumerate(REPORT_AFTER):
            await asyncio.wait({future}, timeout=seconds)
            if future.done() or number == len(REPORT_AFTER) - 1:
                break
            entry.wait_for(_silence(entry.spec, "unmount" if task is None else "mount"))
            if task is not None and task.feedback.files:
                report_slow_ownership(self._events, task, first=number == 0)
        if not future.done():
            entry.stuck = future
            raise VolumeProblem(f"the file system has not finished after {OPERATION_SECONDS:.0f} s")
        future.result()

    # --- outcomes -------------------------------------------------------------------------------

    def _succeeded(self, entry: VolumeEntry, step: Step, began: float) -> None:
        if entry.failures:
            logger.info("volume is fine now", extra={"volume": entry.name, "uid": entry.uid, "was": entry.problem})
        entry.succeeded(State.ABSENT if step is Step.UNMOUNT else State.MOUNTED, self._clock.monotonic())
        self._measure(entry, step, began, "success")

    def _failed(self, entry: VolumeEntry, step: Step, error: Exception, began: float) -> None:
        delay = entry.failed(_failure(entry, error), self._clock.monotonic())
        if step is Step.REFRESH:
            entry.stale = True
        self._measure(entry, step, began, "fail-unknown")
        logger.warning(
            "volume operation failed, will retry",
            extra={"volume": entry.name, "uid": entry.uid, "operation": step.value, "error": entry.problem,
                   "failures": entry.failures, "retry_in": delay},
        )  # fmt: skip
        if step is Step.UNMOUNT and entry.is_desired:
            entry.reset_backoff()  # desired again meanwhile: set up at once what could not be torn down
        elif entry.pod is not None:
            problem = failure_of(entry, self._clock)
            text = problem.describe(self._clock.now() - (self._clock.monotonic() - began))
            self._recorder.fail(
                entry.uid, LifeStep.VOLUMES, entry.name, reason=FAILED_MOUNT, message=text, cause=problem
            )
            self._events.pod_event(entry.pod, WARNING, problem.event_reason, problem.event_message)
        record = self._table.pods.get(entry.uid)
        if record is not None:
            record.changed()

    def _measure(self, entry: VolumeEntry, step: Step, began: float, status: str) -> None:
        plugin = self._named(entry.spec, status) if entry.spec else ""
        migrated = "true" if entry.spec is not None and entry.spec.migrated else "false"
        name = Step.MOUNT.value if step is Step.REFRESH else step.value
        self._durations.observe(self._clock.monotonic() - began, plugin, name, status, migrated)
        if step is Step.UNMOUNT and entry.spec is not None and isinstance(self.plugin_of(entry.spec), Leftover):
            self._cleaned.inc()
            if status != "success":
                self._not_cleaned.inc()

    def _named(self, spec: VolumeSpec, status: str) -> str:
        """The plugin as metrics name it: a few of the drivers that never did anything, as pods name what they like."""
        name = qualified_plugin(spec)
        if name not in self._measured:
            if status != "success" and len(self._measured) >= MOST_MEASURED:
                return UNKNOWN_PLUGIN
            self._measured.add(name)
        return name


def _describe(span: Span, entry: VolumeEntry) -> None:
    """`_attempt` raises nothing: what failed is in the entry."""
    kind = entry.spec.plugin if entry.spec is not None else ""
    span.set({"k8s.pod.uid": entry.uid, "k8s.volume.name": entry.name, "k8s.volume.type": kind})
    if entry.failures:
        span.fail(entry.problem)


def _defect(entry: VolumeEntry, error: Exception, state: KeyState) -> float:
    """Log an error outside of the operations, whose own failures are handled by `_failed`."""
    logger.error("volume not reconciled, unexpected", extra={"volume": entry.name, "uid": entry.uid}, exc_info=error)
    return state.backoff.next()


def _silence(spec: VolumeSpec | None, operation: str) -> str:
    """What to say of an operation that takes long: most often a server does not answer."""
    server = server_of(spec) if spec is not None else ""
    return f"its {operation} has not come back" + (f"; it is from {server}" if server else "")


def found_name(plugin: str, folder: str) -> str:
    """Entry name of a volume known only from disk; has a slash, so it is never one of a pod's own names."""
    return f"{plugin}/{folder}"


def _failure(entry: VolumeEntry, error: Exception) -> VolumeFailed:
    claim, expanding = "", ""
    if isinstance(error, ClaimProblem) and entry.pod is not None and entry.use is not None:
        claim = f"{namespace_of(entry.pod)}/{claim_name(entry.pod, entry.use.volume)}"
    elif isinstance(error, GrowthProblem):
        expanding = entry.spec.persistent if entry.spec is not None else entry.name
    return VolumeFailed(
        volume=entry.name,
        text=str(error) or type(error).__name__,
        missing=error.missing if isinstance(error, VolumeProblem) else "",
        claim=claim,
        expanding=expanding,
        is_mounted=entry.state is State.MOUNTED,
    )
