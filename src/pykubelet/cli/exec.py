"""`pykubelet exec POD -- COMMAND`: run a command in a container, with this terminal if asked; ends with its status."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress

import click
import msgspec

from pykubelet.cli.client import NodeClient, path_of
from pykubelet.cli.options import bare_pod, container_option, namespace_option, on_node, pod_argument
from pykubelet.cli.pods import container_of, find_on
from pykubelet.cli.streaming import EXEC_PROTOCOL, exit_status, read_all, spdy
from pykubelet.clients.http.spdy import SpdyStream
from pykubelet.kit.tasks import TaskSet
from pykubelet.model.pod import name_of

BLOCK = 16 * 1024


@click.command("exec", short_help="run a command in a container", context_settings={"ignore_unknown_options": False})
@pod_argument
@container_option
@click.option("-i", "--stdin", "with_stdin", is_flag=True, help="Pass standard input on.")
@click.option("-t", "--tty", "with_tty", is_flag=True, help="Give the command a terminal.")
@click.argument("words", metavar="-- COMMAND [ARG]…", nargs=-1, type=click.UNPROCESSED, required=True)
@namespace_option
@on_node
def command(
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
        return asyncio.run(run(node, path, query, stdin=with_stdin, terminal=with_tty))


async def run(node: NodeClient, path: str, query: Sequence[tuple[str, str]], *, stdin: bool, terminal: bool) -> int:
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
            said = await read_all(error)
            await asyncio.wait(outputs)
            return exit_status(said)


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
    """What arrives on standard input, whatever it is."""
    loop = asyncio.get_running_loop()
    if stat.S_ISREG(os.fstat(descriptor).st_mode):  # files are always ready and cannot be waited for
        while block := os.read(descriptor, BLOCK):
            yield block
        return
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            block = os.read(descriptor, BLOCK)
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
