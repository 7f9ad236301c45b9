"""References of a pod: no field that names an object is left out, whoever asks."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest

from pykubelet.api.references import pod_references, volume_references
from pykubelet.api.types import (
    ApiStruct,
    ClusterTrustBundleProjection,
    ConfigMapEnvSource,
    CSIVolumeSource,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    EphemeralVolumeSource,
    LocalObjectReference,
    ProjectedVolumeSource,
    SecretKeySelector,
    SecretVolumeSource,
    ServiceAccountTokenProjection,
    Volume,
    VolumeProjection,
)
from tests.builders import a_container, a_pod


def wire_name(kind: type[ApiStruct], field: str) -> str:
    return dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))[field]


def fields_that_name_a_secret() -> Iterator[Any]:
    """From the types themselves: a kind of volume that Kubernetes adds is found here before its users miss it."""
    for field, hint in get_type_hints(Volume).items():
        source = next((each for each in get_args(hint) if each is not NoneType), None)
        if source is None:
            continue
        for inner, inner_hint in get_type_hints(source).items():
            refers = LocalObjectReference in get_args(inner_hint)
            if refers or inner == "secret_name":
                value = LocalObjectReference(name="x") if refers else "x"
                at = f"v.{wire_name(Volume, field)}" + (f".{wire_name(source, inner)}" if refers else "")
                yield pytest.param(Volume(name="v", **{field: source(**{inner: value})}), at, id=f"{field}.{inner}")


@pytest.mark.parametrize("volume, at", list(fields_that_name_a_secret()))
def test_every_secret_that_a_volume_can_name(volume: Volume, at: str) -> None:
    found = [each for each in volume_references(a_pod(), volume, "v") if each.kind == "Secret"]
    assert [(each.namespace, each.name, each.at, each.in_volume) for each in found] == [("default", "x", at, True)]


def test_there_are_such_fields() -> None:
    assert len(list(fields_that_name_a_secret())) >= 10


def test_references_of_a_pod() -> None:
    variable = EnvVar(name="A", value_from=EnvVarSource(secret_key_ref=SecretKeySelector(name="word", key="k")))
    sources = [
        VolumeProjection(service_account_token=ServiceAccountTokenProjection(path="t")),
        VolumeProjection(cluster_trust_bundle=ClusterTrustBundleProjection(signer_name="s", path="ca")),
    ]
    pod = a_pod(
        image_pull_secrets=[LocalObjectReference(name="pull"), LocalObjectReference()],
        init=[a_container("first", env=[variable])],
        containers=[a_container(env_from=[EnvFromSource(config_map_ref=ConfigMapEnvSource(name="all"))])],
        volumes=[
            Volume(name="a", secret=SecretVolumeSource(secret_name="files")),
            Volume(name="b", ephemeral=EphemeralVolumeSource()),
            Volume(name="c", csi=CSIVolumeSource(driver="d")),
            Volume(name="d", projected=ProjectedVolumeSource(sources=sources)),
        ],
    )
    assert [(each.kind, each.namespace, each.name, each.in_volume) for each in pod_references(pod)] == [
        ("Secret", "default", "pull", False),
        ("Secret", "default", "word", False),
        ("ConfigMap", "default", "all", False),
        ("Secret", "default", "files", True),
        ("PersistentVolumeClaim", "default", "web-b", True),
        ("CSIDriver", "", "d", True),
        ("ServiceAccount", "default", "default", True),
        ("ClusterTrustBundle", "", "", True),
    ]
