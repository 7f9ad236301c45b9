"""Texts: upstream's to the letter, and ours."""

from __future__ import annotations

from pykubelet.api.types import ResourceRequirements
from pykubelet.eviction.ranking import measured, pod_message, rank, reason_for
from pykubelet.eviction.stats import ContainerUse, PodUse
from pykubelet.eviction.thresholds import Layout
from tests.builders import a_container, a_pod, an_ephemeral_container
from tests.unit.eviction.making import GIB, MIB, a_threshold, a_use, pod_asking, seen

HARD = a_threshold("memory.available", "1Gi")
SHORT = seen(memory_available=512 * MIB)


def test_containers_that_use_more_than_they_ask_for() -> None:
    pod = a_pod(
        containers=[
            a_container("a", resources=ResourceRequirements(requests={"memory": "64Mi"})),
            a_container("b"),
            a_container("c", resources=ResourceRequirements(requests={"memory": "1Gi"})),
        ],
        init=[a_container("i", restart_policy="Always")],
        ephemeral=[an_ephemeral_container("debug")],
    )
    names = {"a": 100, "b": 50, "c": 30, "i": 5, "debug": 900}
    use = PodUse(memory=GIB, containers={name: ContainerUse(memory=size * MIB) for name, size in names.items()})
    (chosen,) = rank("memory.available", [pod], {"uid-web": use}, Layout.ONE)
    told = pod_message("memory", chosen, [HARD], SHORT)
    assert told.message == (
        "The node was low on resource: memory. Threshold quantity: 1Gi, available: 512Mi. "
        "Container a was using 100Mi, request is 64Mi, has larger consumption of memory. "
        "Container b was using 50Mi, request is 0, has larger consumption of memory. "
        "Container i was using 5Mi, request is 0, has larger consumption of memory. "
    )
    assert told.annotations == {
        "offending_containers": "a,b,i",
        "offending_containers_usage": "100Mi,50Mi,5Mi",
        "starved_resource": "memory",
    }


def test_a_pod_with_resources_of_its_own() -> None:
    pod = a_pod("big", resources=ResourceRequirements(requests={"memory": "128Mi"}))
    (chosen,) = rank("memory.available", [pod], {"uid-big": a_use(GIB)}, Layout.ONE)
    told = pod_message("memory", chosen, [HARD], SHORT)
    assert (
        "available: 512Mi. Pod big was using 1Gi, request is 128Mi, has larger consumption of memory. " in told.message
    )
    assert (told.annotations["offending_pod"], told.annotations["offending_pod_usage"]) == ("big", "1Gi")


def test_disk_and_percentages() -> None:
    threshold = a_threshold("nodefs.available", "10%")
    now = seen(nodefs_available=5 * GIB)
    (chosen,) = rank("nodefs.available", [a_pod()], {"uid-web": a_use(logs=GIB, layer=GIB)}, Layout.ONE)
    told = pod_message("ephemeral-storage", chosen, [HARD, threshold], {**SHORT, **now})
    assert told.message == (
        "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 5Gi. "
        "Container app was using 2Gi, request is 0, has larger consumption of ephemeral-storage. "
    )


def test_inodes_and_a_pod_without_figures() -> None:
    threshold = a_threshold("nodefs.inodesFree", "5%")
    now = {**seen(capacity=1000, nodefs_inodesFree=10)}
    (chosen,) = rank("nodefs.inodesFree", [a_pod()], {}, Layout.ONE)
    told = pod_message("inodes", chosen, [threshold], now)
    assert told.message == "The node was low on resource: inodes. Threshold quantity: 50, available: 10. "
    assert told.annotations == {}


def test_why_this_one() -> None:
    pods = [pod_asking("vital", critical=True), pod_asking("greedy", memory="100Mi"), pod_asking("kept", memory="1Gi")]
    uses = {"uid-vital": a_use(9 * GIB), "uid-greedy": a_use(GIB), "uid-kept": a_use(512 * MIB)}
    ranked = rank("memory.available", [pods[0], pods[1], pods[2]], uses, Layout.ONE)
    chosen = next(each for each in ranked if not each.is_spared)
    assert reason_for(HARD, SHORT, chosen, ranked, ()) == (
        "memory.available 512Mi is below the hard threshold 1Gi. Of 2 pods that may go this one is first: it uses 1Gi "
        "of memory, 924Mi more than it requests, priority 0. Next would be default/kept: it uses 512Mi of memory, "
        "within its request of 1Gi, priority 0."
    )


def test_why_after_the_node_gave_what_it_had() -> None:
    soft = a_threshold("pid.available", "100", grace=30)
    ranked = rank("pid.available", [pod_asking("bomb")], {"uid-bomb": a_use(processes=500)}, Layout.ONE)
    text = reason_for(soft, seen(pid_available=7), ranked[0], ranked, ["dead containers", "unused images"])
    assert text == (
        "pid.available 7 is below the soft threshold (met for 30 s) 100. Removing dead containers and unused images "
        "was not enough. Of 1 pods that may go this one is first: priority 0, 500 processes."
    )


def test_a_threshold_that_waits_for_its_minimum_reclaim() -> None:
    threshold = a_threshold("memory.available", "1Gi", reclaim="1Gi")
    text = measured(threshold, seen(memory_available=GIB + MIB))
    assert text == "memory.available 1025Mi has not got far enough above the hard threshold 1Gi"
