"""`pykubelet completion bash|zsh|fish`: the code that makes a shell complete commands, pods and containers.

source <(pykubelet completion bash)
"""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pykubelet.cli.main import PROGRAM, commands

VARIABLE = f"_{PROGRAM.upper()}_COMPLETE"


@click.command("completion", short_help="print completion code for a shell")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print completion code: source <(pykubelet completion bash)."""
    click.echo(source(shell))


def source(shell: str) -> str:
    made = get_completion_class(shell)
    assert made is not None
    text = made(commands, {}, PROGRAM, VARIABLE).source_template % made(commands, {}, PROGRAM, VARIABLE).source_vars()
    # Called without a word the program would be the agent; `get` is any word, it is not run when completing.
    for call in (f"{shell}_complete $1", f"{shell}_complete {PROGRAM}", f"(commandline -t) {PROGRAM}"):
        text = text.replace(call, f"{call} get")
    return text
