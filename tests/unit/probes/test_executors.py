"""One probe carried out: what the pod said, in the words events use."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pykubelet.api.types import (
    ContainerPort,
    EnvVar,
    ExecAction,
    GRPCAction,
    HTTPGetAction,
    Probe,
    TCPSocketAction,
)
from pykubelet.clients.http.port import ConnectProblem, HealthProblem
from pykubelet.model.errors import CriError, ExecTimedOut, RuntimeDown
from pykubelet.model.http import BodyProblem, HttpAnswer, HttpProblem, HttpRequest
from pykubelet.model.runtime_status import ExecResult
from pykubelet.probes.executors import Answer, ProbeErrored, ProbeExecutor, Result, Target
from tests.builders import a_container, a_pod

CONTAINER = a_container(
    ports=[ContainerPort(name="web", container_port=8080)],
    env=[EnvVar(name="A", value="a"), EnvVar(name="BIG", value="x" * 1_000_000)],
)
TARGET = Target(pod=a_pod(), container=CONTAINER, container_id="c1", pod_ip="10.0.0.5")


class Pod:
    """The runtime and the network of one pod; answers with what it was given, in turn."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.requested: list[object] = []

    def _next(self) -> object:
        answer = self.answers[min(len(self.requested), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def exec_sync(self, container_id: str, command: Sequence[str], timeout: int = 0) -> ExecResult:
        self.requested.append((container_id, tuple(command), timeout))
        answer = self._next()
        assert isinstance(answer, ExecResult)
        return answer

    async def get(self, request: HttpRequest, *, timeout: float | None, max_body: int) -> HttpAnswer:
        self.requested.append((request.url, timeout, max_body))
        answer = self._next()
        assert isinstance(answer, HttpAnswer)
        return answer

    async def connect(self, host: str, port: int, *, timeout: float) -> None:
        self.requested.append((host, port, timeout))
        self._next()

    async def grpc_health(self, host: str, port: int, service: str, *, timeout: int) -> None:
        self.requested.append((host, port, service, timeout))
        self._next()


async def ask(probe: Probe, pod: Pod) -> Answer:
    return await ProbeExecutor(pod, pod).probe(probe, TARGET)


EXEC = Probe(exec=ExecAction(command=["cat", "$(A)"]), timeout_seconds=2)
GET = Probe(http_get=HTTPGetAction(port="web", path="/ok"))


@pytest.mark.parametrize(
    ("result", "answer"),
    [
        (ExecResult(stdout=b"out"), Answer(Result.SUCCESS, "out")),
        (ExecResult(stdout=b"out", stderr=b"err", exit_code=3), Answer(Result.FAILURE, "outerr")),
        (ExecResult(stdout=b"x" * 20000, exit_code=1), Answer(Result.FAILURE, "x" * 10240)),
        (ExecResult(stdout=b"\xff", exit_code=1), Answer(Result.FAILURE, "\ufffd")),
        (ExecTimedOut("slow"), Answer(Result.FAILURE, 'command timed out: "cat a" timed out after 2s')),
    ],
)
async def test_exec(result: object, answer: Answer) -> None:
    pod = Pod(result)
    assert await ask(EXEC, pod) == answer
    assert pod.requested == [("c1", ("cat", "a"), 2)]


async def test_a_command_that_grows_beyond_every_use_is_an_error_of_the_probe() -> None:
    pod = Pod()
    grows = Probe(exec=ExecAction(command=["$(BIG)$(BIG)"] * 4))
    with pytest.raises(ProbeErrored, match="the probe's command is longer than"):
        await ask(grows, pod)
    assert pod.requested == []


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (HttpAnswer(status=200, body=b"fine"), Answer(Result.SUCCESS)),
        (HttpAnswer(status=299), Answer(Result.SUCCESS)),
        (
            HttpAnswer(status=302, body=b"away"),
            Answer(Result.WARNING, "Probe terminated redirects, Response body: away"),
        ),
        (HttpAnswer(status=304), Answer(Result.WARNING, "Probe terminated redirects, Response body: ")),
        (HttpAnswer(status=400), Answer(Result.FAILURE, "HTTP probe failed with statuscode: 400")),
        (HttpAnswer(status=500, body=b"secret"), Answer(Result.FAILURE, "HTTP probe failed with statuscode: 500")),
        (HttpAnswer(status=101), Answer(Result.FAILURE, "HTTP probe failed with statuscode: 101")),
        (HttpProblem('Get "x": EOF'), Answer(Result.FAILURE, 'Get "x": EOF')),
    ],
)
async def test_http(reply: object, answer: Answer) -> None:
    pod = Pod(reply)
    assert await ask(GET, pod) == answer
    assert pod.requested == [("http://10.0.0.5:8080/ok", 1, 10240)]


@pytest.mark.parametrize(
    ("probe", "reply", "asked", "answer"),
    [
        (
            Probe(tcp_socket=TCPSocketAction(port="web"), timeout_seconds=3),
            None,
            ("10.0.0.5", 8080, 3),
            Answer(Result.SUCCESS),
        ),
        (
            Probe(tcp_socket=TCPSocketAction(port=1, host="h")),
            ConnectProblem("dial"),
            ("h", 1, 1),
            Answer(Result.FAILURE, "dial"),
        ),
        (Probe(grpc=GRPCAction(port=9)), None, ("10.0.0.5", 9, "", 1), Answer(Result.SUCCESS, "service healthy")),
        (
            Probe(grpc=GRPCAction(port=9, service="db")),
            HealthProblem("service unhealthy"),
            ("10.0.0.5", 9, "db", 1),
            Answer(Result.FAILURE, "service unhealthy"),
        ),
    ],
)
async def test_tcp_and_grpc(probe: Probe, reply: object, asked: object, answer: Answer) -> None:
    pod = Pod(reply)
    assert await ask(probe, pod) == answer
    assert pod.requested == [asked]


async def test_errors_are_tried_three_times() -> None:
    pod = Pod(RuntimeDown("gone"), CriError("oops"), ExecResult())
    assert await ask(EXEC, pod) == Answer(Result.SUCCESS)
    assert len(pod.requested) == 3
    pod = Pod(CriError("oops"))
    with pytest.raises(ProbeErrored, match="oops") as caught:
        await ask(EXEC, pod)
    assert (len(pod.requested), caught.value.state) == (3, "unknown")


async def test_a_body_that_breaks_off_is_an_error_not_an_answer() -> None:
    pod = Pod(BodyProblem("unexpected EOF"))
    with pytest.raises(ProbeErrored) as caught:
        await ask(GET, pod)
    assert (len(pod.requested), caught.value.state) == (3, "failure")


@pytest.mark.parametrize(
    "probe",
    [
        Probe(),
        Probe(http_get=HTTPGetAction(port="nope")),
        Probe(tcp_socket=TCPSocketAction(port=0)),
        Probe(grpc=GRPCAction(port=None)),
    ],
)
async def test_what_cannot_be_asked_is_an_error(probe: Probe) -> None:
    pod = Pod(None)
    with pytest.raises(ProbeErrored):
        await ask(probe, pod)
    assert pod.requested == []
