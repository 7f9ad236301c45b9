"""The fake runtime's own powers: programs, time, faults, crashes, pulls.

What it shares with containerd is in test_cri_contract.py.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from pykubelet.hollow.cri_values import Behaviour, Exec, full_name
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import CallTimedOut, CriError, CriNotFound, ExecTimedOut, RuntimeDown, Unimplemented
from pykubelet.model.runtime_status import ContainerState, EventKind, ExecResult, SandboxState
from pykubelet.wire import cri_pb2
from tests.contracts.cri_subjects import IMAGE, PodConfig, Program, a_container_config, a_pod_config
from tests.fakes.fake_cri import FakeCri


def make(**settings: object) -> FakeCri:
    return FakeCri(LoopClock(), images=[IMAGE], **settings)  # type: ignore[arg-type]


async def run(cri: FakeCri, pod: PodConfig | None = None, attempt: int = 0) -> str:
    """A started container named polite."""
    pod = pod or a_pod_config()
    box = await cri.run_pod_sandbox(pod.config)
    container = await cri.create_container(box, a_container_config(pod, Program.POLITE, attempt=attempt), pod.config)
    await cri.start_container(container)
    return container


async def test_a_programmed_exit_happens_on_time_without_anybody_looking() -> None:
    cri = make()
    cri.program(Behaviour(exits_after=3600.0, exit_code=7), name="polite")
    container = await run(cri)
    await cri.clock.sleep(3599)
    assert (await cri.container_status(container)).state is ContainerState.RUNNING
    await cri.clock.sleep(1)
    status = await cri.container_status(container)
    assert (status.state, status.exit_code) == (ContainerState.EXITED, 7)
    assert status.finished_at - status.started_at == pytest.approx(3600e9, rel=1e-6)


async def test_the_latest_matching_program_wins_and_attempts_differ() -> None:
    cri = make()
    cri.program(Behaviour(exit_code=1, exits_after=1), name="polite")
    cri.program(Behaviour(exit_code=2, exits_after=1), image=IMAGE, attempt=1)
    codes = []
    for attempt in (0, 1):
        container = await run(cri, attempt=attempt)
        await cri.clock.sleep(1)
        codes.append((await cri.container_status(container)).exit_code)
    assert codes == [1, 2]


async def test_an_out_of_memory_kill() -> None:
    cri = make()
    cri.program(Behaviour(exits_after=1, oom=True), name="polite")
    container = await run(cri)
    await cri.clock.sleep(1)
    status = await cri.container_status(container)
    assert (status.exit_code, status.reason) == (137, "OOMKilled")


@pytest.mark.parametrize(
    ("behaviour", "grace", "took", "code"),
    [
        (Behaviour(), 30, 0.0, 143),
        (Behaviour(stops_after=5.0, stop_code=0), 30, 5.0, 0),
        (Behaviour(stops_after=5.0), 2, 2.0, 137),
        (Behaviour(stops_after=None), 30, 30.0, 137),
        (Behaviour(), 0, 0.0, 137),
    ],
)
async def test_stopping_takes_what_the_program_takes(behaviour: Behaviour, grace: int, took: float, code: int) -> None:
    cri = make()
    cri.program(behaviour, name="polite")
    container = await run(cri)
    began = cri.clock.monotonic()
    await cri.stop_container(container, grace)
    assert cri.clock.monotonic() - began == pytest.approx(took)
    assert (await cri.container_status(container)).exit_code == code


async def test_giving_up_on_a_stop_leaves_the_signal_delivered_but_no_kill() -> None:
    cri = make()
    cri.program(Behaviour(stops_after=10.0), name="polite")
    container = await run(cri)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await cri.stop_container(container, 5)
    await cri.clock.sleep(8)
    assert (await cri.container_status(container)).state is ContainerState.RUNNING
    await cri.clock.sleep(1)
    assert (await cri.container_status(container)).exit_code == 143


async def test_a_shorter_second_stop_wins() -> None:
    cri = make()
    cri.program(Behaviour(stops_after=None), name="polite")
    container = await run(cri)
    async with TaskSet("stops") as tasks:
        tasks.spawn(cri.stop_container(container, 30), name="patient")
        await cri.clock.sleep(1)
        await cri.stop_container(container, 2)
    status = await cri.container_status(container)
    assert (status.finished_at - status.started_at) / 1e9 == pytest.approx(3.0, abs=0.01)


async def test_a_hanging_call_waits_for_release_and_concerns_only_its_pod() -> None:
    cri = make()
    web, other = a_pod_config(), a_pod_config()
    fault = cri.hang("run_pod_sandbox", name=web.config.metadata.name)
    async with TaskSet("runs") as tasks:
        made = tasks.spawn(_run_into(cri, web), name="web")
        await cri.run_pod_sandbox(other.config)
        await cri.clock.sleep(1)
        assert fault.hits == 1 and not made.done()
        fault.release()
        await made
    assert cri.sandbox(web.uid).state is SandboxState.READY


async def test_a_hanging_call_ends_at_the_clients_deadline() -> None:
    cri = make(request_timeout=100.0)
    cri.hang("run_pod_sandbox")
    with pytest.raises(CallTimedOut):
        await cri.run_pod_sandbox(a_pod_config().config)
    assert cri.clock.monotonic() == pytest.approx(200.0)
    assert cri.sandboxes == {}


async def test_a_cancelled_run_leaves_nothing_and_its_name_is_free() -> None:
    cri, pod = make(), a_pod_config()
    cri.run_takes = 10.0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await cri.run_pod_sandbox(pod.config)
    cri.run_takes = 0.0
    await cri.run_pod_sandbox(pod.config)


async def test_the_next_calls_fail_as_planned() -> None:
    cri = make()
    cri.fail_next("version", CriError("first"), times=2)
    for _ in range(2):
        with pytest.raises(CriError, match="first"):
            await cri.version()
    await cri.version()


async def test_a_slow_call_takes_its_time() -> None:
    cri = make()
    fault = cri.slow("version", 3.0)
    await cri.version()
    fault.remove()
    await cri.version()
    assert cri.clock.monotonic() == pytest.approx(3.0)


async def test_a_crash_fails_everything_and_containers_live_on() -> None:
    cri = make()
    cri.program(Behaviour(exits_after=5.0, exit_code=9), name="polite")
    container = await run(cri)
    events = cri.container_events()
    async with TaskSet("calls", on_error=lambda error: seen.append(error)) as tasks:
        seen: list[BaseException] = []
        cri.hang("version")
        hanging = tasks.spawn(_version_of(cri), name="version")
        await cri.clock.sleep(1)
        cri.crash()
        await asyncio.wait({hanging})
        assert [type(error) for error in seen] == [RuntimeDown]
    async with aclosing(events):
        with pytest.raises(RuntimeDown):
            await anext(events)
    with pytest.raises(RuntimeDown):
        await cri.container_status(container)
    await cri.clock.sleep(10)
    cri.restore()
    assert (await cri.container_status(container)).exit_code == 9


async def test_events_tell_of_exits_with_the_pod() -> None:
    cri, pod = make(), a_pod_config()
    events = cri.container_events()
    container = await run(cri, pod)
    cri.exit("polite", 3)
    async with aclosing(events):
        told = [await anext(events) for _ in range(5)]
    assert [event.kind for event in told[2:]] == [EventKind.CREATED, EventKind.STARTED, EventKind.STOPPED]
    assert {event.pod_uid for event in told} == {pod.uid} and told[-1].container_id == container


async def test_a_runtime_without_events_says_so() -> None:
    cri = make()
    cri.events_supported = False
    with pytest.raises(Unimplemented):
        await anext(cri.container_events())


async def test_exec_is_scripted() -> None:
    cri = make()
    container = await run(cri)
    assert await cri.exec_sync(container, ["anything"]) == ExecResult()
    cri.on_exec(Exec(result=ExecResult(exit_code=1)), name="polite")
    cri.on_exec(lambda c, command: Exec(result=ExecResult(stdout=c.name.encode())), command=["who"])
    cri.on_exec(Exec(takes=9.0), command=["slow"])
    assert (await cri.exec_sync(container, ["other"])).exit_code == 1
    assert (await cri.exec_sync(container, ["who"])).stdout == b"polite"
    with pytest.raises(ExecTimedOut):
        await cri.exec_sync(container, ["slow"], 2)
    assert cri.clock.monotonic() == pytest.approx(2.0)


async def test_pulls_take_time_need_credentials_and_fail_as_told() -> None:
    cri = make()
    cri.add_to_registry("web:2", takes=4.0, size_bytes=77, needs_auth=("u", "p"))
    cri.add_to_registry("broken", error=CriError("toomanyrequests"))
    with pytest.raises(CriNotFound, match=r"docker\.io/library/nonesuch:latest"):
        await cri.pull_image(cri_pb2.ImageSpec(image="nonesuch"))
    with pytest.raises(CriError, match="toomanyrequests"):
        await cri.pull_image(cri_pb2.ImageSpec(image="broken:latest"))
    with pytest.raises(CriError, match="401"):
        await cri.pull_image(cri_pb2.ImageSpec(image="web:2"))
    ref = await cri.pull_image(cri_pb2.ImageSpec(image="web:2"), cri_pb2.AuthConfig(username="u", password="p"))
    image = await cri.image_status("docker.io/library/web:2")
    assert image is not None and image.id == ref and image.size_bytes == 77
    assert cri.clock.monotonic() == pytest.approx(8.0)
    await cri.remove_image(ref)
    assert await cri.image_status("web:2") is None


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("busybox", "docker.io/library/busybox:latest"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("user/app", "docker.io/user/app:latest"),
        ("docker.io/busybox", "docker.io/library/busybox:latest"),
        ("localhost/app:1", "localhost/app:1"),
        ("reg.io:5000/app", "reg.io:5000/app:latest"),
        ("app:1@sha256:ab", "docker.io/library/app@sha256:ab"),
        ("sha256:ab", "sha256:ab"),
    ],
)
def test_image_names_are_written_out(given: str, full: str) -> None:
    assert full_name(given) == full


async def test_a_log_stays_open_across_a_rename(tmp_path: Path) -> None:
    cri = make(write_logs=True)
    container = await run(cri, a_pod_config(tmp_path))
    path = Path((await cri.container_status(container)).log_path)
    cri.log("polite", "one")
    path.rename(tmp_path / "old")
    cri.log("polite", "two")
    await cri.reopen_container_log(container)
    cri.log("polite", "three", stream="stderr")
    assert [line.split(" ", 3)[3] for line in (tmp_path / "old").read_text().splitlines()] == ["one", "two"]
    assert path.read_text().rstrip().split(" ")[1:] == ["stderr", "F", "three"]
    cri.exit("polite")


async def test_a_container_without_its_log_folder_cannot_start(tmp_path: Path) -> None:
    cri = make(write_logs=True)
    with pytest.raises(CriError, match="log file"):
        await run(cri, a_pod_config(tmp_path / "missing"))
    assert cri.container("polite").reason == "StartError"


async def test_a_dead_pause_process_and_a_lost_container() -> None:
    cri, pod = make(), a_pod_config()
    container = await run(cri, pod)
    cri.kill_sandbox(pod.uid)
    assert cri.sandbox(pod.uid).state is SandboxState.NOT_READY
    assert (await cri.container_status(container)).state is ContainerState.RUNNING
    cri.lose("polite")
    assert (await cri.container_status(container)).state is ContainerState.UNKNOWN
    await cri.stop_container(container, 5)
    assert (await cri.container_status(container)).exit_code == 137


async def test_calls_are_recorded_with_what_they_were_about() -> None:
    cri = make()
    container = await run(cri)
    await cri.stop_container(container, 12)
    [call] = cri.called("stop_container", "polite")
    assert (call.id, call.args) == (container, {"timeout": 12})
    verbs = [call.verb for call in cri.calls]
    assert verbs == ["run_pod_sandbox", "create_container", "start_container", "stop_container"]


async def test_addresses_are_never_given_twice_and_come_in_families() -> None:
    cri = make(pod_cidrs=("10.1.0.0/16", "fd00::/64"))
    seen: list[str] = []
    for _ in range(3):
        box = await cri.run_pod_sandbox(a_pod_config().config)
        seen += (await cri.pod_sandbox_status(box)).ips
        await cri.remove_pod_sandbox(box)
    assert len(set(seen)) == 6 and seen[0].startswith("10.1.") and seen[1].startswith("fd00:")


async def _run_into(cri: FakeCri, pod: PodConfig) -> None:
    await cri.run_pod_sandbox(pod.config)


async def _version_of(cri: FakeCri) -> None:
    await cri.version()
