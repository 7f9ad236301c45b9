"""The metrics every dashboard of kubelets shows about pods and containers, as views of what others keep anyway.

Gauges are counted when scraped; counters and durations follow the life recorder and the signals of PLEG.
Names, labels and buckets are upstream's. Does not cover: what managers count about themselves.
"""

from __future__ import annotations

from collections import Counter as Counting
from collections.abc import Sequence

from pykubelet.api.types import Pod
from pykubelet.context import Context
from pykubelet.kit.metrics import Registry
from pykubelet.model.pod import ContainerKind, find_container, is_static, uses_host_network
from pykubelet.model.runtime_status import ContainerState
from pykubelet.pods.record import PodWorker, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeEntry, Outcome, Step
from pykubelet.signals import ContainerDied

_EARLY = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0)
_LATE = (120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0)
START_BUCKETS = (*_EARLY, *_LATE)
COUNT_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0)
LIFECYCLES = {WorkerState.SYNCING: "sync", WorkerState.TERMINATING: "terminating"}
KINDS = {
    ContainerKind.REGULAR: "container",
    ContainerKind.INIT: "init_container",
    ContainerKind.EPHEMERAL: "ephemeral_container",
}
STATELESS_VOLUMES = ("secret", "config_map", "downward_api", "empty_dir", "projected")
IMAGE_VOLUME_MOUNT_FAILED = "ImageVolumeMountFailed"
"""What runtimes put before the reason, as the CRI has it."""
START_ERRORS = {Step.CREATE: "CreateContainerError", Step.START: "RunContainerError"}


class PodMetrics:
    def __init__(self, ctx: Context, table: PodTable) -> None:
        self._table, self._recorder, self._clock = table, ctx.recorder, ctx.clock
        metrics = ctx.metrics
        metrics.gauge("kubelet_node_name", "The node's name; always 1.", ("node",)).set(1, ctx.node_name)
        self._make_gauges(metrics)
        self._make_counters(metrics)
        self._make_durations(metrics)
        self._running: dict[str, set[str]] = {}
        """UID -> containers started so far, until all were."""
        self._apart: set[str] = set()
        """Pods with a user namespace of their own that have a sandbox and are not up yet."""
        self._first_network_pod = True
        metrics.on_scrape(self._count)
        ctx.recorder.listen(self._stepped)

    def _make_gauges(self, metrics: Registry) -> None:
        self._desired = metrics.gauge("kubelet_desired_pods", "Pods the node was told to run.", ("static",))
        self._active = metrics.gauge("kubelet_active_pods", "Pods that hold resources of the node.", ("static",))
        self._mirrors = metrics.gauge("kubelet_mirror_pods", "Mirror pods of static pods.")
        self._working = metrics.gauge(
            "kubelet_working_pods", "Pods with a worker, by what it does.", ("lifecycle", "config", "static")
        )
        self._running_pods = metrics.gauge("kubelet_running_pods", "Pods that have a running sandbox.")
        self._containers = metrics.gauge(
            "kubelet_running_containers", "Containers of the runtime by state.", ("container_state",)
        )
        self._ephemeral = metrics.gauge("kubelet_managed_ephemeral_containers", "Ephemeral containers of all pods.")

    def _make_counters(self, metrics: Registry) -> None:
        self._started_pods = metrics.counter("kubelet_started_pods_total", "Pods started.")
        self._failed_pods = metrics.counter("kubelet_started_pods_errors_total", "Pods that could not be started.")
        self._started_apart = metrics.counter(
            "kubelet_started_user_namespaced_pods_total", "Pods with user namespaces started."
        )
        self._failed_apart = metrics.counter(
            "kubelet_started_user_namespaced_pods_errors_total", "Pods with user namespaces that could not be started."
        )
        self._image_volumes = metrics.counter("kubelet_image_volume_requested_total", "Image volumes asked for.")
        self._image_mounts = metrics.counter(
            "kubelet_image_volume_mounted_succeed_total", "Image volumes mounted into containers."
        )
        self._image_mount_errors = metrics.counter(
            "kubelet_image_volume_mounted_errors_total", "Image volumes that could not be mounted."
        )
        self._started = metrics.counter("kubelet_started_containers_total", "Containers started.", ("container_type",))
        self._failed = metrics.counter(
            "kubelet_started_containers_errors_total", "Containers not started.", ("container_type", "code")
        )
        self._ended = metrics.counter(
            "kubelet_terminated_containers_total", "Containers ended.", ("container_type", "exit_code", "reason")
        )
        self._rejected = metrics.counter("kubelet_admission_rejections_total", "Pods not admitted.", ("reason",))
        self._sandbox_errors = metrics.counter(
            "kubelet_run_podsandbox_errors_total", "Sandboxes that could not be made.", ("runtime_handler",)
        )

    def _make_durations(self, metrics: Registry) -> None:
        self._per_pod = metrics.histogram(
            "kubelet_containers_per_pod_count", "Containers of each pod.", (), COUNT_BUCKETS
        )
        self._start = metrics.histogram(
            "kubelet_pod_start_duration_seconds", "From the first sight of a pod to its run.", (), START_BUCKETS
        )
        self._start_sli = metrics.histogram(
            "kubelet_pod_start_sli_duration_seconds", "From creation to run, without pulling.", (), START_BUCKETS
        )
        self._first_start_sli = metrics.gauge(
            "kubelet_first_network_pod_start_sli_duration_seconds",
            "From creation to run of the first pod with a network of its own, without pulling.",
        )
        self._start_total = metrics.histogram(
            "kubelet_pod_start_total_duration_seconds", "From creation to run.", (), START_BUCKETS
        )
        self._cgroup = metrics.histogram(
            "kubelet_cgroup_manager_duration_seconds", "Work on pods' cgroups.", ("operation_type",)
        )
        self._sandbox = metrics.histogram(
            "kubelet_run_podsandbox_duration_seconds", "Making sandboxes.", ("runtime_handler",)
        )

    # --- counted when scraped -------------------------------------------------------------------

    def _count(self) -> None:
        desired = self._table.pods()
        self._desired.replace(_by_static(desired))
        workers = self._table.workers()
        holding = [worker.pod for worker in workers if worker.pod is not None and worker.is_active]
        self._active.replace(_by_static(holding))
        self._mirrors.set(len(self._table.mirrors()))
        self._working.replace({key: float(n) for key, n in Counting(map(self._work_of, workers)).items()})
        self._ephemeral.set(sum(len(pod.spec.ephemeral_containers) for pod in desired))
        observed = self._table.runtime_statuses()
        self._running_pods.set(sum(bool(status.ready_sandboxes()) for status in observed))
        found = Counting(each.state for status in observed for each in status.containers)
        self._containers.replace({(state.name.lower(),): float(found[state]) for state in ContainerState})

    def _work_of(self, worker: PodWorker) -> tuple[str, str, str]:
        static = "unknown" if worker.pod is None else _static(worker.pod)
        desired = "desired" if self._table.is_desired(worker.uid) else "orphan"
        config = "runtime_only" if worker.pod is None else desired
        return LIFECYCLES.get(worker.state, "terminated"), config, static

    # --- followed -------------------------------------------------------------------------------

    def container_died(self, died: ContainerDied) -> None:
        if died.sandbox:
            return
        status = self._table.runtime_status(died.uid)
        container = next((each for each in status.containers if each.id == died.container_id), None)
        if container is not None:
            kind = self._kind(died.uid, died.name)
            self._ended.inc(kind, str(container.exit_code), container.reason)

    def _stepped(self, uid: str, entry: LifeEntry) -> None:
        seconds, failed = entry.seconds or 0.0, entry.outcome is Outcome.FAILED
        match entry.step:
            case Step.SEEN:
                pod = self._pod(uid)
                self._per_pod.observe(len(pod.spec.containers) if pod is not None else 0)
            case Step.ADMISSION if failed:
                self._rejected.inc(entry.reason)
            case Step.CGROUP:
                self._cgroup.observe(seconds, "create")
            case Step.SANDBOX:
                pod = self._pod(uid)
                handler = (pod.spec.runtime_class_name if pod is not None else "") or ""
                self._started_pods.inc()
                self._sandbox.observe(seconds, handler)
                if failed:
                    self._failed_pods.inc()
                    self._sandbox_errors.inc(handler)
                if pod is not None and pod.spec.host_users is False:
                    self._started_apart.inc()
                    self._apart.add(uid)
                    self._note_apart(uid, failed=failed)
            case Step.CREATE | Step.START if failed:
                self._note_image_volumes(uid, entry)
                self._note_apart(uid, failed=True)
                self._failed.inc(self._kind(uid, entry.subject), entry.reason or START_ERRORS[entry.step])
            case Step.CREATE:
                self._note_image_volumes(uid, entry)
            case Step.START:
                self._started.inc(self._kind(uid, entry.subject))
                self._note_start(uid, entry.subject)
            case Step.CLEANUP:
                self._running.pop(uid, None)
                self._apart.discard(uid)

    def _note_apart(self, uid: str, *, failed: bool) -> None:
        """Of each start of a pod with a user namespace one failure counts, wherever it shows."""
        if failed and uid in self._apart:
            self._apart.discard(uid)
            self._failed_apart.inc()

    def _note_image_volumes(self, uid: str, entry: LifeEntry) -> None:
        pod = self._pod(uid)
        found = find_container(pod, entry.subject) if pod is not None else None
        if pod is None or found is None or entry.step is not Step.CREATE:
            return
        images = {volume.name for volume in pod.spec.volumes if volume.image is not None}
        mounted = [mount.name for mount in found[1].volume_mounts if mount.name in images]
        self._image_volumes.inc(by=len(set(mounted)))
        if entry.outcome is not Outcome.FAILED:
            self._image_mounts.inc(by=len(mounted))
        elif IMAGE_VOLUME_MOUNT_FAILED in entry.message:
            self._image_mount_errors.inc(by=len(mounted))

    def _note_start(self, uid: str, name: str) -> None:
        """A pod runs when the last of its containers has begun for the first time."""
        pod, life = self._pod(uid), self._recorder.life(uid)
        if pod is None or life is None:
            return
        started = self._running.setdefault(uid, set())
        wanted = {each.name for each in pod.spec.containers}
        if wanted <= started:
            return  # a restart
        started.add(name)
        first = next((entry.at for entry in life.entries if entry.step is Step.SEEN), None)
        if not wanted <= started or first is None:
            return
        self._apart.discard(uid)
        now = self._clock.now()
        self._start.observe(now - first)
        created = pod.metadata.creation_timestamp
        if created is not None and not is_static(pod):
            total = max(0.0, now - created.timestamp())
            pulling = sum(entry.seconds or 0.0 for entry in life.entries if entry.step is Step.PULL)
            self._start_total.observe(total)
            if not _is_stateful(pod):
                self._note_sli(pod, max(0.0, total - pulling))

    def _note_sli(self, pod: Pod, seconds: float) -> None:
        self._start_sli.observe(seconds)
        if self._first_network_pod and not uses_host_network(pod):
            # Slow only once: the network plugin had to come up first.
            self._first_network_pod = False
            self._first_start_sli.set(seconds)

    def _pod(self, uid: str) -> Pod | None:
        worker = self._table.worker(uid)
        return worker.pod if worker is not None else None

    def _kind(self, uid: str, name: str) -> str:
        pod = self._pod(uid)
        found = find_container(pod, name) if pod is not None else None
        return KINDS[found[0]] if found is not None else KINDS[ContainerKind.REGULAR]


def _is_stateful(pod: Pod) -> bool:
    """Whether a volume may have kept the pod waiting for others; such pods are no measure of the node's quickness."""
    return any(all(getattr(volume, kind) is None for kind in STATELESS_VOLUMES) for volume in pod.spec.volumes)


def _static(pod: Pod) -> str:
    return "true" if is_static(pod) else ""


def _by_static(pods: Sequence[Pod]) -> dict[tuple[str, ...], float]:
    found = Counting(_static(pod) for pod in pods)
    return {(static,): float(found[static]) for static in ("", "true")}
