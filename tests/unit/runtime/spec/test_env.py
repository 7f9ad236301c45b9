"""A container's environment: order, overriding, every source, optional and missing."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from pykubelet.api.types import (
    ConfigMap,
    ConfigMapEnvSource,
    ConfigMapKeySelector,
    EnvFromSource,
    EnvVar,
    EnvVarSource,
    FileKeySelector,
    ObjectFieldSelector,
    ObjectMeta,
    ResourceFieldSelector,
    Secret,
    SecretEnvSource,
    SecretKeySelector,
    Service,
    ServicePort,
    ServiceSpec,
)
from pykubelet.model.expand import ExpansionTooLong, expand_command, literal_env
from pykubelet.runtime.errors import ConfigProblem
from pykubelet.runtime.spec.env import EnvFile, EnvInputs, build_env
from tests.builders import a_container, a_pod


def b64(value: bytes) -> str:
    return base64.b64encode(value).decode()


MAPS = {"cm": ConfigMap(data={"a": "from-map", "odd key!": "kept"}, binary_data={"bin": b64(b"x")})}
SECRETS = {"s": Secret(data={"a": b64(b"from-secret"), "raw": b64(b"\xff\xfe")})}
SERVICE = Service(
    metadata=ObjectMeta(name="db", namespace="default"),
    spec=ServiceSpec(cluster_ip="10.0.0.9", ports=[ServicePort(port=5432)]),
)


def env_of(container: dict[str, Any], **inputs: Any) -> dict[str, str]:
    pod = a_pod(containers=[a_container(**container)], labels={"l": "v"})
    values: dict[str, Any] = {"config_maps": MAPS, "secrets": SECRETS, **inputs}
    return build_env(pod, pod.spec.containers[0], EnvInputs(**values))


def ref(**source: Any) -> EnvVarSource:
    return EnvVarSource(**source)


def test_values_expand_from_what_came_before_and_from_services() -> None:
    env = env_of(
        {
            "env_from": [EnvFromSource(config_map_ref=ConfigMapEnvSource(name="cm"))],
            "env": [
                EnvVar(name="ONE", value="1"),
                EnvVar(name="TWO", value="$(ONE)-$(a)-$(DB_SERVICE_HOST)-$(LATER)-$$(ONE)"),
                EnvVar(name="LATER", value="x"),
                EnvVar(name="NOTHING"),
            ],
        },
        services=[SERVICE],
    )
    assert env["TWO"] == "1-from-map-10.0.0.9-$(LATER)-$(ONE)"
    assert env["NOTHING"] == ""
    assert env["DB_SERVICE_PORT"] == "5432"


def test_later_sources_override_earlier_ones_and_env_overrides_all() -> None:
    both = [
        EnvFromSource(config_map_ref=ConfigMapEnvSource(name="cm")),
        EnvFromSource(secret_ref=SecretEnvSource(name="s")),
    ]
    assert env_of({"env_from": both})["a"] == "from-secret"
    assert env_of({"env_from": both[::-1]})["a"] == "from-map"
    assert env_of({"env_from": both, "env": [EnvVar(name="a", value="own")]})["a"] == "own"
    own = env_of({"env": [EnvVar(name="DB_SERVICE_HOST", value="mine")]}, services=[SERVICE])
    assert own["DB_SERVICE_HOST"] == "mine"


def test_env_from_adds_the_prefix_and_keeps_odd_keys() -> None:
    env = env_of({"env_from": [EnvFromSource(prefix="P_", config_map_ref=ConfigMapEnvSource(name="cm"))]})
    assert env == {"P_a": "from-map", "P_odd key!": "kept"}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (ref(field_ref=ObjectFieldSelector(field_path="metadata.labels['l']")), "v"),
        (ref(resource_field_ref=ResourceFieldSelector(resource="limits.memory")), "0"),
        (ref(config_map_key_ref=ConfigMapKeySelector(name="cm", key="a")), "from-map"),
        (ref(secret_key_ref=SecretKeySelector(name="s", key="a")), "from-secret"),
        (ref(config_map_key_ref=ConfigMapKeySelector(name="no", key="a", optional=True)), None),
        (ref(config_map_key_ref=ConfigMapKeySelector(name="cm", key="no", optional=True)), None),
        (ref(config_map_key_ref=ConfigMapKeySelector(name="cm", key="bin", optional=True)), None),
        (ref(secret_key_ref=SecretKeySelector(name="no", key="a", optional=True)), None),
        (ref(secret_key_ref=SecretKeySelector(name="s", key="no", optional=True)), None),
        (ref(file_key_ref=FileKeySelector(volume_name="v", path="f", key="K")), "filed"),
        (ref(file_key_ref=FileKeySelector(volume_name="v", path="f", key="NO", optional=True)), None),
        (ref(), ""),
    ],
)
def test_value_from(source: EnvVarSource, wanted: str | None) -> None:
    files = {("v", "f"): EnvFile(path="/vol/f", text="K='filed'\n")}
    assert env_of({"env": [EnvVar(name="X", value_from=source)]}, files=files).get("X") == wanted


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (ref(config_map_key_ref=ConfigMapKeySelector(name="no", key="a")), 'configmap "no" not found'),
        (
            ref(config_map_key_ref=ConfigMapKeySelector(name="cm", key="no")),
            "couldn't find key no in ConfigMap default/cm",
        ),
        (ref(secret_key_ref=SecretKeySelector(name="no", key="a")), 'secret "no" not found'),
        (ref(secret_key_ref=SecretKeySelector(name="s", key="no")), "couldn't find key no in Secret default/s"),
        (
            ref(file_key_ref=FileKeySelector(volume_name="w", path="f", key="K")),
            'cannot find the volume "w" referenced by FileKeyRef',
        ),
        (
            ref(file_key_ref=FileKeySelector(volume_name="v", path="f", key="NO")),
            'environment variable key "NO" not found in file "/vol/f"',
        ),
        (
            ref(file_key_ref=FileKeySelector(volume_name="v", path="bad", key="K", optional=True)),
            "couldn't parse env file",
        ),
        (ref(field_ref=ObjectFieldSelector(field_path="status.phase")), "unsupported fieldPath: status.phase"),
    ],
)
def test_what_is_missing_is_an_error(source: EnvVarSource, message: str) -> None:
    files = {
        ("v", "f"): EnvFile(path="/vol/f", text="K='x'"),
        ("v", "bad"): EnvFile(path="/vol/bad", text="K=x"),
    }
    with pytest.raises(ConfigProblem) as caught:
        env_of({"env": [EnvVar(name="X", value_from=source)]}, files=files)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (EnvFromSource(config_map_ref=ConfigMapEnvSource(name="no")), 'configmap "no" not found'),
        (EnvFromSource(secret_ref=SecretEnvSource(name="no")), 'secret "no" not found'),
        (EnvFromSource(config_map_ref=ConfigMapEnvSource(name="no", optional=True)), None),
        (EnvFromSource(secret_ref=SecretEnvSource(name="no", optional=True)), None),
        (EnvFromSource(), None),
    ],
)
def test_missing_whole_objects(source: EnvFromSource, message: str | None) -> None:
    if message is None:
        assert env_of({"env_from": [source]}) == {}
        return
    with pytest.raises(ConfigProblem) as caught:
        env_of({"env_from": [source]})
    assert str(caught.value) == message


def test_bytes_of_secrets_survive() -> None:
    env = env_of({"env_from": [EnvFromSource(secret_ref=SecretEnvSource(name="s"))]})
    assert env["raw"].encode(errors="surrogateescape") == b"\xff\xfe"


def test_a_secret_that_is_not_base64_is_named() -> None:
    with pytest.raises(ConfigProblem, match="key k of Secret default/bad is not base64"):
        env_of(
            {"env_from": [EnvFromSource(secret_ref=SecretEnvSource(name="bad"))]},
            secrets={"bad": Secret(data={"k": "%%%"})},
        )


def test_files_count_as_empty_when_the_feature_is_off() -> None:
    source = ref(file_key_ref=FileKeySelector(volume_name="v", path="f", key="K"))
    assert env_of({"env": [EnvVar(name="X", value_from=source)]}, files=None) == {"X": ""}


def test_a_megabyte_long_value_passes() -> None:
    big = "x" * (1 << 20)
    assert env_of({"env": [EnvVar(name="BIG", value=big), EnvVar(name="Y", value="$(BIG)")]})["Y"] == big


def test_literal_env_has_only_what_is_written_out() -> None:
    container = a_container(
        env=[
            EnvVar(name="A", value="$(B)"),
            EnvVar(name="E"),
            EnvVar(name="F", value_from=ref(field_ref=ObjectFieldSelector(field_path="metadata.name"))),
        ]
    )
    assert literal_env(container) == {"A": "$(B)", "E": ""}


def test_variables_that_double_end_in_an_error_that_names_one() -> None:
    doubling = [EnvVar(name="A0", value="x" * 1024)]
    doubling += [EnvVar(name=f"A{i}", value=f"$(A{i - 1})$(A{i - 1})") for i in range(1, 40)]
    with pytest.raises(ConfigProblem, match=r'environment variable "A12" makes all variables .* larger than 6 MiB'):
        env_of({"env": doubling})


def test_a_config_map_taken_many_times_is_counted_each_time() -> None:
    maps = {"cm": ConfigMap(data={"a": "x" * 900_000})}
    many = [EnvFromSource(prefix=f"P{i}_", config_map_ref=ConfigMapEnvSource(name="cm")) for i in range(10)]
    with pytest.raises(ConfigProblem, match='environment variable "P6_a"'):
        env_of({"env_from": many}, config_maps=maps)
    # One name counts once, however often it is set.
    same = [EnvFromSource(config_map_ref=ConfigMapEnvSource(name="cm"))] * 10
    assert len(env_of({"env_from": same}, config_maps=maps)["a"]) == 900_000


def test_a_probe_command_cannot_grow_without_bound() -> None:
    pod = a_pod(containers=[a_container(env=[EnvVar(name="A", value="x" * 1_000_000)])])
    with pytest.raises(ExpansionTooLong):
        expand_command(pod.spec.containers[0], ["$(A)$(A)"] * 1000)
