"""Metrics about pods: counted from the table, followed from the recorder and the signals of PLEG."""

from __future__ import annotations

from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from pykubelet.api.types import Pod
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.pod import PodUID, uid_of
from pykubelet.model.runtime_status import ContainerState, ContainerStatus, PodRuntimeStatus
from pykubelet.pods.record import PodWorker, WorkerState
from pykubelet.pods.table import PodTable
from pykubelet.recorder import LifeRecorder, Step
from pykubelet.signals import ContainerDied
from pykubelet.sync.pod_metrics import PodMetrics
from tests.builders import a_container, a_context, a_pod, a_sandbox_status


class PodMetricsFixture:
    def __init__(self) -> None:
        self.clock, self.metrics = LoopClock(), Registry()
        self.recorder, self.table = LifeRecorder(self.clock), PodTable()
        ctx = a_context(node_name="n1", clock=self.clock, recorder=self.recorder, metrics=self.metrics)
        self.subject = PodMetrics(ctx, self.table)

    def add(self, pod: Pod) -> PodWorker:
        self.table.put(pod)
        worker = PodWorker(uid=uid_of(pod), full_name="", pod=pod)
        self.table.add_worker(worker)
        return worker

    def values(self, name: str) -> dict[tuple[str, ...], float]:
        """By label values, in the order of label names."""
        families = text_string_to_metric_families(self.metrics.expose())
        found = [sample for family in families for sample in family.samples if sample.name == name]
        return {tuple(sample.labels[key] for key in sorted(sample.labels)): sample.value for sample in found}


async def test_pods_and_containers_are_counted_when_asked() -> None:
    world = PodMetricsFixture()
    pod = a_pod("a", containers=[a_container("main")], ephemeral=[])
    world.add(pod)
    ending = world.add(a_pod("b", static=True))
    ending.move(WorkerState.TERMINATING, "test")
    world.table.add_worker(PodWorker(uid=PodUID("uid-c"), full_name="", pod=None))
    running = ContainerStatus(id="1", name="main", state=ContainerState.RUNNING)
    ended = ContainerStatus(id="0", name="main", state=ContainerState.EXITED)
    boxes, containers = (a_sandbox_status(pod),), (running, ended)
    world.table.observe(PodRuntimeStatus(uid="uid-a", sandboxes=boxes, containers=containers, observed_at=1.0), {})
    assert world.values("kubelet_desired_pods") == {("",): 1, ("true",): 1}
    assert world.values("kubelet_active_pods") == {("",): 1, ("true",): 1}
    assert world.values("kubelet_working_pods") == {
        ("desired", "sync", ""): 1,
        ("desired", "terminating", "true"): 1,
        ("runtime_only", "sync", "unknown"): 1,
    }
    assert world.values("kubelet_running_pods") == {(): 1}
    assert world.values("kubelet_running_containers") == {
        ("created",): 0,
        ("running",): 1,
        ("exited",): 1,
        ("unknown",): 0,
    }
    assert world.values("kubelet_node_name") == {("n1",): 1}


async def test_a_start_is_timed_once() -> None:
    world = PodMetricsFixture()
    created = datetime.fromtimestamp(world.clock.now() - 100, UTC)
    pod = a_pod("a", containers=[a_container("one"), a_container("two")])
    pod.metadata.creation_timestamp = created
    world.add(pod)
    world.recorder.note("uid-a", Step.SEEN)
    with world.recorder.step("uid-a", Step.SANDBOX):
        await world.clock.sleep(2)
    with world.recorder.step("uid-a", Step.PULL, "image"):
        await world.clock.sleep(10)
    for name in ("one", "two", "one"):
        with world.recorder.step("uid-a", Step.START, name):
            pass
    assert world.values("kubelet_pod_start_duration_seconds_count") == {(): 1}
    assert abs(world.values("kubelet_pod_start_duration_seconds_sum")[()] - 12) < 0.1
    assert abs(world.values("kubelet_pod_start_total_duration_seconds_sum")[()] - 112) < 1.1
    assert abs(world.values("kubelet_pod_start_sli_duration_seconds_sum")[()] - 102) < 1.1
    assert world.values("kubelet_started_containers_total") == {("container",): 3}
    assert world.values("kubelet_started_pods_total") == {(): 1}
    assert world.values("kubelet_run_podsandbox_duration_seconds_sum")[("",)] > 1.9
    assert world.values("kubelet_containers_per_pod_count_sum") == {(): 2}


async def test_failures_are_counted() -> None:
    world = PodMetricsFixture()
    world.add(a_pod("a", containers=[a_container("main")], init=[a_container("first")]))
    for step, subject in ((Step.SANDBOX, ""), (Step.CREATE, "first"), (Step.START, "main")):
        try:
            with world.recorder.step("uid-a", step, subject):
                raise OSError("no")
        except OSError:
            pass
    world.recorder.fail("uid-a", Step.ADMISSION, reason="OutOfcpu")
    assert world.values("kubelet_started_pods_errors_total") == {(): 1}
    assert world.values("kubelet_run_podsandbox_errors_total") == {("",): 1}
    assert world.values("kubelet_started_containers_errors_total") == {
        ("CreateContainerError", "init_container"): 1,
        ("RunContainerError", "container"): 1,
    }
    assert world.values("kubelet_admission_rejections_total") == {("OutOfcpu",): 1}


async def test_ends_are_counted_with_their_reason() -> None:
    world = PodMetricsFixture()
    world.add(a_pod("a", containers=[a_container("main")]))
    died = ContainerStatus(id="1", name="main", state=ContainerState.EXITED, exit_code=3, reason="Error")
    world.table.observe(PodRuntimeStatus(uid="uid-a", containers=(died,), observed_at=1.0), {})
    world.subject.container_died(ContainerDied(uid="uid-a", container_id="1", name="main"))
    world.subject.container_died(ContainerDied(uid="uid-a", container_id="1", sandbox=True))
    world.subject.container_died(ContainerDied(uid="uid-x", container_id="9", name="main"))
    assert world.values("kubelet_terminated_containers_total") == {("container", "3", "Error"): 1}
