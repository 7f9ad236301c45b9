"""The client over HTTPS against the real server, and what it says when nobody is there."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pykubelet.cli.client import NodeClient, Target
from pykubelet.cli.errors import NO_AGENT, CommandFailed
from pykubelet.cli.pods import list_pods
from pykubelet.cli.up import need_root
from pykubelet.model.pod import name_of
from tests.builders import a_pod
from tests.unit.server.support import FakePods, ServedNode, serving

pytestmark = pytest.mark.real_loop


async def test_another_node_is_asked_with_a_client_certificate(tmp_path: Path) -> None:
    world = ServedNode(tmp_path, pods=FakePods(a_pod("web")))
    world.reviewer.everything = {"admin"}
    me = world.ca.issue("admin")
    async with serving(world.server()) as port:
        target = Target(
            url=f"https://127.0.0.1:{port}",
            certificate=str(me.certificate),
            key=str(me.key),
            authority=str(world.ca.pair.certificate),
        )
        pods = await asyncio.to_thread(list_pods, NodeClient(target))
        assert [name_of(pod) for pod in pods] == ["web"]
        stranger = NodeClient(Target(url=f"https://127.0.0.1:{port}", authority=target.authority))
        with pytest.raises(CommandFailed, match="Unauthorized"):
            await asyncio.to_thread(list_pods, stranger)
        distrustful = NodeClient(Target(url=f"127.0.0.1:{port}"))
        with pytest.raises(CommandFailed, match="certificate") as refused:
            await asyncio.to_thread(list_pods, distrustful)
        assert refused.value.status == NO_AGENT


async def test_the_local_socket_of_the_real_server(tmp_path: Path) -> None:
    world = ServedNode(tmp_path, pods=FakePods(a_pod("web")))
    async with serving(world.server(local_socket=tmp_path / "s")):
        node = NodeClient(Target(sockets=(tmp_path / "none", tmp_path / "s")))
        assert [name_of(pod) for pod in await asyncio.to_thread(list_pods, node)] == ["web"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (Target(url="http://node"), "must be https"),
        (Target(url="https://127.0.0.1:1"), "cannot be reached"),
        (Target(url="https://127.0.0.1:1", authority="/nonexistent"), "TLS files cannot be used"),
        (Target(sockets=(Path("/nonexistent/s"),)), "no agent is running here"),
    ],
)
def test_problems_are_named(target: Target, says: str) -> None:
    with pytest.raises(CommandFailed, match=says):
        NodeClient(target).get("/pods")


def test_running_containers_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(CommandFailed, match="needs root"):
        need_root()
