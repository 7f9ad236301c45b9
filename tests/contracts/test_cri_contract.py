"""What every container runtime must do for us: one suite for the fake, two versions of containerd and CRI-O.

A test here may use only the port. Where the runtimes differ, the suite says what all must do.
"""

from __future__ import annotations

import pytest

from pykubelet.model.errors import CriError, NotFound
from pykubelet.model.runtime_status import ContainerState, NamespaceMode, SandboxState
from pykubelet.wire import cri_pb2
from tests.contracts.cri_subjects import (
    IMAGE,
    Program,
    Subject,
    a_container_config,
    a_pod_config,
    sandbox,
    start,
    until_exited,
    until_listening,
)

# -- the runtime


async def test_it_says_who_it_is(subject: Subject) -> None:
    async with subject.open() as cri:
        version = await cri.version()
    assert version.name and version.version and version.api_version


async def test_it_is_ready(subject: Subject) -> None:
    async with subject.open() as cri:
        status = await cri.status()
    for kind in ("RuntimeReady", "NetworkReady"):
        condition = status.condition(kind)
        assert condition is not None and condition.status, condition


async def test_a_pod_cidr_is_accepted(subject: Subject) -> None:
    async with subject.open() as cri:
        await cri.update_runtime_config("10.9.0.0/24")


# -- sandboxes


async def test_a_new_sandbox_is_ready_with_an_address(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        status = await cri.pod_sandbox_status(box)
        [record] = await cri.list_pod_sandboxes(pod_uid=pod.uid)
    assert status.state is SandboxState.READY
    assert status.pod_uid == pod.uid and status.pod_namespace == "default" and status.attempt == 0
    assert len(status.ips) >= 1 and status.network_mode is NamespaceMode.POD
    assert status.created_at > 0
    # CRI-O adds a label of its own: the container's name POD.
    assert status.labels.items() >= pod.config.labels.items() and status.annotations["note"] == "kept"
    assert record.id == box and record.created_at == status.created_at
    assert record.pod_name == pod.config.metadata.name


async def test_sandboxes_have_addresses_of_their_own(subject: Subject) -> None:
    async with subject.open() as cri, sandbox(cri, a_pod_config()) as one, sandbox(cri, a_pod_config()) as two:
        first, second = await cri.pod_sandbox_status(one), await cri.pod_sandbox_status(two)
    assert not set(first.ips) & set(second.ips)


async def test_a_host_network_sandbox_has_no_address(subject: Subject) -> None:
    async with subject.open() as cri, sandbox(cri, a_pod_config(host_network=True)) as box:
        status = await cri.pod_sandbox_status(box)
    assert status.ips == () and status.network_mode is NamespaceMode.NODE


async def test_the_same_attempt_does_not_run_twice(subject: Subject) -> None:
    """containerd refuses the second; CRI-O gives the first again."""
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        try:
            assert await cri.run_pod_sandbox(pod.config) == box
        except CriError as error:
            assert "reserve" in str(error)
        assert [record.id for record in await cri.list_pod_sandboxes(pod_uid=pod.uid)] == [box]


async def test_a_second_attempt_runs_beside_the_first(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as first:
        again = a_pod_config(uid=pod.uid, attempt=1)
        again.config.metadata.name = pod.config.metadata.name
        async with sandbox(cri, again) as second:
            records = await cri.list_pod_sandboxes(pod_uid=pod.uid)
    assert {(r.id, r.attempt) for r in records} == {(first, 0), (second, 1)}


async def test_a_sandbox_needs_metadata(subject: Subject) -> None:
    async with subject.open() as cri:
        with pytest.raises(CriError, match="metadata"):
            await cri.run_pod_sandbox(cri_pb2.PodSandboxConfig())


async def test_an_unknown_runtime_handler_is_refused(subject: Subject) -> None:
    async with subject.open() as cri:
        with pytest.raises(CriError, match=r"no runtime for|failed to find runtime handler"):
            await cri.run_pod_sandbox(a_pod_config().config, runtime_handler="nonesuch")


async def test_a_stopped_sandbox_is_not_ready_and_can_be_stopped_again(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        await cri.stop_pod_sandbox(box)
        await cri.stop_pod_sandbox(box)
        status = await cri.pod_sandbox_status(box)
        ready = await cri.list_pod_sandboxes(pod_uid=pod.uid, ready_only=True)
        both = await cri.list_pod_sandboxes(pod_uid=pod.uid)
    assert status.state is SandboxState.NOT_READY  # CRI-O still tells the address it had
    assert ready == [] and [r.state for r in both] == [SandboxState.NOT_READY]


async def test_stopping_a_sandbox_ends_its_containers(subject: Subject) -> None:
    """containerd kills them; CRI-O asks them first and waits as long as the call may take."""
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        await cri.stop_pod_sandbox(box)
        status = await cri.container_status(container)
    assert status.state is ContainerState.EXITED and status.exit_code in (0, 137)


async def test_removing_a_running_sandbox_takes_everything_with_it(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri:
        box = await cri.run_pod_sandbox(pod.config)
        container = await start(cri, box, pod, Program.POLITE)
        await cri.remove_pod_sandbox(box)
        assert await cri.list_pod_sandboxes(pod_uid=pod.uid) == []
        assert await cri.list_containers(pod_uid=pod.uid) == []
        with pytest.raises(NotFound):
            await cri.pod_sandbox_status(box)
        with pytest.raises(NotFound):
            await cri.container_status(container)


async def test_what_is_gone_can_be_stopped_and_removed(subject: Subject) -> None:
    gone = "f" * 64
    async with subject.open() as cri:
        await cri.stop_pod_sandbox(gone)
        await cri.remove_pod_sandbox(gone)
        await cri.stop_container(gone, 1)
        await cri.remove_container(gone)
        await cri.remove_image("pykubelet.local/nonesuch:1")


async def test_what_is_gone_cannot_be_looked_at(subject: Subject) -> None:
    gone = "f" * 64
    async with subject.open() as cri:
        for call in (
            cri.pod_sandbox_status(gone),
            cri.container_status(gone),
            cri.start_container(gone),
            cri.exec_sync(gone, ["true"], 1),
        ):
            with pytest.raises(NotFound):
                await call
        for call in (
            cri.reopen_container_log(gone),
            cri.update_container_resources(gone, cri_pb2.LinuxContainerResources(cpu_shares=10)),
        ):
            with pytest.raises(CriError):  # of CRI-O no NotFound
                await call


# -- containers


async def test_a_container_goes_from_created_to_running_to_exited(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        config = a_container_config(pod, Program.POLITE)
        container = await cri.create_container(box, config, pod.config)
        created = await cri.container_status(container)
        await cri.start_container(container)
        running = await cri.container_status(container)
        await until_listening(cri, container)
        await cri.stop_container(container, 10)
        exited = await cri.container_status(container)
    assert created.state is ContainerState.CREATED and created.created_at > 0
    assert created.started_at == 0 and created.finished_at == 0
    assert running.state is ContainerState.RUNNING and running.started_at >= created.created_at
    assert running.finished_at == 0
    assert exited.state is ContainerState.EXITED and exited.finished_at >= running.started_at
    assert (exited.exit_code, exited.reason) == (0, "Completed")
    assert running.name == "polite" and running.labels == dict(config.labels)
    assert running.annotations == dict(config.annotations)
    assert running.image == IMAGE and running.image_ref


async def test_a_container_ends_by_itself(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        good = await start(cri, box, pod, Program.SUCCEEDS)
        bad = await start(cri, box, pod, Program.FAILS)
        success = await until_exited(subject.clock, cri, good)
        failure = await until_exited(subject.clock, cri, bad)
    assert (success.exit_code, success.reason) == (0, "Completed")
    assert (failure.exit_code, failure.reason) == (3, "Error")


async def test_a_stubborn_container_is_killed_after_its_grace(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.STUBBORN)
        began = subject.clock.monotonic()
        await cri.stop_container(container, 1)
        took = subject.clock.monotonic() - began
        status = await cri.container_status(container)
    assert 0.999 <= took < 20.0  # sums of virtual times are rounded
    assert (status.exit_code, status.reason) == (137, "Error")


async def test_no_grace_is_a_kill(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.STUBBORN)
        await cri.stop_container(container, 0)
        status = await cri.container_status(container)
    assert status.exit_code == 137


async def test_stopping_twice_is_fine(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        await cri.stop_container(container, 10)
        await cri.stop_container(container, 10)


async def test_a_created_container_can_be_stopped(subject: Subject) -> None:
    """containerd leaves it as it is; CRI-O ends the process that waits to become the program."""
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await cri.create_container(box, a_container_config(pod, Program.POLITE), pod.config)
        await cri.stop_container(container, 1)
        state = (await cri.container_status(container)).state
    assert state in (ContainerState.CREATED, ContainerState.EXITED)


async def test_a_container_starts_once(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        with pytest.raises(CriError, match=r"CONTAINER_RUNNING|not in created state: running"):
            await cri.start_container(container)
        await cri.stop_container(container, 10)
        with pytest.raises(CriError, match=r"CONTAINER_EXITED|not in created state: stopped"):
            await cri.start_container(container)


async def test_a_program_that_cannot_start_is_an_error_or_leaves_an_exited_container(subject: Subject) -> None:
    """CRI-O looks for the program when it makes the container, and leaves nothing behind."""
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        try:
            container = await cri.create_container(box, a_container_config(pod, Program.MISSING), pod.config)
        except CriError as error:
            assert "no such file" in str(error)
            assert await cri.list_containers(pod_uid=pod.uid) == []
            return
        with pytest.raises(CriError, match="no such file"):
            await cri.start_container(container)
        status = await cri.container_status(container)
    assert status.state is ContainerState.EXITED
    assert (status.exit_code, status.reason) == (128, "StartError")
    assert "no such file" in status.message


async def test_a_container_name_and_attempt_is_taken_once(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        first = await start(cri, box, pod, Program.POLITE)
        try:  # as with sandboxes
            again = await cri.create_container(box, a_container_config(pod, Program.POLITE), pod.config)
            assert again == first
        except CriError as error:
            assert "reserve" in str(error)
        second = await start(cri, box, pod, Program.POLITE, attempt=1)
        records = await cri.list_containers(pod_uid=pod.uid)
    assert {(r.id, r.attempt) for r in records} == {(first, 0), (second, 1)}


async def test_no_container_in_a_sandbox_that_is_down(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        early = await cri.create_container(box, a_container_config(pod, Program.POLITE), pod.config)
        await cri.stop_pod_sandbox(box)
        with pytest.raises(CriError):  # containerd 1.6: not found; 2.x: not running
            await cri.create_container(box, a_container_config(pod, Program.POLITE, attempt=1), pod.config)
        with pytest.raises(CriError, match=r"not running|not in created state: stopped"):
            await cri.start_container(early)


async def test_no_container_without_its_sandbox_or_image(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        with pytest.raises(CriError, match="not found"):
            await cri.create_container("f" * 64, a_container_config(pod, Program.POLITE), pod.config)
        with pytest.raises(CriError):
            missing = a_container_config(pod, Program.POLITE, image="pykubelet.local/nonesuch:1")
            await cri.create_container(box, missing, pod.config)


async def test_removing_a_running_container_ends_it(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        await cri.remove_container(container)
        with pytest.raises(NotFound):
            await cri.container_status(container)
        # The name is free again.
        await start(cri, box, pod, Program.POLITE)


async def test_listing_by_pod_id_sandbox_and_state(subject: Subject) -> None:
    one, two = a_pod_config(), a_pod_config()
    async with subject.open() as cri, sandbox(cri, one) as first_box, sandbox(cri, two) as second_box:
        running = await start(cri, first_box, one, Program.POLITE)
        done = await start(cri, first_box, one, Program.SUCCEEDS)
        other = await start(cri, second_box, two, Program.POLITE)
        await until_exited(subject.clock, cri, done)

        async def ids(**wanted: object) -> set[str]:
            return {record.id for record in await cri.list_containers(**wanted)}  # type: ignore[arg-type]

        assert await ids(pod_uid=one.uid) == {running, done}
        assert await ids(pod_uid=one.uid, running_only=True) == {running}
        assert await ids(id=other) == {other}
        assert await ids(sandbox_id=second_box) == {other}
        assert {running, done, other} <= await ids()
        [record] = await cri.list_containers(id=running)
    assert (record.sandbox_id, record.pod_uid, record.name) == (first_box, one.uid, "polite")
    assert (record.pod_name, record.pod_namespace) == (one.config.metadata.name, "default")
    assert record.state is ContainerState.RUNNING


async def test_resources_of_a_running_container_can_change(subject: Subject) -> None:
    pod = a_pod_config()
    async with subject.open() as cri, sandbox(cri, pod) as box:
        container = await start(cri, box, pod, Program.POLITE)
        await cri.update_container_resources(container, cri_pb2.LinuxContainerResources(cpu_shares=512))
