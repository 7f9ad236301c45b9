"""Build the image subsystem: pulls with their credentials and records, and garbage collection."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct

from pykubelet.clients.cri.port import CriClient
from pykubelet.context import Context
from pykubelet.images.credentials import PullSecrets, RegistryCredentials, SecretReader
from pykubelet.images.gc import ImageGc, ImageGcPolicy
from pykubelet.images.keyring import NodeDockerConfig
from pykubelet.images.provider import CredentialProvider, HostPrograms, ServiceAccounts
from pykubelet.images.provider_config import config_hash, load_providers
from pykubelet.images.pull import ImagePuller, PullSettings
from pykubelet.images.record_files import RecordFiles
from pykubelet.images.records import Policy, PullRecords, Verification
from pykubelet.settings.settings import Settings

ENSURE_GATE = "KubeletEnsureSecretPulledImages"
TOKEN_GATE = "KubeletServiceAccountTokenForCredentialProviders"


class Images(Struct, frozen=True, kw_only=True):
    puller: ImagePuller
    gc: ImageGc
    records: PullRecords | None
    """None when the gate is off."""


def build(
    ctx: Context,
    cri: CriClient,
    root: Path,
    *,
    secrets: SecretReader | None = None,
    accounts: ServiceAccounts | None = None,
    also_used: Callable[[], Iterable[str]] = tuple,
) -> Images:
    """`secrets` and `accounts` come with an API server; `also_used`: images that must not be removed.

    Reads the configuration of credential plugins and raises SettingsError when it is bad.
    """
    settings = ctx.settings
    records = None
    if settings.gates.enabled(ENSURE_GATE):
        verification = _verification(settings)
        records = PullRecords(
            files=RecordFiles(root), images=cri, verification=verification, clock=ctx.clock, metrics=ctx.metrics
        )
    credentials = RegistryCredentials(
        secrets=PullSecrets(reader=secrets, events=ctx.events),
        node=NodeDockerConfig(root_dir=root, working_dir=Path.cwd(), home=_home(), clock=ctx.clock),
        plugins=_plugins(ctx, accounts),
    )
    puller = ImagePuller(ctx, cri, settings=_pull_settings(settings), credentials=credentials, records=records)
    gc = ImageGc(ctx, cri, policy=_gc_policy(settings), records=records, also_used=also_used)
    return Images(puller=puller, gc=gc, records=records)


def _plugins(ctx: Context, accounts: ServiceAccounts | None) -> list[CredentialProvider]:
    settings = ctx.settings
    config = settings.flags.image_credential_provider_config
    if not config:
        return []
    bin_dir = Path(settings.flags.image_credential_provider_bin_dir)
    specs = load_providers(Path(config), bin_dir, tokens=settings.gates.enabled(TOKEN_GATE))
    programs, clock, metrics = HostPrograms(), ctx.clock, ctx.metrics
    info = metrics.gauge("kubelet_credential_provider_config_info", "Which configuration is in force.", ("hash",))
    info.set(1, config_hash(Path(config)))
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
