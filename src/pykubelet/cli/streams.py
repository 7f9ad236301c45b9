"""`pykubelet exec` and `pykubelet port-forward`: streams to a container over the node's server.

SPDY, as kubectl speaks it, on the local socket or over HTTPS. exec ends with the status of its command.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import stat
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from urllib.parse import urlencode

import click
import msgspec

from pykubelet.cli.client import NodeClient, Target, path_of
from pykubelet.cli.errors import CommandFailed
from pykubelet.cli.options import bare_pod, container_option, namespace_option, on_node, pod_argument
from pykubelet.cli.pods import container_of, find_on
from pykubelet.clients.http.http1 import read_body, read_upgrade_head
from pykubelet.clients.http.spdy import SpdyConnection, SpdyStream
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.http import HttpProblem
from pykubelet.model.pod import name_of

CONNECT_TIMEOUT = 10.0
BLOCK = 64 * 1024
INPUT_BLOCK = 16 * 1024
EXEC_PROTOCOL, FORWARD_PROTOCOL = "v4.channel.k8s.io", "portforward.k8s.io"


async def _dial(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(CONNECT_TIMEOUT):
        if not target.url:
            return await asyncio.open_unix_connection(str(target.socket), limit=BLOCK)
        host, port = target.host()
        return await asyncio.open_connection(host, port, ssl=target.context(), limit=BLOCK)


@asynccontextmanager
async def spdy(
    node: NodeClient, path: str, query: Sequence[tuple[str, str]], protocol: str
) -> AsyncIterator[tuple[SpdyConnection, asyncio.Task[None]]]:
    """An upgraded connection for the length of the block, and the task that ends with it. Raises CommandFailed."""
    try:
        reader, writer = await _dial(node.target)
    except (OSError, TimeoutError) as error:
        raise node.unreachable(error) from error
    try:
        await _upgrade(node, reader, writer, path, query, protocol)
        connection = SpdyConnection(reader, writer)
        async with TaskSet("stream", on_error=lambda error: None) as tasks:
            reading = tasks.spawn(connection.run(), name="stream reading")
            yield connection, reading
    finally:
        writer.close()


async def _upgrade(
    node: NodeClient,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    path: str,
    query: Sequence[tuple[str, str]],
    protocol: str,
) -> None:
    target = path + (f"?{urlencode(query)}" if query else "")
    lines = [f"POST {target} HTTP/1.1", "Host: node", "Connection: Upgrade", "Upgrade: SPDY/3.1", "Content-Length: 0"]
    lines += [f"X-Stream-Protocol-Version: {protocol}", *(f"{k}: {v}" for k, v in node.headers().items())]
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        await writer.drain()
        _, status, headers = await read_upgrade_head(reader)
        if status != 101:
            body = await read_body(reader, headers, BLOCK)
            raise CommandFailed(body.decode(errors="replace").strip() or f"the node answered {status}")
    except (OSError, HttpProblem) as error:
        raise CommandFailed(f"the node broke off: {error}") from error


def exit_status(raw: bytes) -> int:
    """The exit status that the error stream carries. Raises CommandFailed for an error of the node."""
    if not raw:
        return 0
    try:
        sent = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        raise CommandFailed(raw.decode(errors="replace").strip()) from None
    if sent.get("status") == "Success":
        return 0
    if sent.get("reason") == "NonZeroExitCode":
        causes = (sent.get("details") or {}).get("causes") or []
        for cause in causes:
            if cause.get("reason") == "ExitCode":
                return int(cause.get("message") or 1)
    raise CommandFailed(sent.get("message") or "the command could not be run")


async def read_all(stream: SpdyStream, limit: int = 64 * 1024) -> bytes:
    found = bytearray()
    while len(found) < limit and (block := await stream.read()):
        found += block
    return bytes(found)


@click.command("exec", short_help="run a command in a container", context_settings={"ignore_unknown_options": False})
@pod_argument
@container_option
@click.option("-i", "--stdin", "with_stdin", is_flag=True, help="Pass standard input on.")
@click.option("-t", "--tty", "with_tty", is_flag=True, help="Give the command a terminal.")
@click.argument("words", metavar="-- COMMAND [ARG]…", nargs=-1, type=click.UNPROCESSED, required=True)
@namespace_option
@on_node
def exec_command(
    node: NodeClient,
    pod: str,
    container: str | None,
    with_stdin: bool,
    with_tty: bool,
    words: Sequence[str],
    namespace: str,
) -> int:
    """Run a command in a container: pykubelet exec -it web -- sh."""
    found = find_on(node, namespace, bare_pod(pod))
    if with_tty and with_stdin and not sys.stdin.isatty():
        click.echo("Unable to use a TTY - input is not a terminal or the right kind of file", err=True)
        with_tty = False
    path = path_of("exec", namespace, name_of(found), container_of(found, container))
    query = [("command", word) for word in words] + [("output", "1")]
    query += [("input", "1")] if with_stdin else []
    query += [("tty", "1")] if with_tty else [("error", "1")]
    with raw_terminal() if with_tty and with_stdin else no_terminal():
        return asyncio.run(run_exec(node, path, query, stdin=with_stdin, terminal=with_tty))


async def run_exec(
    node: NodeClient, path: str, query: Sequence[tuple[str, str]], *, stdin: bool, terminal: bool
) -> int:
    """Join this process's streams to the command's until it ends; its exit status."""
    async with spdy(node, path, query, EXEC_PROTOCOL) as (connection, _):
        error = await connection.open({"streamtype": "error"}, finished=True)
        inward = await connection.open({"streamtype": "stdin"}) if stdin else None
        out = await connection.open({"streamtype": "stdout"}, finished=True)
        err = None if terminal else await connection.open({"streamtype": "stderr"}, finished=True)
        resize = await connection.open({"streamtype": "resize"}) if terminal else None
        async with TaskSet("exec", on_error=lambda problem: None) as tasks:
            if inward is not None:
                tasks.spawn(_send_input(inward), name="exec input")
            if resize is not None:
                tasks.spawn(_send_sizes(resize), name="exec size")
            outputs = [tasks.spawn(_copy(out, sys.stdout.fileno()), name="exec output")]
            if err is not None:
                outputs.append(tasks.spawn(_copy(err, sys.stderr.fileno()), name="exec errors"))
            failure = await read_all(error)
            await asyncio.wait(outputs)
            return exit_status(failure)


async def _copy(stream: SpdyStream, descriptor: int) -> None:
    while block := await stream.read():
        while block:
            # Blocking on purpose: a reader of ours that is slow must slow the command down, too.
            block = block[os.write(descriptor, block) :]


async def _send_input(stream: SpdyStream) -> None:
    async for block in _input(sys.stdin.fileno()):
        await stream.write(block)
    await stream.finish()


async def _input(descriptor: int) -> AsyncIterator[bytes]:
    """Blocks of standard input, from a terminal, a pipe or a file."""
    loop = asyncio.get_running_loop()
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # files are always ready and cannot be waited for
        while block := os.read(descriptor, INPUT_BLOCK):
            yield block
        return
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            block = os.read(descriptor, INPUT_BLOCK)
            if not block:
                return
            yield block
    finally:
        loop.remove_reader(descriptor)


async def _send_sizes(stream: SpdyStream) -> None:
    """The terminal's size now and whenever it changes."""
    changed = asyncio.Event()
    changed.set()
    asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, changed.set)
    while True:
        await changed.wait()
        changed.clear()
        columns, lines = shutil.get_terminal_size()
        await stream.write(msgspec.json.encode({"Width": columns, "Height": lines}))


@contextmanager
def raw_terminal() -> Iterator[None]:
    """Every key goes to the command, also Ctrl-C; the terminal is given back as it was."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def no_terminal() -> Iterator[None]:
    yield


@click.command("port-forward", short_help="reach a port of a pod from here")
@pod_argument
@click.argument("ports", metavar="[LOCAL:]PORT…", nargs=-1, required=True)
@click.option("--address", default="127.0.0.1", help="Local address to listen on.", show_default=True)
@namespace_option
@on_node
def port_forward_command(node: NodeClient, pod: str, ports: Sequence[str], address: str, namespace: str) -> None:
    """Listen here and pass connections on to the pod: pykubelet port-forward web 8080:80."""
    pairs = [parse_ports(text) for text in ports]
    found = find_on(node, namespace, bare_pod(pod))
    with suppress(KeyboardInterrupt):
        asyncio.run(forward(node, path_of("portForward", namespace, name_of(found)), pairs, address))


def parse_ports(text: str) -> tuple[int, int]:
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
        tasks = await stack.enter_async_context(TaskSet("port forward", on_error=_report))
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
            failure = (await read_all(error)).decode(errors="replace").strip()
            if failure:
                click.echo(f"pykubelet: port {port}: {failure}", err=True)
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


def _report(error: BaseException) -> None:
    click.echo(f"pykubelet: a forwarded connection broke: {error}", err=True)
