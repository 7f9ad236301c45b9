"""`pykubelet shutdown`: what it asks, what it says, how it ends; and the route it asks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from pykubelet.node.shutdown import ShutdownOutcome, ShutdownPeriod, two_periods
from pykubelet.server.local import USUAL, ShutdownRoutes
from pykubelet.server.requests import Refused, Request, Response
from tests.unit.cli.a_node import CannedNode, Commands

PATH = "/local/shutdown"


def test_it_says_which_pods_ended_and_which_did_not(node: CannedNode, run: Commands) -> None:
    node.give(PATH, {"stopped": ["default/web"], "left": [], "seconds": 2.04}, method="POST")
    done = run("shutdown", "--grace", "1m", "--grace-critical", "10s")
    assert (done.status, done.err) == (0, "")
    assert done.out == "pod default/web ended\n1 pods ended in 2.0 s; the machine may go down\n"
    assert node.requested[-1][2] == "grace=1m&graceCritical=10s"
    node.give(PATH, {"stopped": [], "left": ["default/web"], "seconds": 60}, method="POST")
    done = run("shutdown")
    assert (done.status, done.err) == (1, "pod default/web did not end in time\n")


def test_it_can_be_taken_back(node: CannedNode, run: Commands) -> None:
    node.give(PATH, {"cancelled": True}, method="DELETE")
    assert run("shutdown", "--cancel").out == "the shutdown is cancelled\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--grace-critical", "5s"), "--grace-critical needs --grace"),
        (("--grace", "soon"), "--grace: "),
        (("--cancel", "--grace", "5s"), "--cancel takes no periods"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(run: Commands, words: tuple[str, ...], text: str) -> None:
    done = run("shutdown", *words)
    assert done.status == 2 and text in done.err


def test_the_nodes_own_words_reach_the_person(node: CannedNode, run: Commands) -> None:
    node.give(PATH, b"graceCritical 9s must not exceed grace 5s", method="POST", status=400)
    done = run("shutdown", "--grace", "5s", "--grace-critical", "9s")
    assert (done.status, done.err) == (1, "pykubelet: graceCritical 9s must not exceed grace 5s\n")


# --- the route ------------------------------------------------------------------------------------------------


class Asked:
    def __init__(self) -> None:
        self.periods: list[Sequence[ShutdownPeriod]] = []
        self.shutting_down = False

    async def shut_down(self, periods: Sequence[ShutdownPeriod]) -> ShutdownOutcome:
        self.periods.append(periods)
        self.shutting_down = True
        return ShutdownOutcome(stopped=["default/web"], left=[], seconds=1.0)

    def cancel(self) -> None:
        self.shutting_down = False


@pytest.mark.parametrize(
    ("query", "configured", "expected"),
    [
        ((), (), USUAL),
        ((), two_periods(60, 20), two_periods(60, 20)),
        ((("grace", "5s"),), two_periods(60, 20), two_periods(5, 0)),
        ((("grace", "1m"), ("graceCritical", "10s")), (), two_periods(60, 10)),
    ],
)
async def test_the_periods_asked_for_count_before_those_of_the_settings(
    query: tuple[tuple[str, str], ...], configured: tuple[ShutdownPeriod, ...], expected: tuple[ShutdownPeriod, ...]
) -> None:
    asked = Asked()
    reply = await ShutdownRoutes(manager=asked, periods=configured).begin(
        Request(method="POST", path=PATH, query=query)
    )
    assert asked.periods == [expected]
    assert isinstance(reply, Response)
    assert msgspec.json.decode(reply.body) == {"stopped": ["default/web"], "left": [], "seconds": 1.0}


@pytest.mark.parametrize(
    "query",
    [(("graceCritical", "5s"),), (("grace", "x"),), (("grace", "-5s"),), (("grace", "5s"), ("graceCritical", "6s"))],
)
async def test_periods_that_make_no_sense_are_refused(query: tuple[tuple[str, str], ...]) -> None:
    asked = Asked()
    with pytest.raises(Refused, match="grace"):
        await ShutdownRoutes(manager=asked, periods=()).begin(Request(method="POST", path=PATH, query=query))
    assert not asked.periods


async def test_taking_back_says_whether_there_was_anything() -> None:
    asked = Asked()
    routes = ShutdownRoutes(manager=asked, periods=())
    for going_on in (False, True):
        asked.shutting_down = going_on
        reply = await routes.cancel(Request(method="DELETE", path=PATH))
        assert isinstance(reply, Response) and msgspec.json.decode(reply.body) == {"cancelled": going_on}
        assert not asked.shutting_down
