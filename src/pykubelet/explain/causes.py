"""The table of causes: every way a pod can be stuck, restarting or ending, written once.

Each row says how the cause is found, what is wrong (from the symptom down to the root), what the agent does next and
what a person can do. The command, the node's server and docs/troubleshooting.md all show these very texts. The order
is the order of precedence: the first row that speaks about a container (or ends the search) wins.
Does not cover: how the facts are found (find_pod.py, find_container.py) and put together (explain.py).
"""

from __future__ import annotations

from typing import Final

from pykubelet.explain import find_container as container
from pykubelet.explain import find_pod as pod
from pykubelet.explain.cause import Cause, State
from pykubelet.explain.table_container import CONTAINER_CAUSES
from pykubelet.explain.table_pod import POD_CAUSES

OTHER_CAUSES: Final[tuple[Cause, ...]] = (
    # --- the rest -------------------------------------------------------------------------------
    Cause(
        id="sync-failing",
        title="Something else keeps failing",
        state=State.STUCK,
        find=pod.sync_failing,
        chain=("the pod cannot be brought to what its spec says (try {tries})", "{problem}"),
        next="The agent tries again {when}.",
        advice=("look at the agent's log for this pod", "`pykubelet events {name}`"),
        shown="any",
        brief="the pod cannot be brought to what its spec says: {problem}",
    ),
    Cause(
        id="host-hangs",
        title="The host does not answer",
        state=State.NOTE,
        find=pod.host_hangs,
        chain=("something the agent asked the host for this pod has not come back", "{call}, for {took}"),
        next="The agent goes on without it and asks again when it has come back; other pods are not affected.",
        advice=(
            "check that the file server behind the pod's volumes answers from this node",
            "processes in state D (`ps -eo pid,stat,wchan,cmd`) show which mount hangs",
        ),
        shown="any",
    ),
    Cause(
        id="waits-for-turn",
        title="A pod of the same name is still ending",
        state=State.STARTING,
        find=pod.waits_for_turn,
        chain=("the pod has not been started yet", "another static pod of this name is still being stopped"),
        next="The agent starts it as soon as the other has ended.",
        advice=(),
        shown="Pending",
    ),
    Cause(
        id="image-pulling",
        title="The image is being pulled",
        state=State.STARTING,
        find=container.image_pulling,
        chain=("{kind} {container} waits for its image", "image {image} has been pulled for {took}"),
        next="The container starts when the image is there.",
        advice=(),
        shown="ContainerCreating",
    ),
    Cause(
        id="init-running",
        title="An init container is at work",
        state=State.STARTING,
        find=container.init_running,
        chain=("the containers of the pod wait for init container {container}", "it has been running for {took}"),
        next="The next one starts when it has ended with 0.",
        advice=("see what it does: `pykubelet logs {name} -c {container} -f`",),
        shown="Init:0/1",
    ),
    Cause(
        id="starting",
        title="The pod is starting",
        state=State.STARTING,
        find=container.starting,
        chain=("the pod is on its way", "last seen at: {step}"),
        next="The agent goes on by itself.",
        advice=(),
        shown="Pending, ContainerCreating",
    ),
)
"""What is left when nothing above has an answer, and pods that are merely on their way."""

CAUSES: Final[tuple[Cause, ...]] = (*POD_CAUSES, *CONTAINER_CAUSES, *OTHER_CAUSES)
