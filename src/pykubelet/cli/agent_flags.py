"""`pykubelet --config f …`: from flags to settings, and then the agent.

Everything that is wrong with the settings is printed at once on standard error, one line each, with status 1. The agent
itself is imported when there is one to run: not for --help, --version and mistakes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import PrintAndExit, load_settings


def run_agent(arguments: Sequence[str]) -> int:
    try:
        loaded = load_settings(arguments, environ=os.environ)
    except SettingsError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return 1
    if isinstance(loaded, PrintAndExit):
        sys.stdout.write(loaded.text)
        return 0
    from pykubelet.cli.agent import run_loaded

    return run_loaded(loaded)
