"""The command: with kubelet flags it is the agent, with a word it is a human command."""

from __future__ import annotations

import gc
import os
import sys

OBJECTS_BETWEEN_LOOKS = 20_000
"""Modules, pods and messages make many objects and next to no cycles; Python would look for them every 700."""


def main() -> int:
    gc.set_threshold(OBJECTS_BETWEEN_LOOKS)
    # What start-up makes stays. Looked through again from when a command begins its work, or the agent runs.
    gc.disable()
    # gRPC prepares for children that go on using its channels, and complains when it cannot. Ours only run programs.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    arguments = sys.argv[1:]
    if arguments and not arguments[0].startswith("-"):
        # Imported late: the agent must not carry what only people need.
        from pykubelet.cli.main import run_command

        return run_command(arguments)
    from pykubelet.cli.agent_flags import run_agent

    return run_agent(arguments)


if __name__ == "__main__":
    sys.exit(main())
