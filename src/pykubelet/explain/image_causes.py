"""Causes that are about images: the registry refuses or is away, the name is wrong, the pull takes long."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pykubelet.explain.cause import Cause, Finding, container_finding, waiting_findings
from pykubelet.explain.facts import PodFacts
from pykubelet.explain.signs import image_trouble
from pykubelet.explain.texts import first_line, span
from pykubelet.explain.view import State
from pykubelet.model import reasons
from pykubelet.recorder import Outcome, Step

SLOW_PULL = 60.0
"""Seconds after which a pull counts as slow."""
PULL_REASONS = (reasons.ERR_IMAGE_PULL, reasons.IMAGE_PULL_BACK_OFF, reasons.REGISTRY_UNAVAILABLE)


def _pulls(facts: PodFacts, kind: str) -> Iterator[Finding]:
    for container in facts.containers():
        if container.waiting_reason not in PULL_REASONS:
            continue
        image = container.spec.image or ""
        failed = next(
            (
                e
                for e in reversed(facts.life)
                if e.step is Step.PULL and e.subject == image and e.outcome is Outcome.FAILED
            ),
            None,
        )
        text = failed.message if failed is not None else container.waiting_message
        silent = container.waiting_reason == reasons.REGISTRY_UNAVAILABLE
        if ("unreachable" if silent else image_trouble(text)) != kind:
            continue
        since = min((e.at for e in facts.life if e.step is Step.PULL and e.subject == image), default=None)
        values = {"image": image, "text": first_line(text), "reason": container.waiting_reason}
        yield container_finding(container, values, since=since, next_in=facts.next_run_in)


@Cause(
    id="image-missing",
    title="The image does not exist",
    state=State.STUCK,
    chain=(
        "{kind} {container} cannot start ({reason})",
        "image {image} does not exist in its registry",
        "it said: {text}",
    ),
    next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
    advice=(
        "correct name and tag in the manifest; a changed manifest is used at once",
        "or load it: `pykubelet image load FILE.tar`, with imagePullPolicy IfNotPresent or Never",
    ),
    shown="ErrImagePull, ImagePullBackOff",
)
def image_missing(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "missing"))


@Cause(
    id="registry-denied",
    title="The registry refuses the pull",
    state=State.STUCK,
    chain=(
        "{kind} {container} cannot start ({reason})",
        "the registry does not give out image {image}: not allowed, or no such image",
        "it said: {text}",
    ),
    next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
    advice=(
        "check the name of the image: many registries say `denied` for what does not exist",
        "give the pod credentials: spec.imagePullSecrets, or a credential provider of the node",
    ),
    shown="ErrImagePull, ImagePullBackOff",
)
def registry_denied(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "denied"))


@Cause(
    id="registry-unreachable",
    title="The registry cannot be reached",
    state=State.STUCK,
    chain=(
        "{kind} {container} cannot start ({reason})",
        "the registry of image {image} cannot be reached or does not answer properly",
        "it said: {text}",
    ),
    next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
    advice=(
        "check name resolution, proxy and firewall on the node; the runtime pulls, not the agent: it needs the "
        "proxy settings",
        "a registry of your own with its own certificate needs a hosts.toml in the runtime's certs.d folder",
        "without a network, load the image: `pykubelet image load FILE.tar`",
    ),
    shown="ErrImagePull, ImagePullBackOff, RegistryUnavailable",
)
def registry_unreachable(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "unreachable"))


@Cause(
    id="image-disk-full",
    title="There is no room for the image",
    state=State.STUCK,
    chain=("{kind} {container} cannot start ({reason})", "the node has no room for image {image}: {text}"),
    next="The agent pulls again {when}; unused images are removed when the disk passes its threshold.",
    advice=("free disk on the node: `pykubelet image ls`, `pykubelet image rm IMAGE`",),
    shown="ErrImagePull, ImagePullBackOff",
)
def image_disk(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "disk"))


@Cause(
    id="image-pull-failed",
    title="The image cannot be pulled",
    state=State.STUCK,
    chain=("{kind} {container} cannot start ({reason})", "image {image} cannot be pulled: {text}"),
    next="The agent pulls again {when}; the wait doubles up to 5 minutes.",
    advice=("try it by hand: `pykubelet image pull {image}`", "the runtime's own log says more"),
    shown="ErrImagePull, ImagePullBackOff",
)
def image_other(facts: PodFacts) -> Sequence[Finding]:
    return list(_pulls(facts, "other"))


@Cause(
    id="image-never-pulled",
    title="The image is not on the node and may not be pulled",
    state=State.STUCK,
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
)
def image_never(facts: PodFacts) -> Sequence[Finding]:
    return waiting_findings(facts, reasons.ERR_IMAGE_NEVER_PULL)


@Cause(
    id="image-name-invalid",
    title="The image's name is not a name",
    state=State.STUCK,
    chain=("{kind} {container} cannot start ({reason})", "`{image}` is not the name of an image: {text}"),
    next="Nothing until the manifest changes.",
    advice=("write it as [registry/]name[:tag][@digest], in lower case",),
    shown="InvalidImageName",
)
def image_name(facts: PodFacts) -> Sequence[Finding]:
    return waiting_findings(facts, reasons.INVALID_IMAGE_NAME)


@Cause(
    id="image-signature",
    title="The image's signature is not accepted",
    state=State.STUCK,
    chain=("{kind} {container} cannot start ({reason})", "the runtime's policy refuses image {image}: {text}"),
    next="The agent pulls again {when}.",
    advice=("use a signed image, or change the signature policy of the runtime",),
    shown="SignatureValidationFailed",
)
def image_signature(facts: PodFacts) -> Sequence[Finding]:
    return waiting_findings(facts, reasons.SIGNATURE_VALIDATION_FAILED)


@Cause(
    id="image-slow",
    title="The pull takes long, or the registry hangs",
    state=State.STUCK,
    chain=("{kind} {container} waits for its image", "image {image} has been pulled for {took} without an end"),
    next="The agent waits: a pull has no time limit, and other pods are not held up by it.",
    advice=(
        "large images take their time; `pykubelet events {name}` says when it began",
        "if the registry hangs, the pull fails when the runtime loses patience (image_pull_progress_timeout of "
        "containerd)",
    ),
    shown="ContainerCreating",
    brief="{kind} {container} waits for image {image}, and the pull does not end",
)
def image_slow(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _pulling(facts) if facts.now - (found.since or facts.now) >= SLOW_PULL]


@Cause(
    id="image-pulling",
    title="The image is being pulled",
    state=State.STARTING,
    chain=("{kind} {container} waits for its image", "image {image} has been pulled for {took}"),
    next="The container starts when the image is there.",
    advice=(),
    shown="ContainerCreating",
)
def image_pulling(facts: PodFacts) -> Sequence[Finding]:
    return [found for found in _pulling(facts) if facts.now - (found.since or facts.now) < SLOW_PULL]


def _pulling(facts: PodFacts) -> Iterator[Finding]:
    for container in facts.containers():
        image = container.spec.image or ""
        entry = facts.under_way(Step.PULL, image)
        if entry is not None and not container.is_running:
            values = {"image": image, "took": span(facts.now - entry.at)}
            yield container_finding(container, values, since=entry.at, next_in=None)
