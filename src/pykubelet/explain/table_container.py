"""Rows about single containers: images, configuration, hooks, crashes, probes.

Data only; see causes.py for what a row means and why the order matters.
"""

from __future__ import annotations

from typing import Final

from pykubelet.explain import find_container as container
from pykubelet.explain.cause import Cause, State

CONTAINER_CAUSES: Final[tuple[Cause, ...]] = (
    # --- images ---------------------------------------------------------------------------------
    Cause(
        id="registry-denied",
        title="The registry refuses the pull",
        state=State.STUCK,
        find=container.registry_denied,
        chain=(
            "{kind} {container} cannot start ({reason})",
            "the registry does not give out image {image}: not allowed, or no such image",
            "it said: {said}",
        ),
        next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
        advice=(
            "check the name of the image: many registries say `denied` for what does not exist",
            "give the pod credentials: spec.imagePullSecrets, or a credential provider of the node",
        ),
        shown="ErrImagePull, ImagePullBackOff",
    ),
    Cause(
        id="image-missing",
        title="The image does not exist",
        state=State.STUCK,
        find=container.image_missing,
        chain=(
            "{kind} {container} cannot start ({reason})",
            "image {image} does not exist in its registry",
            "it said: {said}",
        ),
        next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
        advice=(
            "correct name and tag in the manifest; a changed manifest is used at once",
            "or load it: `pykubelet image load FILE.tar`, with imagePullPolicy IfNotPresent or Never",
        ),
        shown="ErrImagePull, ImagePullBackOff",
    ),
    Cause(
        id="registry-unreachable",
        title="The registry cannot be reached",
        state=State.STUCK,
        find=container.registry_unreachable,
        chain=(
            "{kind} {container} cannot start ({reason})",
            "the registry of image {image} cannot be reached or does not answer properly",
            "it said: {said}",
        ),
        next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
        advice=(
            "check name resolution, proxy and firewall on the node; the runtime pulls, not the agent: it needs the "
            "proxy settings",
            "a registry of your own with its own certificate needs a hosts.toml in the runtime's certs.d folder",
            "without a network, load the image: `pykubelet image load FILE.tar`",
        ),
        shown="ErrImagePull, ImagePullBackOff, RegistryUnavailable",
    ),
    Cause(
        id="image-disk-full",
        title="There is no room for the image",
        state=State.STUCK,
        find=container.image_disk,
        chain=("{kind} {container} cannot start ({reason})", "the node has no room for image {image}: {said}"),
        next="The agent pulls again {when}; unused images are removed when the disk passes its threshold.",
        advice=("free disk on the node: `pykubelet image ls`, `pykubelet image rm IMAGE`",),
        shown="ErrImagePull, ImagePullBackOff",
    ),
    Cause(
        id="image-pull-failed",
        title="The image cannot be pulled",
        state=State.STUCK,
        find=container.image_other,
        chain=("{kind} {container} cannot start ({reason})", "image {image} cannot be pulled: {said}"),
        next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
        advice=("try it by hand: `pykubelet image pull {image}`", "the runtime's own log says more"),
        shown="ErrImagePull, ImagePullBackOff",
    ),
    Cause(
        id="image-never-pulled",
        title="The image is not on the node and may not be pulled",
        state=State.STUCK,
        find=container.image_never,
        chain=(
            "{kind} {container} cannot start ({reason})",
            "image {image} is not on the node (or not this pod's to use) and imagePullPolicy is Never",
        ),
        next="The agent looks again {when}.",
        advice=(
            "load it: `pykubelet image load FILE.tar`, or pull it: `pykubelet image pull {image}`",
            "or set imagePullPolicy: IfNotPresent",
        ),
        shown="ErrImageNeverPull",
    ),
    Cause(
        id="image-name-invalid",
        title="The image's name is not a name",
        state=State.STUCK,
        find=container.image_name,
        chain=("{kind} {container} cannot start ({reason})", "`{image}` is not the name of an image: {said}"),
        next="Nothing until the manifest changes.",
        advice=("write it as [registry/]name[:tag][@digest], in lower case",),
        shown="InvalidImageName",
    ),
    Cause(
        id="image-signature",
        title="The image's signature is not accepted",
        state=State.STUCK,
        find=container.image_signature,
        chain=("{kind} {container} cannot start ({reason})", "the runtime's policy refuses image {image}: {said}"),
        next="The agent pulls again {when}.",
        advice=("use a signed image, or change the signature policy of the runtime",),
        shown="SignatureValidationFailed",
    ),
    Cause(
        id="image-slow",
        title="The pull takes long, or the registry hangs",
        state=State.STUCK,
        find=container.image_slow,
        chain=("{kind} {container} waits for its image", "image {image} has been pulled for {took} without an end"),
        next="The agent waits: a pull has no time limit, and other pods are not held up by it.",
        advice=(
            "large images take their time; `pykubelet events {name}` says when it began",
            "if the registry hangs, the pull fails when the runtime loses patience (image_pull_progress_timeout of "
            "containerd)",
        ),
        shown="ContainerCreating",
        brief="{kind} {container} waits for image {image}, and the pull does not end",
    ),
    # --- configuration and creation -------------------------------------------------------------
    Cause(
        id="config-missing",
        title="A container needs a ConfigMap, Secret or key that is not there",
        state=State.STUCK,
        find=container.config_missing,
        chain=("{kind} {container} cannot start ({reason})", "its environment needs {object}, which does not exist"),
        next="The agent looks again {when}.",
        advice=(
            "create it in the pod's namespace, or correct the name in env or envFrom",
            "mark the reference `optional: true` if the container can do without",
        ),
        shown="CreateContainerConfigError",
    ),
    Cause(
        id="config-error",
        title="The container's configuration cannot be made",
        state=State.STUCK,
        find=container.config_error,
        chain=("{kind} {container} cannot start ({reason})", "{said}"),
        next="The agent tries again {when}.",
        advice=("correct what the message names in the manifest or in what it refers to",),
        shown="CreateContainerConfigError",
    ),
    Cause(
        id="command-missing",
        title="The container's command cannot be run",
        state=State.STUCK,
        find=container.command_missing,
        chain=(
            "{kind} {container} cannot start",
            "its command is not in image {image} or cannot be run: {said}",
        ),
        next="The agent tries again {when}.",
        advice=(
            "correct command and args; without a shell in the image, `sh -c` cannot work",
            "`exec format error` means an image for another processor",
        ),
        shown="RunContainerError, CrashLoopBackOff",
    ),
    Cause(
        id="create-failed",
        title="The runtime cannot create or start the container",
        state=State.STUCK,
        find=container.create_failed,
        chain=("{kind} {container} cannot start ({reason})", "the runtime said: {said}"),
        next="The agent tries again {when}.",
        advice=("often a mount or a security setting the host cannot give", "the runtime's own log says more"),
        shown="CreateContainerError, RunContainerError",
    ),
    # --- hooks ----------------------------------------------------------------------------------
    Cause(
        id="hook-failed",
        title="The postStart hook fails",
        state=State.RESTARTING,
        find=container.hook_failed,
        chain=("{kind} {container} is stopped right after its start", "its postStart hook failed: {said}"),
        next="The agent starts it again {when}.",
        advice=("a hook runs beside the program, which may not be up yet: let it retry", "correct the hook"),
        shown="PostStartHookError, CrashLoopBackOff",
    ),
    Cause(
        id="hook-hangs",
        title="A hook does not end",
        state=State.STUCK,
        find=container.hook_hangs,
        chain=(
            "the start of the pod does not go on after {kind} {container}",
            "its postStart hook has been running for {took}",
        ),
        next="The agent waits: a postStart hook has no time limit. Containers that come later start after it.",
        advice=(
            "see what it does: `pykubelet exec {name} -c {container} -- ps`",
            "correct the hook so that it ends; `pykubelet restart {name}/{container}` starts over",
        ),
        shown="ContainerCreating",
        brief="the postStart hook of {kind} {container} does not end",
    ),
    # --- crashes --------------------------------------------------------------------------------
    Cause(
        id="restarted-by-hand",
        title="A person restarted the container",
        state=State.NOTE,
        find=container.restarted_by_hand,
        chain=("{kind} {container} ended and was started again", "somebody asked for it with `pykubelet restart`"),
        next="Nothing: it runs on.",
        advice=("the log before the restart: `pykubelet logs {name} -c {container} --previous`",),
        shown="Running with restarts",
    ),
    Cause(
        id="out-of-memory",
        title="The kernel killed the container for its memory",
        state=State.RESTARTING,
        find=container.out_of_memory,
        chain=(
            "{kind} {container} ended after {lived} and {again}. {then}",
            "it used more memory than its limit ({limit}) and the kernel killed it (OOMKilled, exit code {code})",
        ),
        next="The agent starts it again {when}; the wait doubles from 10 s up to 5 minutes.",
        advice=(
            "raise resources.limits.memory, or make the program use less: `pykubelet top pods` shows what it uses",
            "files in emptyDir volumes with medium Memory count, too",
        ),
        shown="OOMKilled, CrashLoopBackOff",
        brief="{kind} {container} used more memory than its limit ({limit}) and the kernel killed it",
    ),
    Cause(
        id="probe-kills",
        title="A failing probe restarts the container",
        state=State.RESTARTING,
        find=container.probe_kills,
        chain=(
            "{kind} {container} {again}. {then}",
            "its {probe} probe ({asks}) failed {threshold} times in a row, so the agent stopped it",
            "the probe saw: {said}",
        ),
        next="The agent starts it again {when} and probes it every {period}.",
        advice=(
            "if the program is only slow to come up, give it a startupProbe or a larger failureThreshold",
            "ask it yourself: `pykubelet exec {name} -c {container} -- …`, `pykubelet port-forward {name} PORT`",
            "the log before the restart: `pykubelet logs {name} -c {container} --previous`",
        ),
        shown="Running with restarts, CrashLoopBackOff",
        brief="{kind} {container} is restarted because its {probe} probe ({asks}) fails",
    ),
    Cause(
        id="init-failed",
        title="An init container fails",
        state=State.RESTARTING,
        find=container.init_failed,
        chain=(
            "the containers of the pod wait for init container {container}",
            "it ended after {lived} with {exit}, and {again}",
        ),
        next="The agent runs it again {when}; the wait doubles from 10 s up to 5 minutes.",
        advice=(
            "see what it said: `pykubelet logs {name} -c {container}{previous}`",
            "correct what it complains about",
        ),
        shown="Init:Error, Init:CrashLoopBackOff",
        brief="init container {container} keeps failing ({exit})",
    ),
    Cause(
        id="failed-for-good",
        title="A container failed and is not restarted",
        state=State.FAILED,
        find=container.failed_for_good,
        chain=(
            "{kind} {container} has failed and will not run again (restartPolicy {policy})",
            "it ended after {lived} with {exit}",
        ),
        next="Nothing: the pod stays as it is until it is made anew.",
        advice=(
            "see what it said: `pykubelet logs {name} -c {container}`",
            "to have it tried again, set restartPolicy: OnFailure",
        ),
        shown="Error",
        brief="{kind} {container} has failed ({exit}) and will not run again (restartPolicy {policy})",
    ),
    Cause(
        id="crash-loop",
        title="The container's program keeps ending",
        state=State.RESTARTING,
        find=container.crash_loop,
        chain=(
            "{kind} {container} {again}. {then}",
            "its program ended after {lived} with {exit}",
        ),
        next="The agent starts it again {when}; the wait doubles from 10 s up to 5 minutes and is forgotten after 10 "
        "good minutes.",
        advice=(
            "see what it said: `pykubelet logs {name} -c {container}{previous}`",
            "a program that ends with 0 and should not be started again needs restartPolicy: OnFailure or Never",
        ),
        shown="Error, Completed, CrashLoopBackOff",
        brief="the program of {kind} {container} keeps ending ({exit})",
    ),
    # --- running, not ready ---------------------------------------------------------------------
    Cause(
        id="probe-startup",
        title="The startup probe has not passed yet",
        state=State.NOT_READY,
        find=container.probe_startup,
        chain=(
            "{kind} {container} runs and does not count as started",
            "its startup probe ({asks}) failed {failures}; after {threshold} failures in a row it is restarted",
            "the probe saw: {said}",
        ),
        next="The agent probes again {when}.",
        advice=("raise failureThreshold × periodSeconds above the time the program needs to come up",),
        shown="Running, not ready",
        brief="the startup probe of {kind} {container} ({asks}) has not passed yet",
    ),
    Cause(
        id="probe-readiness",
        title="The readiness probe fails",
        state=State.NOT_READY,
        find=container.probe_readiness,
        chain=(
            "the pod is not ready: no traffic of services goes to it",
            "the readiness probe of {kind} {container} ({asks}) failed {failures}",
            "the probe saw: {said}",
        ),
        next="The agent probes again {when}; readiness never restarts a container.",
        advice=(
            "ask it yourself: `pykubelet port-forward {name} PORT`, or the same path from inside with `pykubelet exec`",
            "check port and path of the probe, and that the program listens on all addresses, not only on 127.0.0.1",
        ),
        shown="Running, not ready",
        brief="the readiness probe of {kind} {container} ({asks}) fails",
    ),
    Cause(
        id="probe-liveness",
        title="The liveness probe fails",
        state=State.NOT_READY,
        find=container.probe_liveness,
        chain=(
            "{kind} {container} will soon be restarted",
            "its liveness probe ({asks}) failed {failures}; after {threshold} failures in a row it is restarted",
            "the probe saw: {said}",
        ),
        next="The agent probes again {when}.",
        advice=("see what it says: `pykubelet logs {name} -c {container}`",),
        shown="Running",
        brief="the liveness probe of {kind} {container} ({asks}) fails",
    ),
    Cause(
        id="readiness-gate",
        title="A readiness gate is closed",
        state=State.NOT_READY,
        find=container.readiness_gate,
        chain=("every container is ready and the pod is not", "somebody else must set the condition: {gates}"),
        next="Nothing: the condition is set by another program, through the API server.",
        advice=("find the controller that the condition belongs to", "remove the gate from spec.readinessGates"),
        shown="Running, not ready",
    ),
    Cause(
        id="memory-child",
        title="The kernel killed a process in a container",
        state=State.NOTE,
        find=container.memory_child,
        chain=(
            "{kind} {container} runs, but a process inside it was killed by the kernel",
            "{killed}; {limit}",
        ),
        next="Nothing: the container's first process goes on.",
        advice=("raise resources.limits.memory or run fewer workers",),
        shown="Running",
    ),
)
