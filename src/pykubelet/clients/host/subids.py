"""The host ids set aside for pods with user namespaces, where the host's administrator set some aside.

That is the subordinate id range of a user named `kubelet`, as the host's `getsubids` tells it. Without that user or
that program there is none, and pods get ids above the host's own.
"""

from __future__ import annotations

import pwd
import shutil
import subprocess

from pykubelet.model.errors import PykubeletError

USER = "kubelet"
TOOL = "getsubids"
ANSWER_WITHIN = 30.0


def subordinate_ids() -> tuple[int, int] | None:
    """(first, length); None when nothing is set aside. A user without a readable range is an error."""
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return None
    tool = shutil.which(TOOL)
    if tool is None:
        return None
    uids, gids = _ask(tool, USER), _ask(tool, "-g", USER)
    if uids != gids:
        raise PykubeletError(f'mismatched subuids and subgids for user "{USER}": {uids!r} and {gids!r}')
    return parse_subids(uids)


def parse_subids(text: str) -> tuple[int, int]:
    """The one line of `getsubids`: `0: kubelet 65536 7208960`."""
    lines = text.strip("\n").split("\n")
    words = lines[0].split()
    if len(lines) != 1:
        raise PykubeletError(f"{TOOL}: {text!r} must be a single line")
    if len(words) != 4 or not (words[2].isdigit() and words[3].isdigit()):
        raise PykubeletError(f"{TOOL}: invalid line {lines[0]!r}")
    first, length = int(words[2]), int(words[3])
    if first + length > 1 << 32:
        raise PykubeletError(f"{TOOL}: {lines[0]!r} goes beyond 32 bits")
    return first, length


def _ask(*command: str) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_WITHIN, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PykubeletError(f'error retrieving additional ids for user "{USER}": {error}') from error
    return answer.stdout
