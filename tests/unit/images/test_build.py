"""Settings become parts: the gate, the policies, plugins that end the start."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pykubelet.api.types import Secret
from pykubelet.images.build import Images, build
from pykubelet.images.credentials import SecretReader
from pykubelet.images.gc import ImageGcPolicy
from pykubelet.images.pull import ImageError
from pykubelet.kit.clock import LoopClock
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import LoadedSettings, load_settings
from tests.builders import a_context
from tests.fakes.fake_cri import FakeCri
from tests.fakes.recorded_events import RecordedEvents
from tests.unit.images.making import a_pulling_pod, a_secret


def parts(
    folder: Path, *flags: str, config: dict[str, object] | None = None, references: SecretReader | None = None
) -> tuple[Images, FakeCri, RecordedEvents]:
    file = folder / "kubelet.json"
    kind = {"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration"}
    file.write_text(json.dumps(kind | (config or {})))
    loaded = load_settings([f"--config={file}", *flags], environ={})
    assert isinstance(loaded, LoadedSettings)
    clock, events = LoopClock(), RecordedEvents()
    cri = FakeCri(clock)
    ctx = a_context(settings=loaded.settings, clock=clock, events=events)
    made = build(ctx, cri, folder, secrets=references)
    return made, cri, events


async def test_defaults_pull_and_write_records(tmp_path: Path) -> None:
    made, cri, events = parts(tmp_path)
    cri.add_to_registry("r.io/a:1", needs_auth=("u", "p"))
    (tmp_path / "config.json").write_text('{"auths": {"r.io": {"auth": "dTpw"}}}')
    await made.puller.ensure_image(a_pulling_pod(), "r.io/a:1", None)
    assert len(list((tmp_path / "image_manager" / "pulled").iterdir())) == 1
    await made.puller.ensure_image(a_pulling_pod("other"), "r.io/a:1", None)
    assert events.pods[-1][1].endswith("already present on machine and can be accessed by the pod")
    assert made.gc._policy == ImageGcPolicy()


class References:
    async def secret(self, namespace: str, name: str) -> Secret | None:
        return a_secret("s", {"r.io": {"username": "u", "password": "p"}}) if name == "s" else None


async def test_pull_secrets_of_one_pod_do_not_serve_another(tmp_path: Path) -> None:
    made, cri, events = parts(tmp_path, references=References())
    image = cri.add_to_registry("r.io/a:1", needs_auth=("u", "p"))
    assert await made.puller.ensure_image(a_pulling_pod("one", secrets=("s",)), "r.io/a:1", "IfNotPresent") == image.id
    with pytest.raises(ImageError) as caught:
        await made.puller.ensure_image(a_pulling_pod("two", secrets=("gone",)), "r.io/a:1", "IfNotPresent")
    assert caught.value.problem.reason == "ErrImagePull"
    assert [reason for reason, _ in events.pods] == [
        "Pulling",
        "Pulled",
        "FailedToRetrieveImagePullSecret",
        "Pulling",
        "Failed",
    ]
    with pytest.raises(ImageError) as caught:
        await made.puller.ensure_image(a_pulling_pod("three"), "r.io/a:1", "Never")
    assert caught.value.problem.reason == "ErrImageNeverPull"
    assert await made.puller.ensure_image(a_pulling_pod("four", secrets=("s",)), "r.io/a:1", "Never") == image.id


async def test_without_the_gate(tmp_path: Path) -> None:
    made, cri, events = parts(tmp_path, "--feature-gates=KubeletEnsureSecretPulledImages=false")
    assert made.records is None
    cri.add_to_registry("r.io/a:1")
    await made.puller.ensure_image(a_pulling_pod(), "r.io/a:1", None)
    await made.puller.ensure_image(a_pulling_pod(), "r.io/a:1", None)
    assert not (tmp_path / "image_manager").exists()
    assert events.pods[-1][1].endswith("already present on machine")


def test_gc_settings(tmp_path: Path) -> None:
    config: dict[str, object] = {
        "imageGCHighThresholdPercent": 90,
        "imageGCLowThresholdPercent": 70,
        "imageMinimumGCAge": "5m",
        "imageMaximumGCAge": "24h",
    }
    made, _, _ = parts(tmp_path, config=config)
    assert made.gc._policy == ImageGcPolicy(high_percent=90, low_percent=70, min_age=300.0, max_age=86400.0)


def test_bad_plugins_end_the_start(tmp_path: Path) -> None:
    flags = (f"--image-credential-provider-config={tmp_path / 'x'}", f"--image-credential-provider-bin-dir={tmp_path}")
    with pytest.raises(SettingsError, match="x: No such file or directory"):
        parts(tmp_path, *flags)
