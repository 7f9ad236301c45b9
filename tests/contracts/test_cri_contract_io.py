"""What every container runtime must do for us, second part: commands, logs, events, figures, images.

Same rules as test_cri_contract.py: only the port, the same for the fake and for every real runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from pykubelet.clients.cri.port import CriClient
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import CriError, ExecTimedOut, Unimplemented
from pykubelet.model.runtime_status import ContainerState, EventKind
from tests.bed.cgroups import CgroupTree
from tests.contracts.cri_subjects import (
    IMAGE,
    Program,
    Subject,
    a_container_config,
    a_pod_config,
    sandbox,
    sleepers,
    start,
    until,
    until_exited,
)

# -- exec, logs


async def test_a_command_gives_its_output_and_code(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        result = await cri.exec_sync(container, ["sh", "-c", "echo out; echo err >&2; exit 5"], 10)
    assert (result.stdout, result.stderr, result.exit_code) == (b"out\n", b"err\n", 5)


async def test_a_command_out_of_time_is_ended_and_never_a_success(subject: Subject) -> None:
    """CRI-O makes an exit status of it; what the Go kubelet makes of that is a failure like any other."""
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        began = subject.clock.monotonic()
        try:
            result = await cri.exec_sync(container, sleepers(), 1)
        except ExecTimedOut:
            pass
        else:
            assert result.exit_code != 0 and b"timed out" in result.stderr
        assert subject.clock.monotonic() - began < 20.0


async def test_no_command_in_a_container_that_is_down(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.SUCCEEDS)
        await until_exited(subject.clock, cri, container)
        with pytest.raises(CriError, match=r"CONTAINER_EXITED|not (created or )?running"):
            await cri.exec_sync(container, ["true"], 1)
        # CRI-O gives an address, and refuses when it is called.
        with contextlib.suppress(CriError):
            assert (await cri.exec(container, ["true"])).startswith("http")


async def test_streams_have_an_address(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        urls = [
            await cri.exec(container, ["true"]),
            await cri.attach(container),
            await cri.port_forward(box, [80]),
        ]
    assert all(url.startswith("http") for url in urls), urls


async def test_what_a_container_prints_is_in_its_log(subject: Subject, tmp_path: Path) -> None:
    pod = a_pod_config(tmp_path)
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.SUCCEEDS)
        status = await until_exited(subject.clock, cri, container)
        log = Path(status.log_path)

        async def written() -> bool:  # a runtime may know of the end a moment before its log does
            return log.read_text().endswith("\n")

        await until(subject.clock, written, within=60)
        text = log.read_text()
    assert status.log_path == str(tmp_path / "succeeds-0.log")
    stamp, stream, tag, line = text.rstrip("\n").split(" ", 3)
    assert stamp.endswith("Z") or "+" in stamp
    assert (stream, tag, line) == ("stdout", "F", "hello")


async def test_a_log_can_be_reopened_while_the_container_runs(subject: Subject, tmp_path: Path) -> None:
    pod = a_pod_config(tmp_path)
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        log = Path((await cri.container_status(container)).log_path)
        log.rename(tmp_path / "old.log")
        await cri.reopen_container_log(container)
        assert log.exists()
        await cri.stop_container(container, 10)
        with pytest.raises(CriError, match="not running"):
            await cri.reopen_container_log(container)


# -- events and figures


async def until_heard(subject: Subject, cri: CriClient, told: Sequence[object]) -> None:
    """A subscription has no acknowledgement to wait for: pods come and go until one of them is told of."""
    async with asyncio.timeout(60):
        while not told:
            async with sandbox(cri, a_pod_config()):
                await subject.clock.sleep(0.02)


async def test_the_life_of_a_container_is_told(subject: Subject) -> None:
    """Other pods may be noisy meanwhile; of ours every step of a container comes.

    CRI-O tells of a short life's end before it tells of its beginning. Of sandboxes it tells the start and the end;
    who makes and removes them knows the rest.
    """
    pod = a_pod_config()
    told: list[tuple[str, EventKind]] = []
    async with subject.open() as cri, TaskSet("listening") as tasks:

        async def listen() -> None:
            async with aclosing(cri.container_events()) as events:
                async for event in events:
                    told.append((event.container_id, event.kind))

        tasks.spawn(listen(), name="listener")
        await until_heard(subject, cri, told)
        async with sandbox(cri, pod) as box:
            container = await start(cri, box, pod, Program.SUCCEEDS)
            await until_exited(subject.clock, cri, container)
            await cri.remove_container(container)
        async with asyncio.timeout(60):
            while not {(box, EventKind.STOPPED), (container, EventKind.DELETED)} <= set(told):
                await subject.clock.sleep(0.02)
    of_box, of_container = ([kind for who, kind in told if who == id] for id in (box, container))
    assert {EventKind.STARTED, EventKind.STOPPED} <= set(of_box), of_box
    assert set(of_container) == set(EventKind) - {EventKind.OOM}, of_container
    assert (of_container[0], of_container[-1]) == (EventKind.CREATED, EventKind.DELETED), of_container


async def test_who_looks_on_a_stop_event_sees_the_exit(subject: Subject) -> None:
    """A runtime that tells before it knows would cost every crash a whole relist period."""
    pod = a_pod_config()
    seen: dict[str, ContainerState] = {}
    async with subject.open() as cri, TaskSet("listening") as tasks:

        async def listen() -> None:
            async with aclosing(cri.container_events()) as events:
                async for event in events:
                    heard.append(event.container_id)
                    if event.kind is EventKind.STOPPED and event.container_id in started:
                        seen.setdefault(event.container_id, (await cri.container_status(event.container_id)).state)

        started: set[str] = set()
        heard: list[str] = []
        tasks.spawn(listen(), name="listener")
        await until_heard(subject, cri, heard)
        async with sandbox(cri, pod) as box:
            for attempt in range(5):
                config = a_container_config(pod, Program.FAILS, attempt=attempt)
                container = await cri.create_container(box, config, pod.config)
                started.add(container)
                await cri.start_container(container)
                async with asyncio.timeout(60):
                    while container not in seen:
                        await subject.clock.sleep(0.02)
    assert set(seen.values()) == {ContainerState.EXITED}


async def test_a_running_container_has_figures(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        [one] = await cri.list_container_stats(pod_uid=pod.uid)
    assert one.attributes.id == container
    assert one.attributes.metadata.name == "polite"
    assert one.memory.timestamp > 0 and one.memory.working_set_bytes.value > 0


@pytest.fixture
def group(subject: Subject) -> Iterator[str]:
    """The cgroup of a pod: runtimes measure a pod by it."""
    tree = CgroupTree("/pykubelet-contract-figures")
    if not subject.real:
        yield tree.name
        return
    tree.make()
    try:
        yield tree.name
    finally:
        tree.remove()


async def test_a_running_pod_has_figures(subject: Subject, group: str) -> None:
    """CRI-O may leave out what the pod uses as a whole."""
    pod = a_pod_config()
    pod.config.linux.cgroup_parent = group
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        [one] = [each for each in await cri.list_pod_sandbox_stats() if each.attributes.id == box]
        runtime = (await cri.version()).name
    assert one.attributes.metadata.uid == pod.uid
    [inner] = one.linux.containers
    assert inner.attributes.id == container
    left_out = runtime == "cri-o" and not one.linux.HasField("cpu")
    assert left_out or one.linux.process.process_count.value > 0
    for each in (inner,) if left_out else (inner, one.linux):
        assert each.cpu.timestamp > 0 and each.cpu.HasField("usage_core_nano_seconds")
        assert each.memory.working_set_bytes.value > 0


async def test_series_of_a_running_pod_have_the_labels_that_were_described(subject: Subject, group: str) -> None:
    """containerd 1.6 is older than these calls."""
    pod = a_pod_config()
    pod.config.linux.cgroup_parent = group
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        try:
            known = {each.name: each for each in await cri.list_metric_descriptors()}
        except Unimplemented:
            assert (await cri.version()).version.lstrip("v").startswith("1.6")
            return
        [one] = [each for each in await cri.list_pod_sandbox_metrics() if each.pod_sandbox_id == box]
    [inner] = [each for each in one.container_metrics if each.container_id == container]
    series = {each.name: each for each in inner.metrics}
    assert series["container_memory_working_set_bytes"].value.value > 0
    assert [name for name, each in series.items() if len(each.label_values) != len(known[name].label_keys)] == []


# -- images


async def test_an_image_is_found_by_name_and_id(subject: Subject) -> None:
    async with subject.open() as cri:
        by_name = await cri.image_status(IMAGE)
        assert by_name is not None
        by_id = await cri.image_status(by_name.id)
        listed = await cri.list_images()
    assert by_name == by_id
    assert IMAGE in by_name.tags and by_name.size_bytes > 0
    assert by_name.id in {image.id for image in listed}


async def test_an_image_that_is_not_there_is_none(subject: Subject) -> None:
    async with subject.open() as cri:
        assert await cri.image_status("pykubelet.local/nonesuch:1") is None


async def test_a_container_can_be_made_from_an_image_id(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        image = await cri.image_status(IMAGE)
        assert image is not None
        config = a_container_config(pod, Program.POLITE, image=image.id)
        container = await cri.create_container(box, config, pod.config)
        status = await cri.container_status(container)
    assert status.image == IMAGE


async def test_the_image_filesystem_is_reported(subject: Subject) -> None:
    async with subject.open() as cri:
        info = await cri.image_fs_info()
    assert info.images and info.images[0].mountpoint.startswith("/")
