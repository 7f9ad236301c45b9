"""`pykubelet port-forward POD [LOCAL:]PORT…`: local ports that lead into a pod, until Ctrl-C."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress

import click

from pykubelet.cli.client import NodeClient, path_of
from pykubelet.cli.options import bare_pod, namespace_option, on_node, pod_argument
from pykubelet.cli.pods import find_on
from pykubelet.cli.problems import CommandFailed
from pykubelet.cli.streaming import BLOCK, FORWARD_PROTOCOL, read_all, spdy
from pykubelet.clients.http.spdy import SpdyConnection, SpdyStream
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.pod import name_of


@click.command("port-forward", short_help="reach a port of a pod from here")
@pod_argument
@click.argument("ports", metavar="[LOCAL:]PORT…", nargs=-1, required=True)
@click.option("--address", default="127.0.0.1", help="Local address to listen on.", show_default=True)
@namespace_option
@on_node
def command(node: NodeClient, pod: str, ports: Sequence[str], address: str, namespace: str) -> None:
    """Listen here and pass connections on to the pod: pykubelet port-forward web 8080:80."""
    pairs = [parse(text) for text in ports]
    found = find_on(node, namespace, bare_pod(pod))
    with suppress(KeyboardInterrupt):
        asyncio.run(forward(node, path_of("portForward", namespace, name_of(found)), pairs, address))


def parse(text: str) -> tuple[int, int]:
    """`8080:80` is local 8080 to 80, `80` both, `:80` any free local port."""
    local, colon, remote = text.rpartition(":")
    try:
        there = int(remote)
        here = int(local or 0) if colon else there
    except ValueError:
        raise click.BadParameter(f"{text}: must be [LOCAL:]PORT", param_hint="PORT") from None
    if not (0 < there < 65536 and 0 <= here < 65536):
        raise click.BadParameter(f"{text}: ports are 1 to 65535", param_hint="PORT")
    return here, there


async def forward(node: NodeClient, path: str, pairs: Sequence[tuple[int, int]], address: str) -> None:
    async with spdy(node, path, (), FORWARD_PROTOCOL) as (connection, reading), AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(TaskSet("port forward", on_error=_say))
        numbers = itertools.count()
        for here, there in pairs:
            server = await _listen(address, here, there, connection, numbers, tasks)
            stack.push_async_callback(_close, server)
            port = server.sockets[0].getsockname()[1]
            click.echo(f"Forwarding from {address}:{port} -> {there}")
        await asyncio.wait({reading})  # ends when the node or the pod goes away
        raise CommandFailed("the node closed the connection")


async def _close(server: asyncio.Server) -> None:
    server.close()


async def _listen(
    address: str, here: int, there: int, connection: SpdyConnection, numbers: itertools.count[int], tasks: TaskSet
) -> asyncio.Server:
    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        click.echo(f"Handling connection for {here or writer.get_extra_info('sockname')[1]}")
        tasks.spawn(_join(reader, writer, connection, there, next(numbers)), name="forwarded connection")

    try:
        return await asyncio.start_server(accepted, address, here)
    except OSError as error:
        raise CommandFailed(f"cannot listen on {address}:{here}: {error.strerror or error}") from error


async def _join(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: SpdyConnection, port: int, number: int
) -> None:
    about = {"port": str(port), "requestid": str(number)}
    try:
        error = await connection.open({"streamtype": "error", **about}, finished=True)
        data = await connection.open({"streamtype": "data", **about})
        async with TaskSet("one connection", on_error=lambda problem: None) as tasks:
            up = tasks.spawn(_up(reader, data), name="to the pod")
            down = tasks.spawn(_down(data, writer), name="from the pod")
            said = (await read_all(error)).decode(errors="replace").strip()
            if said:
                click.echo(f"pykubelet: port {port}: {said}", err=True)
            else:
                await asyncio.wait({down})
                up.cancel()
    finally:
        writer.close()


async def _up(reader: asyncio.StreamReader, stream: SpdyStream) -> None:
    while block := await reader.read(BLOCK):
        await stream.write(block)
    await stream.finish()


async def _down(stream: SpdyStream, writer: asyncio.StreamWriter) -> None:
    while block := await stream.read():
        writer.write(block)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _say(error: BaseException) -> None:
    click.echo(f"pykubelet: a forwarded connection broke: {error}", err=True)
