"""What the steps of a pod's life are called."""

from __future__ import annotations

from pykubelet.recorder import Step


def step_text(step: Step, subject: str) -> str:
    text = STEP_TEXTS[step]
    return f"{text} ({subject})" if subject else text


STEP_TEXTS = {
    Step.SEEN: "the agent saw it",
    Step.ADMISSION: "admission",
    Step.CGROUP: "making its cgroup",
    Step.VOLUMES: "mounting volumes",
    Step.CLAIMS: "getting its devices and claims",
    Step.TURN: "waiting for its turn at the runtime",
    Step.SANDBOX: "making the sandbox",
    Step.PULL: "getting the image",
    Step.CREATE: "creating the container",
    Step.START: "starting the container",
    Step.HOOK: "running a hook",
    Step.PROBE: "probing",
    Step.EXIT: "a container ended",
    Step.BACKOFF: "waiting before the next start",
    Step.OOM: "the kernel killed a process",
    Step.EVICTION: "eviction",
    Step.KILL: "stopping",
    Step.CLEANUP: "giving back what it held",
    Step.SYNC: "bringing it to what its spec says",
}
