"""Which resizes can never happen, which goes first, and what is told about them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pykubelet.api.types import Container, ContainerResizePolicy, ContainerStatus, Pod, PodStatus, ResourceRequirements
from pykubelet.cm.resize import (
    ResizeRules,
    asks_for_resize,
    changes_between,
    grows,
    refusal,
    resize_text,
    shrank,
    urgency,
)
from pykubelet.model.pod_resources import (
    PodResourceInfo,
    allocation_of,
    differing,
    effect_of,
    effective_resources,
    with_resources,
)
from tests.builders import a_container, a_pod, a_sidecar


def both(cpu: str, memory: str) -> ResourceRequirements:
    return ResourceRequirements(requests={"cpu": cpu, "memory": memory}, limits={"cpu": cpu, "memory": memory})


def asking(cpu: str = "1", memory: str = "64Mi", **fields: Any) -> Pod:
    return a_pod(containers=[a_container("app", resources=both(cpu, memory), **fields)])


def loose(memory: str, **fields: Any) -> Pod:
    held = ResourceRequirements(requests={"memory": memory}, limits={"memory": "1Gi"})
    return a_pod(containers=[a_container("app", resources=held, **fields)])


SWAPPING = ResizeRules(uses_swap=lambda pod, container: True)
RESTARTS = [ContainerResizePolicy(resource_name="memory", restart_policy="RestartContainer")]


@pytest.mark.parametrize(
    ("requested", "allocated", "rules", "expected"),
    [
        pytest.param(asking("2"), asking("1"), ResizeRules(), None, id="allowed"),
        pytest.param(asking("2"), asking("1"), ResizeRules(pinned_cpus=True), "CPU Manager", id="pinned cpus"),
        pytest.param(asking(memory="1Gi"), asking(), ResizeRules(pinned_cpus=True), None, id="cpus stay"),
        pytest.param(
            asking(memory="1Gi"), asking(), ResizeRules(pinned_memory=True), "Memory Manager", id="pinned memory"
        ),
        pytest.param(
            loose("64Mi"), loose("32Mi"), ResizeRules(pinned_memory=True), None, id="only Guaranteed pods are pinned"
        ),
        pytest.param(loose("64Mi"), loose("32Mi"), SWAPPING, "with swap", id="swap"),
        pytest.param(loose("64Mi"), loose("64Mi"), SWAPPING, None, id="swap, same memory"),
        pytest.param(
            loose("64Mi", resize_policy=RESTARTS), loose("32Mi", resize_policy=RESTARTS), SWAPPING, None, id="restarts"
        ),
        pytest.param(
            a_pod(resources=both("2", "64Mi")),
            a_pod(resources=both("1", "64Mi")),
            ResizeRules(pod_level=False),
            "is disabled",
            id="gate of pod-level resizes",
        ),
    ],
)
def test_what_can_never_happen(requested: Pod, allocated: Pod, rules: ResizeRules, expected: str | None) -> None:
    answer = refusal(requested, allocated, rules)
    assert (answer is None) if expected is None else (answer is not None and expected in answer.message)


def test_shrinking_then_priority_then_class_then_patience() -> None:
    small = asking("1")
    waiting = {
        "patient": urgency(loose("128Mi"), loose("64Mi"), 10.0),
        "impatient": urgency(loose("128Mi"), loose("64Mi"), 20.0),
        "new": urgency(loose("128Mi"), loose("64Mi"), None),
        "guaranteed": urgency(asking("2"), small, None),
        "important": urgency(a_pod(priority=10, containers=asking("2").spec.containers), small, None),
        "shrinking": urgency(asking("500m"), small, None),
    }
    ordered = sorted(waiting, key=lambda name: waiting[name])
    assert ordered == ["shrinking", "important", "guaranteed", "patient", "impatient", "new"]


def test_only_cpu_and_memory_make_a_resize() -> None:
    assert not asks_for_resize(asking("1"), asking("1000m"))
    assert not asks_for_resize(asking(), asking(image="busybox:2"))
    assert asks_for_resize(asking("1"), asking("2"))
    assert asks_for_resize(a_pod(resources=both("1", "1Gi")), a_pod(resources=both("2", "1Gi")))


def test_each_change_is_counted_by_its_kind() -> None:
    before = a_pod(containers=[a_container("app", resources=ResourceRequirements(requests={"cpu": "1"}))])
    after = a_pod(
        containers=[a_container("app", resources=ResourceRequirements(requests={"cpu": "2"}, limits={"memory": "1Gi"}))]
    )
    assert list(changes_between(before, after)) == [("memory", "limits", "add"), ("cpu", "requests", "increase")]
    assert list(changes_between(after, before)) == [("memory", "limits", "remove"), ("cpu", "requests", "decrease")]


def test_growing_and_shrinking() -> None:
    assert grows(asking("2"), asking("1")) and not grows(asking("1"), asking("1"))
    assert grows(asking("1", "128Mi"), asking("2", "64Mi"))

    def holding(cpu: str) -> Pod:
        status = ContainerStatus(name="app", resources=both(cpu, "64Mi"), allocated_resources={"cpu": cpu})
        return a_pod(containers=asking("500m").spec.containers, status=PodStatus(container_statuses=[status]))

    assert shrank(holding("2"), holding("1")) and not shrank(holding("1"), holding("1"))


def test_the_event_text_names_every_container() -> None:
    pod = a_pod(init=[a_sidecar("s", resources=both("1", "1Gi"))], containers=[a_container("app")])
    text = resize_text("error", pod, 7, "no room")
    assert text.startswith("Pod resize error: ")
    assert json.loads(text.removeprefix("Pod resize error: ")) == {
        "initContainers": [
            {
                "name": "s",
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1", "memory": "1Gi"}},
            }
        ],
        "containers": [{"name": "app", "resources": {}}],
        "generation": 7,
        "error": "no room",
    }


# --- what a pod holds, taken out and put back -----------------------------------------------------------------


def test_putting_back_the_same_gives_the_same_object() -> None:
    pod = asking("1")
    held = PodResourceInfo(containers={"app": both("1000m", "65536Ki"), "gone": both("1", "1Gi")})
    assert with_resources(pod, held) is pod
    assert with_resources(pod, None) is pod
    assert with_resources(pod, allocation_of(pod)) is pod


def test_putting_back_changes_only_what_differs() -> None:
    pod = a_pod(
        init=[a_sidecar("s", resources=both("1", "1Gi"))],
        containers=[a_container("app", resources=both("2", "1Gi")), a_container("other")],
        resources=both("4", "4Gi"),
    )
    held = PodResourceInfo(containers={"app": both("1", "1Gi"), "s": both("1", "1Gi")}, pod=both("3", "4Gi"))
    after = with_resources(pod, held)
    assert after.spec.containers[0].resources == both("1", "1Gi")
    assert after.spec.containers[1] is pod.spec.containers[1]
    assert after.spec.init_containers[0] is pod.spec.init_containers[0]
    assert after.spec.resources == both("3", "4Gi")
    assert pod.spec.containers[0].resources == both("2", "1Gi")


def test_a_record_without_pod_level_amounts_promises_none() -> None:
    pod = a_pod(resources=both("4", "4Gi"))
    assert with_resources(pod, PodResourceInfo()).spec.resources is None
    assert with_resources(pod, None) is pod


def test_init_containers_are_allocated_nothing_apart_when_they_cannot_be_resized() -> None:
    pod = a_pod(init=[a_container("setup"), a_sidecar("s")])
    assert set(allocation_of(pod, init_containers=False).containers) == {"s", "app"}
    assert set(allocation_of(pod).containers) == {"setup", "s", "app"}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, {"cpu": "2", "memory": "2Gi"}),
        (ResourceRequirements(limits={"cpu": "1"}), {"cpu": "1", "memory": "2Gi"}),
        (ResourceRequirements(limits={"cpu": "0"}), {"cpu": "2", "memory": "2Gi"}),
    ],
)
def test_a_container_without_a_limit_lives_under_the_pods(
    own: ResourceRequirements | None, expected: dict[str, str]
) -> None:
    container = Container(name="app", resources=own)
    assert effective_resources(both("2", "2Gi"), container).limits == expected
    pod = a_pod(containers=[container], resources=both("2", "2Gi"))
    assert effect_of(pod).containers["app"].limits == expected


def test_differences_come_memory_first() -> None:
    assert differing(both("1", "1Gi"), both("2", "2Gi")) == ("memory", "cpu")
    assert differing(both("1", "1Gi"), both("1000m", "1024Mi")) == ()
    assert differing(None, ResourceRequirements(requests={"ephemeral-storage": "1Gi"})) == ()
