"""What the agent knows of its runtime, and what it sends before any pod starts."""

from __future__ import annotations

from pykubelet.kit.clock import LoopClock
from pykubelet.kit.tasks import running
from pykubelet.model.errors import CriError
from pykubelet.pleg.runtime_state import CHECK_EVERY, RuntimeState
from pykubelet.settings.load import LoadedSettings, load_settings
from tests.builders import a_context
from tests.fakes.fake_cri import FakeCri


class RefusingCri(FakeCri):
    """Refuses the pod CIDR a number of times."""

    refusals = 0

    async def update_runtime_config(self, pod_cidr: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise CriError("not now")
        assert self.pod_cidr == "", "sent twice"
        await super().update_runtime_config(pod_cidr)


def a_state(cri: FakeCri, *flags: str) -> RuntimeState:
    loaded = load_settings(flags, environ={})
    assert isinstance(loaded, LoadedSettings)
    return RuntimeState(a_context(settings=loaded.settings), cri)


async def test_the_runtime_gets_the_pod_cidr_before_it_counts_as_up() -> None:
    cri = RefusingCri(LoopClock())
    state = a_state(cri, "--pod-cidr=10.9.0.0/24")
    async with running(state):
        await state.wait_up()
        assert cri.pod_cidr == "10.9.0.0/24"
        await LoopClock().sleep(10 * CHECK_EVERY)


async def test_a_runtime_that_refuses_the_pod_cidr_gets_it_later() -> None:
    cri = RefusingCri(LoopClock())
    cri.refusals = 2
    state = a_state(cri, "--pod-cidr=10.9.0.0/24,fd00::/64")
    async with running(state):
        await state.wait_up()
        assert cri.pod_cidr == ""
        await LoopClock().sleep(3 * CHECK_EVERY)
        assert cri.pod_cidr == "10.9.0.0/24,fd00::/64"


async def test_a_node_of_a_cluster_has_its_range_from_the_api_server() -> None:
    cri = RefusingCri(LoopClock())
    state = a_state(cri, "--pod-cidr=10.9.0.0/24", "--kubeconfig=/k")
    async with running(state):
        await state.wait_up()
        await LoopClock().sleep(3 * CHECK_EVERY)
    assert cri.pod_cidr == ""


async def test_nothing_is_sent_without_one() -> None:
    cri = RefusingCri(LoopClock())
    state = a_state(cri)
    async with running(state):
        await state.wait_up()
    assert cri.pod_cidr == "" and cri.refusals == 0
