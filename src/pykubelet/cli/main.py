"""The human commands. Each is imported only when it is run; the list and its short texts are here.

Every failure becomes one line on standard error and an exit status (errors.py); no traceback reaches a user.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Sequence

import click

from pykubelet.cli.errors import CommandFailed, known_failure
from pykubelet.model.errors import PykubeletError

PROGRAM = "pykubelet"

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up.up", "run pods from files on this machine"),
    "down": ("up.down", "stop the pods, then the runtime that `up` started"),
    "status": ("status", "say whether an agent runs here, and how its pods are"),
    "get": ("get", "list pods"),
    "describe": ("describe", "show a pod in full"),
    "explain": ("explain", "say why a pod is not well, and what to do"),
    "logs": ("logs", "print what a container wrote"),
    "exec": ("streams.exec_command", "run a command in a container"),
    "port-forward": ("streams.port_forward_command", "reach a port of a pod from here"),
    "top": ("top", "show who uses cpu and memory"),
    "restart": ("restart", "restart a pod or a container in place"),
    "events": ("events", "show what happened on this node"),
    "image": ("image", "list, pull, remove or load images"),
    "shutdown": ("shutdown", "end all pods in order before this machine goes down"),
    "hollow": ("hollow", "run many nodes without machines, to test a control plane"),
    "check": ("check", "say what is wrong with pod manifests"),
    "completion": ("completion", "print completion code for a shell"),
}
"""Name to the module that has the command (and its name there if it is not `command`), and what it is for."""


class LazyCommands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(".")
        found = getattr(importlib.import_module(f"pykubelet.cli.{module}"), name or "command")
        assert isinstance(found, click.Command)
        if cmd_name != "up":  # which goes on importing, and enables it when the agent runs
            gc.enable()
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS:
            raise click.UsageError(f"unknown command {args[0]}; there are: {', '.join(COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="With kubelet flags instead of a command it is the node agent: pykubelet --config FILE …",
)
def commands() -> None:
    """Pods on this machine: run them, look at them, find out what is wrong with them."""


def run_command(arguments: Sequence[str]) -> int:
    words = list(arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        status = commands.main(words, PROGRAM, complete_var=f"_{PROGRAM.upper()}_COMPLETE", standalone_mode=False)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except CommandFailed as refusal:
        print(f"pykubelet: {refusal}", file=sys.stderr)
        return refusal.status
    except PykubeletError as error:
        print(f"pykubelet: {error}", file=sys.stderr)
        return 1
    except ExceptionGroup as group:
        failure = known_failure(group)
        if failure is None:
            raise
        print(f"pykubelet: {failure}", file=sys.stderr)
        return failure.status
    except BrokenPipeError:
        # The reader of our output is gone; nothing may be flushed into the closed pipe at exit.
        sys.stdout = None
        return 141
    return status if isinstance(status, int) else 0
