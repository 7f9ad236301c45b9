"""What the pull policy means for one image at one moment. Pure.

Covers: the default policy, whether to look before pulling, and the choice between the image at hand, a
pull, waiting out a back-off, and refusing. Does not cover: carrying it out (pull.py).
"""

from __future__ import annotations

import enum

from pykubelet.images.reference import DEFAULT_TAG, Reference

ALWAYS = "Always"
IF_NOT_PRESENT = "IfNotPresent"
NEVER = "Never"


class Choice(enum.Enum):
    USE = "use the image at hand"
    PULL = "pull it"
    WAIT = "a pull is due, but the last one failed too lately"
    REFUSE = "a pull is due, but the policy forbids it"


def effective_policy(policy: str | None, reference: Reference) -> str:
    """The policy as given; without one, Always for `latest` and IfNotPresent for everything else."""
    if policy:
        return policy
    moving = not reference.digest and reference.tag in ("", DEFAULT_TAG)
    return ALWAYS if moving else IF_NOT_PRESENT


def looks_first(policy: str) -> bool:
    """Whether the runtime is asked for the image before anything else; Always pulls in any case."""
    return policy != ALWAYS


def choose(policy: str, *, usable: bool, waiting: bool) -> Choice:
    """`usable`: the image is on the node and this pod may use it. `waiting`: its back-off is running."""
    if policy != ALWAYS and usable:
        return Choice.USE
    if policy == NEVER:
        return Choice.REFUSE
    return Choice.WAIT if waiting else Choice.PULL
