"""Getting images: events, reasons, back-off, sharing, limits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pykubelet.api.types import Pod
from pykubelet.images.keyring import Entry, Login
from pykubelet.images.pull import ImageError, ImagePuller, PullSettings, explain_pull_error
from pykubelet.images.records import Lookup
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from pykubelet.recorder import LifeRecorder, Outcome, Step
from pykubelet.wire import cri_pb2
from tests.builders import a_context, a_pod
from tests.fakes.fake_cri import FakeCri
from tests.fakes.recorded_events import RecordedEvents

PATH = "spec.containers{app}"


class Logins:
    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.pairs = pairs

    async def lookup(self, pod: Pod, image: str) -> Sequence[Login]:
        return [Login(entry=Entry(username=user, password=password)) for user, password in self.pairs]


class Guard:
    """Lets an image be used only after it was pulled."""

    def __init__(self) -> None:
        self.let_in: set[str] = set()
        self.told: list[tuple[str, str]] = []

    async def may_use(self, image: str, image_ref: str, logins: Lookup) -> bool:
        return image in self.let_in

    async def intend(self, image: str) -> None:
        self.told.append(("intend", image))

    async def pulled(self, image: str, image_ref: str, login: Login | None) -> None:
        self.told.append(("pulled", image))
        self.let_in.add(image)

    async def failed(self, image: str) -> None:
        self.told.append(("failed", image))


class PullerFixture:
    def __init__(
        self,
        *,
        settings: PullSettings | None = None,
        logins: Logins | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.clock = LoopClock()
        self.cri = FakeCri(self.clock)
        self.events = RecordedEvents()
        self.life = LifeRecorder(self.clock)
        self.metrics = Registry()
        self.puller = ImagePuller(
            a_context(clock=self.clock, events=self.events, recorder=self.life, metrics=self.metrics),
            self.cri,
            settings=settings or PullSettings(),
            credentials=logins or Logins(),
            records=guard,
        )

    async def ensure(self, image: str, policy: str | None = "IfNotPresent", pod: str = "web") -> str:
        config = cri_pb2.PodSandboxConfig()
        return await self.puller.ensure_image(a_pod(pod), image, policy, sandbox_config=config, field_path=PATH)

    async def fails(self, image: str, policy: str | None = "IfNotPresent", pod: str = "web") -> ImageError:
        with pytest.raises(ImageError) as caught:
            await self.ensure(image, policy, pod)
        return caught.value

    def pulls(self) -> int:
        return len(self.cri.called("pull_image"))


async def test_image_at_hand_costs_one_call() -> None:
    bench = PullerFixture()
    image = bench.cri.add_image("busybox:1")
    assert await bench.ensure("busybox:1") == image.id
    assert [c.verb for c in bench.cri.calls] == ["image_status"]
    text = 'Container image "busybox:1" already present on machine and can be accessed by the pod'
    assert bench.events.seen == [("Normal", "Pulled", text)]
    assert bench.events.paths == {PATH}


async def test_a_pull_and_what_it_tells() -> None:
    bench = PullerFixture()
    image = bench.cri.add_to_registry("busybox:1", size_bytes=4_261_550, takes=1.2345)
    assert await bench.ensure("busybox:1") == image.id
    assert bench.events.seen == [
        ("Normal", "Pulling", 'Pulling image "busybox:1"'),
        (
            "Normal",
            "Pulled",
            'Successfully pulled image "busybox:1" in 1.234s (1.234s including waiting). Image size: 4261550 bytes.',
        ),
    ]
    [call] = bench.cri.called("pull_image")
    assert call.args["spec"].image == "busybox:1"
    assert dict(call.args["spec"].annotations) == a_pod().metadata.annotations
    assert call.args["auth"] is None
    life = bench.life.life("uid-web")
    assert life is not None
    done = life.entries[0]
    assert (done.step, done.subject, done.outcome) == (Step.PULL, "busybox:1", Outcome.DONE)
    assert done.seconds == pytest.approx(1.2345)


async def test_default_tag_goes_to_the_runtime_only() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:latest")
    await bench.ensure("busybox", None)
    assert bench.cri.called("pull_image")[0].name == "busybox:latest"
    assert bench.events.seen[0][2] == 'Pulling image "busybox"'


async def test_always_pulls_without_looking() -> None:
    bench = PullerFixture()
    bench.cri.add_image("busybox:1")
    bench.cri.add_to_registry("busybox:1")
    await bench.ensure("busybox:1", "Always")
    assert bench.cri.calls[0].verb == "pull_image"


async def test_never() -> None:
    bench = PullerFixture()
    error = await bench.fails("busybox:1", "Never")
    text = 'Container image "busybox:1" is not present with pull policy of Never'
    assert (error.problem.reason, str(error)) == ("ErrImageNeverPull", text)
    assert bench.events.seen == [("Warning", "ErrImageNeverPull", text)]
    assert bench.pulls() == 0


async def test_invalid_name() -> None:
    bench = PullerFixture()
    error = await bench.fails("Bad:1")
    assert error.problem.reason == "InvalidImageName"
    assert str(error).startswith('Failed to apply default image tag "Bad:1": couldn\'t parse image name "Bad:1": ')
    assert bench.events.seen == [("Warning", "InspectFailed", str(error))]
    assert bench.cri.calls == []


async def test_inspect_error() -> None:
    bench = PullerFixture()
    bench.cri.fail_next("image_status", CriError("store is corrupt"))
    error = await bench.fails("busybox:1")
    assert (error.problem.reason, str(error)) == ("ImageInspectError", 'Failed to inspect image "": store is corrupt')
    assert bench.events.seen == [("Warning", "InspectFailed", str(error))]


@pytest.mark.parametrize("verb", ["image_status", "pull_image"])
async def test_a_runtime_that_is_down_is_nobodys_fault(verb: str) -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:1")
    bench.cri.fail_next(verb, RuntimeDown("gone"))
    with pytest.raises(RuntimeDown):
        await bench.ensure("busybox:1")
    assert "Failed" not in bench.events.reasons()
    await bench.ensure("busybox:1")  # no back-off


async def test_failure_then_back_off_then_another_try() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:1", error=CriError("no such host"))
    error = await bench.fails("busybox:1")
    assert (error.problem.reason, str(error), round(error.problem.retry_at - bench.clock.now(), 3)) == (
        "ErrImagePull",
        "no such host",
        1.0,
    )
    failed = ("Warning", "Failed", 'Failed to pull image "busybox:1": no such host')
    assert bench.events.seen[1:] == [failed]
    await bench.clock.sleep(4)
    error = await bench.fails("busybox:1")
    assert error.problem.reason == "ImagePullBackOff"
    assert str(error) == 'Back-off pulling image "busybox:1": ErrImagePull: no such host'
    assert round(error.problem.retry_at - bench.clock.now(), 3) == 6.0 == bench.puller.retry_after(a_pod(), "busybox:1")
    assert bench.events.seen[2:] == [("Normal", "BackOff", 'Back-off pulling image "busybox:1"')]
    assert bench.pulls() == 1


async def test_back_off_grows_to_five_minutes_and_is_forgotten_after_ten() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:1", error=CriError("no such host"))
    delays: list[float] = []
    for _ in range(8):
        assert (await bench.fails("busybox:1")).problem.reason == "ErrImagePull"
        delays.append(bench.puller.retry_after(a_pod(), "busybox:1"))
        await bench.clock.sleep(delays[-1] + 0.01)
    assert [round(d) for d in delays] == [10, 20, 40, 80, 160, 300, 300, 300]
    await bench.clock.sleep(601)
    await bench.fails("busybox:1")
    assert bench.puller.retry_after(a_pod(), "busybox:1") == 10


async def test_back_off_is_per_pod_and_image_and_ends_with_the_pod() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:1", error=CriError("no such host"))
    await bench.fails("busybox:1")
    assert (await bench.fails("busybox:1", pod="other")).problem.reason == "ErrImagePull"
    assert (await bench.fails("busybox:1")).problem.reason == "ImagePullBackOff"
    bench.puller.keep_only(["uid-other"])
    assert (await bench.fails("busybox:1")).problem.reason == "ErrImagePull"
    assert (await bench.fails("busybox:1", pod="other")).problem.reason == "ImagePullBackOff"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("anything", ("ErrImagePull", "anything")),
        (
            "RegistryUnavailable: dial tcp: timeout",
            (
                "RegistryUnavailable",
                "image pull failed for r.io/a:1 because the registry is unavailable: dial tcp: timeout",
            ),
        ),
        (
            "SignatureValidationFailed",
            ("SignatureValidationFailed", "image pull failed for r.io/a:1 because the signature validation failed"),
        ),
    ],
)
def test_reasons_of_failed_pulls(text: str, expected: tuple[str, str]) -> None:
    assert explain_pull_error("r.io/a:1", text) == expected


async def test_credentials_are_tried_in_order() -> None:
    bench = PullerFixture(logins=Logins(("old", "x"), ("me", "secret"), ("other", "y")))
    image = bench.cri.add_to_registry("r.io/a:1", needs_auth=("me", "secret"))
    assert await bench.ensure("r.io/a:1") == image.id
    assert [c.args["auth"].username for c in bench.cri.called("pull_image")] == ["old", "me"]


async def test_all_credentials_fail() -> None:
    bench = PullerFixture(logins=Logins(("old", "x"), ("older", "y")))
    bench.cri.fail_next("pull_image", CriError("denied: old"))
    bench.cri.add_to_registry("r.io/a:1", error=CriError("denied: older"))
    error = await bench.fails("r.io/a:1")
    assert str(error) == "[denied: old, denied: older]"


async def test_pods_share_a_pull_under_way() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:1", takes=5.0)
    got: list[str] = []

    async def want(pod: str) -> None:
        got.append(await bench.ensure("busybox:1", pod=pod))

    async with TaskSet("pods") as pods:
        for number in range(10):
            pods.spawn(want(f"p{number}"), name=f"p{number}")
        await bench.clock.sleep(6)
    assert bench.pulls() == 1 and len(set(got)) == 1 and len(got) == 10
    assert bench.events.reasons().count("Pulled") == 10


async def test_a_shared_failure_is_everybodys() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:1", takes=5.0, error=CriError("no such host"))
    reasons: list[str] = []

    async def want(pod: str) -> None:
        reasons.append((await bench.fails("busybox:1", pod=pod)).problem.reason)

    async with TaskSet("pods") as pods:
        for number in range(3):
            pods.spawn(want(f"p{number}"), name=f"p{number}")
        await bench.clock.sleep(6)
    assert bench.pulls() == 1 and reasons == ["ErrImagePull"] * 3


async def test_when_the_first_pod_goes_away_the_next_pulls() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("busybox:1", takes=5.0)
    got: list[str] = []

    async def want(pod: str) -> None:
        got.append(await bench.ensure("busybox:1", pod=pod))

    async with TaskSet("pods") as pods:
        first = pods.spawn(want("first"), name="first")
        for number in range(3):
            pods.spawn(want(f"p{number}"), name=f"p{number}")
        await bench.clock.sleep(1)
        first.cancel()
        await bench.clock.sleep(10)
    assert bench.pulls() == 2 and len(got) == 3


async def test_different_credentials_do_not_share() -> None:
    logins = Logins(("me", "secret"))
    bench = PullerFixture(logins=logins)
    bench.cri.add_to_registry("r.io/a:1", takes=5.0)

    async def want(pod: str) -> None:
        await bench.ensure("r.io/a:1", pod=pod)

    async with TaskSet("pods") as pods:
        pods.spawn(want("one"), name="one")
        await bench.clock.sleep(1)
        logins.pairs = (("you", "other"),)
        pods.spawn(want("two"), name="two")
        await bench.clock.sleep(10)
    assert bench.pulls() == 2


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        (PullSettings(), 10.0),
        (PullSettings(max_parallel=2), 20.0),
        (PullSettings(serialize=True), 40.0),
        (PullSettings(serialize=True, max_parallel=4), 40.0),
    ],
)
async def test_how_many_at_once(settings: PullSettings, seconds: float) -> None:
    bench = PullerFixture(settings=settings)
    done: list[float] = []

    async def want(number: int) -> None:
        bench.cri.add_to_registry(f"r.io/a{number}:1", takes=10.0)
        await bench.ensure(f"r.io/a{number}:1")
        done.append(bench.clock.monotonic())

    async with TaskSet("pods") as pods:
        for number in range(4):
            pods.spawn(want(number), name=str(number))
        await bench.clock.sleep(100)
    assert max(done) == seconds
    if seconds == 40.0:
        assert "in 10s (40s including waiting)" in bench.events.seen[-1][2]


async def test_the_cap_holds_for_pulls_that_take_very_long() -> None:
    bench = PullerFixture(settings=PullSettings(max_parallel=2))
    done: list[float] = []

    async def want(number: int) -> None:
        bench.cri.add_to_registry(f"r.io/a{number}:1", takes=900.0)
        await bench.ensure(f"r.io/a{number}:1")
        done.append(bench.clock.monotonic())

    async with TaskSet("pods") as pods:
        for number in range(4):
            pods.spawn(want(number), name=str(number))
        await bench.clock.sleep(2000)
    assert done == [900.0, 900.0, 1800.0, 1800.0]


async def test_registry_rate() -> None:
    bench = PullerFixture(settings=PullSettings(qps=1.0, burst=2))
    for number in range(3):
        bench.cri.add_to_registry(f"r.io/a{number}:1")
    await bench.ensure("r.io/a0:1")
    await bench.ensure("r.io/a1:1")
    error = await bench.fails("r.io/a2:1")
    assert (error.problem.reason, str(error)) == ("ErrImagePull", "pull QPS exceeded")
    assert bench.events.seen[-1][2] == 'Failed to pull image "r.io/a2:1": pull QPS exceeded'


async def test_a_present_image_somebody_else_brought() -> None:
    bench = PullerFixture(guard=Guard())
    bench.cri.add_image("r.io/a:1")
    bench.cri.add_to_registry("r.io/a:1")
    error = await bench.fails("r.io/a:1", "Never")
    text = 'Container image "r.io/a:1" is not present with pull policy of Never'  # its presence is no pod's business
    assert (error.problem.reason, str(error)) == ("ErrImageNeverPull", text)
    await bench.ensure("r.io/a:1")
    assert bench.pulls() == 1
    await bench.ensure("r.io/a:1")
    assert bench.pulls() == 1


async def test_every_pull_is_written_down_before_and_after() -> None:
    guard = Guard()
    bench = PullerFixture(guard=guard)
    bench.cri.add_to_registry("r.io/a:latest")
    bench.cri.add_to_registry("r.io/b:1", error=CriError("no such host"))
    await bench.ensure("r.io/a")
    await bench.fails("r.io/b:1")
    await bench.fails("r.io/b:1")  # in back-off: no pull, no record
    assert guard.told == [("intend", "r.io/a"), ("pulled", "r.io/a"), ("intend", "r.io/b:1"), ("failed", "r.io/b:1")]


async def test_a_pull_given_up_is_written_down_too() -> None:
    guard = Guard()
    bench = PullerFixture(guard=guard)
    bench.cri.add_to_registry("r.io/a:1", takes=60.0)

    async def want() -> None:
        await bench.ensure("r.io/a:1")

    async with TaskSet("pods") as pods:
        task = pods.spawn(want(), name="p")
        await bench.clock.sleep(1)
        task.cancel()
    assert guard.told == [("intend", "r.io/a:1"), ("failed", "r.io/a:1")]


class Broken(Logins):
    async def lookup(self, pod: Pod, image: str) -> Sequence[Login]:
        raise PykubeletError("pull secret default/s: is not JSON")


async def test_credentials_that_cannot_be_read_fail_the_pull() -> None:
    bench = PullerFixture(logins=Broken())
    bench.cri.add_to_registry("r.io/a:1")
    error = await bench.fails("r.io/a:1")
    assert (error.problem.reason, str(error)) == ("ErrImagePull", "pull secret default/s: is not JSON")
    assert bench.pulls() == 0


async def test_a_long_pull_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    bench = PullerFixture(settings=PullSettings(serialize=True))
    bench.cri.add_to_registry("r.io/a:1", takes=135.0)
    bench.cri.add_to_registry("r.io/b:1", takes=0.0)

    async def want(image: str) -> None:
        await bench.ensure(image)

    async with TaskSet("pods") as pods:
        pods.spawn(want("r.io/a:1"), name="a")
        await bench.clock.sleep(1)
        pods.spawn(want("r.io/b:1"), name="b")
        await bench.clock.sleep(200)
    told = [(r.message, r.__dict__["image"], r.__dict__["seconds"]) for r in caplog.records]
    pulling, waiting = "image is still being pulled", "image waits for other pulls to end"
    assert [each for each in told if each[1] == "r.io/a:1"] == [(pulling, "r.io/a:1", s) for s in (10, 30, 70, 130)]
    assert [each for each in told if each[1] == "r.io/b:1"] == [(waiting, "r.io/b:1", s) for s in (10, 30, 70, 130)]


async def test_metrics_of_pulls() -> None:
    bench = PullerFixture()
    bench.cri.add_to_registry("r.io/a:1", size_bytes=20 << 20, takes=3.0)
    await bench.ensure("r.io/a:1")
    await bench.ensure("r.io/a:1", "Always")
    await bench.ensure("r.io/a:1", "Never")
    text = bench.metrics.expose()
    name = "kubelet_image_manager_ensure_image_requests_total"
    assert f'{name}{{pull_policy="ifnotpresent",present_locally="false",pull_required="true"}} 1' in text
    assert f'{name}{{pull_policy="always",present_locally="unknown",pull_required="true"}} 1' in text
    assert f'{name}{{pull_policy="never",present_locally="true",pull_required="false"}} 1' in text
    assert 'kubelet_image_pull_duration_seconds_count{image_size_in_bytes="10MB-100MB"} 2' in text


async def test_without_the_gate_the_text_says_less() -> None:
    bench = PullerFixture(settings=PullSettings(checks_access=False))
    bench.cri.add_image("busybox:1")
    await bench.ensure("busybox:1")
    assert bench.events.seen == [("Normal", "Pulled", 'Container image "busybox:1" already present on machine')]
