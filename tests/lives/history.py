"""Histories of pods as plain data: made from a seed, pasted into tests, played by `simulated_node.py`.

A history is a list of tuples: the second at which something happens, what, and its parameters. Nothing in it refers to
anything but names, so any part of a history is a history too; what has no object any more does nothing. That is
what lets a failing one be shrunk.
"""

from __future__ import annotations

import pprint
import random
from collections.abc import Sequence
from typing import Any

from pykubelet.api.types import (
    Container,
    EmptyDirVolumeSource,
    ExecAction,
    Lifecycle,
    LifecycleHandler,
    Pod,
    PodStatus,
    Probe,
    ResourceRequirements,
    Volume,
    VolumeMount,
)
from pykubelet.model.pod import SOURCE_ANNOTATION
from tests.builders import a_pod

Event = tuple[Any, ...]
"""(seconds, what, *parameters)"""
History = Sequence[Event]
Program = dict[str, Any]
Spec = dict[str, Any]

HERE = ("busybox:1", "busybox:2")
FINALIZER = "example.com/tracking"
API_VERBS = ("patch", "patch", "patch", "delete", "get", "list", "watch", "create")
API_CODES = (400, 403, 409, 422, 429, 500, 502, 503, 504)
RUNTIME_VERBS = (
    "create_container", "start_container", "run_pod_sandbox", "container_status", "list_containers", "stop_container",
    "stop_pod_sandbox", "remove_container", "remove_pod_sandbox",
)  # fmt: skip
CLOSE = (0.0, 0.1, 0.3, 1.0, 2.0, 4.0)
GRACES = (None, None, 0, 1, 2, 5, 30)


def make_history(seed: int) -> list[Event]:
    chance = random.Random(seed)
    events: list[Event] = []
    names = [f"p{number}" for number in range(chance.choice((1, 1, 1, 2, 3)))]
    end = chance.choice((15.0, 30.0, 60.0))

    def when(after: float = 0.0) -> float:
        return round(after + chance.random() * (end - after), 1)

    specs = {}
    for name in names:
        specs[name] = spec = _spec(chance)
        events.append((round(chance.random() * 3, 1), "add", name, spec))
    if chance.random() < 0.5:
        events.append((0.0, "latency", chance.choice((0.0, 0.02, 0.2)), chance.choice((0.0, 0.02, 0.3))))
    at = 0.5
    for _ in range(chance.randint(1, 7)):
        # Many faults need two things shortly after one another.
        at = round(at + chance.choice(CLOSE), 1) if chance.random() < 0.5 else when(0.5)
        name = chance.choice(names)
        container = chance.choice(specs[name]["programs"])["name"]
        what = chance.choice(_WHAT)
        if what == "delete":
            events.append((at, what, name, chance.choice(GRACES)))
        elif what == "crash":
            events.append((at, what, name, container, chance.choice((0, 1, 137))))
        elif what in ("image", "resize"):
            events.append((at, what, name, container, chance.choice((1, 2, 3))))
        elif what == "probe":
            events.append((at, what, name, container, chance.random() < 0.3))
            events.append((when(at), what, name, container, True))
        elif what == "evict":
            events.append((at, what, name, chance.choice((0, 1, 10))))
        elif what == "lose container":
            events.append((at, what, name, container))
        elif what == "reboot":
            events += [(at, what), (round(at + chance.choice((0.0, 2.0, 20.0)), 1), "agent up")]
        elif what in ("agent", "api", "runtime", "shutdown"):
            back = round(at + chance.choice((0.0, 0.3, 2.0, 8.0, 20.0)), 1)
            hard = [chance.random() < 0.5] if what == "agent" else []
            events += [(at, f"{what} down", *hard), (back, f"{what} up")]
        elif what == "api fails":
            events.append((at, what, chance.choice(API_VERBS), chance.choice(API_CODES), chance.choice((1, 1, 3, 8))))
        elif what == "runtime fails":
            events.append((at, what, chance.choice(RUNTIME_VERBS), chance.choice((1, 1, 2))))
        elif what == "runtime slow":
            events.append(
                (at, what, chance.choice(RUNTIME_VERBS), chance.choice((0.5, 3.0, 30.0)), chance.choice((1, 3)))
            )
        elif what == "add":
            events.append((at, what, name, _spec(chance)))
        else:
            events.append((at, what, name))
    return sorted(events, key=lambda event: event[0])


_WHAT = (
    "delete", "delete", "delete", "delete", "crash", "crash", "lose sandbox", "image", "resize", "probe", "evict",
    "label", "agent", "agent", "api", "runtime", "shutdown", "api fails", "api fails", "runtime fails", "runtime slow",
    "watch ends", "watch expires", "add", "reboot", "lose container",
)  # fmt: skip


def _spec(chance: random.Random) -> Spec:
    programs = [_program(chance, f"c{number}", "") for number in range(chance.choice((1, 1, 2)))]
    for number in range(chance.choice((0, 0, 0, 1, 2))):
        kind = chance.choice(("init", "side"))
        program = _program(chance, f"i{number}", kind)
        if kind == "init":
            program["exits"] = chance.choice(([[0.0, 0]], [[2.0, 0]], [[1.0, 1], [1.0, 0]], [[1.0, 1]]))
        programs.append(program)
    return {
        "policy": chance.choice(("Always", "Always", "OnFailure", "Never")),
        "grace": chance.choice((0, 1, 3, 10, 30, 30, 60)),
        "static": chance.random() < 0.1,
        "finalizer": chance.random() < 0.2,
        "volume": chance.random() < 0.3,
        "programs": programs,
    }


def _program(chance: random.Random, name: str, kind: str) -> Program:
    return {
        "name": name,
        "kind": kind,
        "exits": chance.choice(([], [], [], [[0.0, 1]], [[5.0, 0]], [[3.0, 1]], [[2.0, 1], [700.0, 1]])),
        "stops": chance.choice((0.0, 0.0, 2.0, 8.0, None)),
        "pre": chance.choice((None, None, None, 0.0, 2.0, 20.0)),
        "post": chance.choice((None, None, None, 0.0, 3.0)),
        "image": chance.choice(("here", "here", "here", "here", "pull", "bad")),
        "probe": chance.choice(("", "", "", "liveness", "readiness", "startup")),
    }


def image_of(program: Program) -> str:
    return {"here": HERE[0], "pull": "pulled:1", "bad": "nowhere:1"}[program["image"]]


def build(name: str, uid: str, spec: Spec) -> Pod:
    """The pod as the scheduler leaves it."""
    programs = spec["programs"]
    pod = a_pod(
        name,
        uid=uid,
        containers=[_container(each, spec) for each in programs if not each["kind"]],
        init=[_container(each, spec) for each in programs if each["kind"]],
        restart_policy=spec["policy"],
        grace=spec["grace"],
        node_name="node1",
        volumes=[Volume(name="data", empty_dir=EmptyDirVolumeSource(medium="Memory"))] if spec["volume"] else [],
    )
    del pod.metadata.annotations[SOURCE_ANNOTATION]
    pod.metadata.finalizers = [FINALIZER] if spec["finalizer"] and not spec["static"] else []
    pod.metadata.generation = 1
    pod.status = PodStatus(phase="Pending")
    return pod


def _container(program: Program, spec: Spec) -> Container:
    probes: dict[str, Any] = {}
    if program["probe"] and program["kind"] != "init":
        action = ExecAction(command=["probe", program["probe"]])
        probe = Probe(exec=action, period_seconds=2, failure_threshold=2, timeout_seconds=1, success_threshold=1)
        probes[f"{program['probe']}_probe"] = probe
    lifecycle = None
    if program["kind"] != "init" and (program["pre"] is not None or program["post"] is not None):
        lifecycle = Lifecycle(pre_stop=_hook(program, "pre"), post_start=_hook(program, "post"))
    return Container(
        name=program["name"],
        image=image_of(program),
        image_pull_policy="IfNotPresent",
        restart_policy="Always" if program["kind"] == "side" else None,
        resources=ResourceRequirements(requests={"cpu": "100m"}),
        lifecycle=lifecycle,
        volume_mounts=[VolumeMount(name="data", mount_path="/data")] if spec["volume"] else [],
        termination_message_path="/dev/termination-log",
        termination_message_policy="File",
        **probes,
    )


def _hook(program: Program, which: str) -> LifecycleHandler | None:
    if program[which] is None:
        return None
    return LifecycleHandler(exec=ExecAction(command=[which]))


def to_text(history: History) -> str:
    """As it can be pasted into a test."""
    return pprint.pformat(list(history), width=118, compact=True, sort_dicts=False)
