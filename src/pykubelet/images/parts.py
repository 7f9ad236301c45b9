"""Everything about images, made from the settings in one place for the composition root.

The configuration of credential plugins is read here, for the agent must not start with a bad one (SettingsError).
Does not cover: the parts themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from pykubelet.images.access import Policy, Verification
from pykubelet.images.credentials import NoPullSecrets, ReferencedPullSecrets, RegistryCredentials, SecretReader
from pykubelet.images.docker_config import NodeDockerConfig
from pykubelet.images.gc import ImageGc, ImageRuntime
from pykubelet.images.gc_plan import ImageGcPolicy
from pykubelet.images.provider import CredentialProvider, HostPrograms, ServiceAccounts
from pykubelet.images.provider_config import load_providers
from pykubelet.images.pull import ImagePuller, ImageService, PullSettings
from pykubelet.images.record_files import RecordFiles
from pykubelet.images.records import PullRecords
from pykubelet.kit.clock import Clock
from pykubelet.kit.metrics import Registry
from pykubelet.model.events import EventSink
from pykubelet.model.life import LifeRecorder
from pykubelet.settings.settings import Settings

ENSURE_GATE = "KubeletEnsureSecretPulledImages"
TOKEN_GATE = "KubeletServiceAccountTokenForCredentialProviders"


class Runtime(ImageService, ImageRuntime, Protocol):
    """All that images ask of the runtime."""


class ImageParts(Struct, frozen=True, kw_only=True):
    puller: ImagePuller
    gc: ImageGc
    records: PullRecords | None
    """None when the gate is off."""


def image_parts(
    settings: Settings,
    *,
    root: Path,
    cri: Runtime,
    clock: Clock,
    events: EventSink,
    life: LifeRecorder,
    metrics: Registry,
    references: SecretReader | None = None,
    accounts: ServiceAccounts | None = None,
    also_used: Callable[[], Iterable[str]] = tuple,
) -> ImageParts:
    """`references` and `accounts` come with an API server; `also_used`: images that must not be removed.

    Raises SettingsError when the configuration of credential plugins is bad.
    """
    records = None
    if settings.gates.enabled(ENSURE_GATE):
        records = PullRecords(
            files=RecordFiles(root), images=cri, verification=_verification(settings), clock=clock, metrics=metrics
        )
    return ImageParts(
        puller=ImagePuller(
            cri=cri,
            clock=clock,
            events=events,
            life=life,
            settings=_pull_settings(settings),
            credentials=RegistryCredentials(
                secrets=ReferencedPullSecrets(reader=references, events=events) if references else NoPullSecrets(),
                node=NodeDockerConfig(root_dir=root, working_dir=Path.cwd(), home=_home(), clock=clock),
                plugins=_plugins(settings, clock, metrics, accounts),
            ),
            access=records,
            metrics=metrics,
        ),
        gc=ImageGc(
            cri=cri,
            policy=_gc_policy(settings),
            events=events,
            clock=clock,
            metrics=metrics,
            records=records,
            also_used=also_used,
        ),
        records=records,
    )


def _plugins(
    settings: Settings, clock: Clock, metrics: Registry, accounts: ServiceAccounts | None
) -> list[CredentialProvider]:
    config = settings.flags.image_credential_provider_config
    if not config:
        return []
    bin_dir = Path(settings.flags.image_credential_provider_bin_dir)
    specs = load_providers(Path(config), bin_dir, tokens=settings.gates.enabled(TOKEN_GATE))
    programs = HostPrograms()
    return [
        CredentialProvider(spec, bin_dir=bin_dir, programs=programs, clock=clock, metrics=metrics, accounts=accounts)
        for spec in specs
    ]


def _verification(settings: Settings) -> Verification:
    images = settings.config.images
    return Verification(
        policy=Policy(images.credentials_verification_policy), allow_list=images.preloaded_images_allowlist
    )


def _pull_settings(settings: Settings) -> PullSettings:
    images = settings.config.images
    return PullSettings(
        serialize=images.serialize_image_pulls,
        max_parallel=images.max_parallel_image_pulls,
        qps=images.registry_pull_qps,
        burst=images.registry_burst,
        checks_access=settings.gates.enabled(ENSURE_GATE),
    )


def _gc_policy(settings: Settings) -> ImageGcPolicy:
    images = settings.config.images
    return ImageGcPolicy(
        high_percent=images.gc_high_threshold_percent,
        low_percent=images.gc_low_threshold_percent,
        min_age=images.image_minimum_gc_age,
        max_age=images.image_maximum_gc_age,
    )


def _home() -> Path | None:
    home = os.environ.get("HOME")
    return Path(home) if home else None
