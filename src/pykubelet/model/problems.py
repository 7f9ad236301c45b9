"""Why a pod cannot start or go on, as values: made where the fact is known, never read back from texts.

Kept in the pod's record and its life, and rendered here once for status, events, log and `explain`. Trouble of the
whole node (the runtime is down, the network is not ready) is an error in `model/errors.py` instead: no pod has it.
"""

from __future__ import annotations

import enum

from msgspec import Struct

from pykubelet.api.times import format_duration
from pykubelet.model import reasons
from pykubelet.model.errors import PykubeletError


class Problem(Struct, frozen=True, kw_only=True):
    """Base of all problems; `str()` is the line for logs and for the worker's last error."""

    retry_at: float | None = None
    """Wall time of the next try that makes sense; None = the ordinary retry."""
    shown_for: float = 0.0
    """Seconds that the status shows it before the next try, counted from the end of the sync that reports it."""

    @property
    def message(self) -> str:
        """The text users see."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.message


class ProblemError(PykubeletError):
    """Carries a problem up to where it is recorded."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


# --- containers -----------------------------------------------------------------------------------


class ContainerProblem(Problem, frozen=True, kw_only=True):
    """A container could not be started."""

    container: str = ""
    """Empty when the sandbox failed, which concerns all of them."""
    reason: str
    """What the container's waiting state shows."""
    text: str = ""

    @property
    def message(self) -> str:
        return self.text

    def __str__(self) -> str:
        return f"{self.container or 'sandbox'}: {self.reason}: {self.message}"


class CrashLoop(ContainerProblem, frozen=True, kw_only=True):
    """The container ended and must wait until `retry_at` before it is started again."""

    reason: str = reasons.CRASH_LOOP_BACK_OFF
    pod: str
    """As logs name it."""
    delay: float
    exit_code: int = 0

    @property
    def message(self) -> str:
        return f"back-off {format_duration(self.delay)} restarting failed container={self.container} pod={self.pod}"


class PullFailed(ContainerProblem, frozen=True, kw_only=True):
    """The image cannot be had; `reason` says in which way."""

    reason: str = reasons.ERR_IMAGE_PULL
    image: str = ""


class CreateFailed(ContainerProblem, frozen=True, kw_only=True):
    """The container's config cannot be made, or the runtime does not create or start it."""

    missing: str = ""
    """The object, or the key in it, that the config refers to and that does not exist."""


class HookFailed(ContainerProblem, frozen=True, kw_only=True):
    """The postStart hook failed, and the container was stopped."""

    reason: str = reasons.POST_START_HOOK_ERROR


class SandboxFailed(ContainerProblem, frozen=True, kw_only=True):
    """The sandbox cannot be made. `text` is the error of the runtime or of making the config."""

    reason: str = reasons.CREATE_POD_SANDBOX_ERROR

    @property
    def message(self) -> str:
        return f"Failed to create pod sandbox: {self.text}"


class ResizeFailed(Problem, frozen=True, kw_only=True):
    """Changed resources could not be put into force."""

    text: str

    @property
    def message(self) -> str:
        return self.text

    def __str__(self) -> str:
        return f"resize: {self.text}"


class KillCause(enum.Enum):
    """Why a container is stopped; liveness and startup failures may bring a grace period of their own."""

    POD_ENDS = "pod ends"
    LIVENESS = "liveness"
    STARTUP = "startup"
    RESTART_REQUESTED = "restart requested"
    CHANGED = "changed"
    """Its definition is another one now."""
    UNKNOWN = "unknown"
    """The runtime does not know whether it runs."""
    RESIZE = "resize"
    OTHER = "other"


# --- the whole pod --------------------------------------------------------------------------------


class VolumeFailed(Problem, frozen=True, kw_only=True):
    """A volume is not mounted, unmounted or expanded as desired."""

    volume: str
    text: str = ""
    missing: str = ""
    """The object that the volume needs and that does not exist."""
    claim: str = ""
    """Namespace and name of the claim that cannot be used; empty when the claim is not the reason."""
    expanding: str = ""
    """The persistent volume that could not be expanded."""
    is_mounted: bool = False
    """Whether the pod has the volume nevertheless."""
    attempts: int = 0
    since: float | None = None
    """Wall time at which the operation under way began; None when none is."""

    @property
    def message(self) -> str:
        return self.text

    @property
    def event_reason(self) -> str:
        return reasons.VOLUME_RESIZE_FAILED if self.expanding and self.is_mounted else reasons.FAILED_MOUNT

    @property
    def event_message(self) -> str:
        """Upstream's text."""
        if self.expanding and self.is_mounted:
            return f'NodeExpandVolume.NodeExpandVolume failed for volume "{self.expanding}" : {self.text}'
        if self.expanding:
            return f'MountVolume.Setup failed while expanding volume for volume "{self.expanding}" : {self.text}'
        if self.claim:
            name = self.volume
            names = f"unmounted volumes=[{name}], unattached volumes=[], failed to process volumes=[{name}]"
            return f"Unable to attach or mount volumes: {names}: error processing PVC {self.claim}: {self.text}"
        return f'MountVolume.SetUp failed for volume "{self.volume}" : {self.text}'

    def describe(self, now: float) -> str:
        """`volume cfg: configmap default/web not found, 3rd try, next in 4 s`"""
        text = f"volume {self.volume}: {self.text or 'not finished'}"
        if self.attempts:
            text += f", {ordinal(self.attempts)} try"
        if self.since is not None:
            return f"{text}, trying for {_whole(now - self.since)} s"
        if self.text and self.retry_at is not None:
            text += f", next in {_whole(max(0.0, self.retry_at - now))} s"
        return text


def _whole(seconds: float) -> str:
    # Times since 1970 carry noise in their last digits, which must not decide how a half is rounded.
    return f"{round(seconds, 3):.0f}"


def ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{({1: 'st', 2: 'nd', 3: 'rd'}).get(number % 10, 'th')}"


class Shortage(Struct, frozen=True, kw_only=True):
    """What the node has too little of: cpu in millicores, everything else in units or bytes."""

    resource: str
    missing: int
    requested: int = 0
    free: int = 0
    capacity: int = 0
    preempting: bool = False
    """Missing even if every pod of lower priority were stopped."""


class NotAdmitted(Problem, frozen=True, kw_only=True):
    """The node does not run the pod."""

    reason: str
    text: str
    short_of: Shortage | None = None

    @property
    def message(self) -> str:
        return self.text
