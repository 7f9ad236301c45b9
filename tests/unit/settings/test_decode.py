"""The wire form of the configuration, in and out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pykubelet.settings.decode import Origin, decode_config, default_config, encode_config
from pykubelet.settings.gates import Gates
from pykubelet.settings.schema import KubeletConfig, SettingRef, all_settings, settings_by_path, value_at


def decode(raw: dict[str, Any], origin: Origin = Origin.MAIN_FILE, folder: str = "") -> KubeletConfig:
    config, problems = decode_config(raw, origin=origin, gates=Gates({}), folder=folder)
    assert config is not None, problems
    return config


def test_an_empty_file_gives_the_declared_defaults() -> None:
    assert decode({}) == KubeletConfig()


# What differs between starting with a file and without one; everything else is the same.
def test_defaults_without_a_file() -> None:
    with_file, without = default_config(Origin.MAIN_FILE), default_config(Origin.FLAGS_ONLY)
    differing = {
        ref.path: (value_at(with_file, ref.attributes), value_at(without, ref.attributes))
        for ref in all_settings()
        if "[]" not in ref.path and value_at(with_file, ref.attributes) != value_at(without, ref.attributes)
    }
    assert differing == {
        "readOnlyPort": (0, 10255),
        "authentication.webhook.enabled": (True, False),
        "authentication.anonymous.enabled": (False, True),
        "authorization.mode": ("Webhook", "AlwaysAllow"),
        "evictionHard": (
            {
                "memory.available": "100Mi",
                "nodefs.available": "10%",
                "nodefs.inodesFree": "5%",
                "imagefs.available": "15%",
                "imagefs.inodesFree": "5%",
            },
            {},
        ),
    }


@pytest.mark.parametrize(
    ("raw", "path", "value"),
    [
        ({"port": 0}, "port", 10250),
        ({"syncFrequency": "0s"}, "syncFrequency", 60.0),
        ({"address": ""}, "address", "0.0.0.0"),
        ({"maxPods": None}, "maxPods", 110),
        ({"healthzPort": 0}, "healthzPort", 0),
        ({"kubeAPIQPS": 0}, "kubeAPIQPS", 0),
        ({"resolvConf": ""}, "resolvConf", ""),
        ({"cpuCFSQuota": False}, "cpuCFSQuota", False),
        ({"evictionPressureTransitionPeriod": "0s"}, "evictionPressureTransitionPeriod", 300.0),
        ({"enforceNodeAllocatable": []}, "enforceNodeAllocatable", ()),
        ({"enforceNodeAllocatable": None}, "enforceNodeAllocatable", ("pods",)),
        ({"podPidsLimit": -7}, "podPidsLimit", -1),
        ({"podPidsLimit": 0}, "podPidsLimit", 0),
        ({"authentication": {}}, "authentication.webhook.enabled", True),
        ({"authentication": {"webhook": {"enabled": False}}}, "authentication.webhook.enabled", False),
        ({"nodeStatusUpdateFrequency": "20s"}, "nodeStatusReportFrequency", 20.0),
        ({"nodeStatusUpdateFrequency": "0s"}, "nodeStatusReportFrequency", 300.0),
        (
            {"nodeStatusUpdateFrequency": "20s", "nodeStatusReportFrequency": "1m"},
            "nodeStatusReportFrequency",
            60.0,
        ),
        ({"maxParallelImagePulls": 1}, "serializeImagePulls", True),
        ({"maxParallelImagePulls": 2}, "serializeImagePulls", False),
        ({"maxParallelImagePulls": 2, "serializeImagePulls": True}, "serializeImagePulls", True),
        ({"evictionHard": {}}, "evictionHard", {}),
        ({"evictionHard": {"pid.available": "5%"}}, "evictionHard", {"pid.available": "5%"}),
        ({"logging": {"flushFrequency": 7000000000}}, "logging.flushFrequency", 7.0),
        ({"logging": {"flushFrequency": "7s"}}, "logging.flushFrequency", 7.0),
        ({"logging": {"options": {"json": {"infoBufferSize": "1Ki"}}}}, "logging.options.json.infoBufferSize", "1Ki"),
        ({"tracing": {}}, "tracing.endpoint", None),
        ({"tracing": {"samplingRatePerMillion": 5}}, "tracing.samplingRatePerMillion", 5),
        ({"featureGates": {"KubeletCrashLoopBackOffMax": False}}, "crashLoopBackOff.maxContainerRestartPeriod", None),
        ({"featureGates": {"KubeletEnsureSecretPulledImages": False}}, "imagePullCredentialsVerificationPolicy", ""),
        ({"memoryThrottlingFactor": 1}, "memoryThrottlingFactor", 1.0),
    ],
)
def test_values_and_defaults(raw: dict[str, Any], path: str, value: object) -> None:
    assert value_at(decode(raw), settings_by_path()[path].attributes) == value


def test_missing_thresholds_are_merged_in_on_request() -> None:
    raw = {"evictionHard": {"memory.available": "1Gi"}, "mergeDefaultEvictionSettings": True}
    hard = decode(raw).eviction.eviction_hard
    assert hard["memory.available"] == "1Gi" and hard["nodefs.available"] == "10%" and len(hard) == 5
    assert decode(raw, Origin.MERGED).eviction.eviction_hard == {"memory.available": "1Gi"}


def test_relative_paths_count_from_the_folder() -> None:
    raw = {
        "staticPodPath": "pods",
        "tlsCertFile": "../a.crt",
        "resolvConf": "",
        "volumePluginDir": "/abs/",
        "authentication": {"x509": {"clientCAFile": "ca.pem"}},
    }
    config = decode(raw, folder="/etc/node")
    assert config.sources.static_pod_path == "/etc/node/pods"
    assert config.server.tls_cert_file == "/etc/a.crt"
    assert config.server.authentication.x509.client_ca_file == "/etc/node/ca.pem"
    assert config.network.resolv_conf == ""
    assert config.volumes.volume_plugin_dir == "/abs/"
    assert decode(raw).sources.static_pod_path == "pods"


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"maxPod": 5}, "maxPod: unknown field (did you mean maxPods?)"),
        ({"authentication": {"anonymus": {}}}, "authentication.anonymus: unknown field (did you mean anonymous?)"),
        ({"logging": {"x": 1}}, "logging.x: unknown field"),
        ({"registerWithTaints": [{"key": "a", "zzz": 1}]}, "registerWithTaints[0].zzz: unknown field"),
        ({"maxPods": "5"}, "maxPods: must be an integer, not a string"),
        ({"maxPods": True}, "maxPods: must be an integer, not a boolean"),
        ({"maxPods": 1.5}, "maxPods: must be an integer, not a number"),
        ({"maxPods": 2**31}, "maxPods: must be within -2147483648..2147483647"),
        ({"syncFrequency": 60}, "syncFrequency: must be a duration string such as 1m30s, not a number"),
        ({"syncFrequency": "60"}, 'syncFrequency: duration "60": unit is missing'),
        ({"clusterDNS": "10.0.0.1"}, "clusterDNS: must be a list, not a string"),
        ({"clusterDNS": ["a", 5]}, "clusterDNS[1]: must be a string, not a number"),
        ({"clusterDNS": [None]}, "clusterDNS[0]: must be a string, not null"),
        ({"authentication": []}, "authentication: must be an object, not a list"),
        ({"authentication": {"webhook": 5}}, "authentication.webhook: must be an object, not a number"),
        ({"evictionHard": {"memory.available": 5}}, "evictionHard.memory.available: must be a string, not a number"),
        ({"evictionHard": []}, "evictionHard: must be an object, not a list"),
        ({"featureGates": {"A": "true"}}, "featureGates.A: must be true or false, not a string"),
        ({"reservedMemory": [{"numaNode": 0, "limits": {"memory": "x"}}]}, "reservedMemory[0].limits.memory: quantity"),
        ({"memoryThrottlingFactor": float("inf")}, "memoryThrottlingFactor: must be a finite number"),
        ({"enableServer": "yes"}, "enableServer: must be true or false, not a string"),
    ],
)
def test_faults_name_the_field(raw: dict[str, Any], problem: str) -> None:
    config, problems = decode_config(raw, origin=Origin.MAIN_FILE, gates=Gates({}))
    assert config is None
    assert len(problems) == 1 and problems[0].startswith(problem)


def test_all_faults_at_once() -> None:
    raw = {"maxPods": "a", "nope": 1, "authentication": {"webhook": {"cacheTTL": 5}}, "clusterDNS": [1, 2]}
    assert len(decode_config(raw, origin=Origin.MAIN_FILE, gates=Gates({}))[1]) == 5


def test_encode_leaves_out_what_is_empty_like_the_go_type() -> None:
    wire = encode_config(decode({"cgroupRoot": "", "clusterDNS": [], "healthzPort": 0}))
    assert "cgroupRoot" not in wire and "clusterDNS" not in wire and "runOnce" not in wire
    assert wire["healthzPort"] == 0
    assert wire["syncFrequency"] == "1m0s" and wire["cpuCFSQuotaPeriod"] == "100ms"
    assert wire["authentication"]["webhook"] == {"enabled": True, "cacheTTL": "2m0s"}
    assert wire["logging"]["verbosity"] == 0
    assert "apiVersion" not in wire and "tracing" not in wire


WORDS = st.text(st.characters(codec="utf-8"), max_size=5)
BY_KIND: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "string": WORDS,
    "path": st.sampled_from(["", "/a", "/b/c"]),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float": st.floats(0.01, 1),
    "duration": st.sampled_from(["0s", "1m30s", "100ms", "-5s", "1ns", "2h45m", "1.5h"]),
    "quantity": st.sampled_from(["0", "1Gi", "500m", "1e3"]),
    "list of string": st.lists(WORDS, max_size=2),
    "list of int32": st.lists(st.integers(0, 99), max_size=2),
    "map of string": st.dictionaries(WORDS, WORDS, max_size=2),
    "map of bool": st.dictionaries(st.sampled_from(["EventedPLEG", "KubeletCrashLoopBackOffMax"]), st.booleans()),
    "map of list of string": st.dictionaries(WORDS, st.lists(WORDS, max_size=2), max_size=2),
    "list of object": st.just([]),
}
PLAIN = [ref for ref in all_settings() if "[]" not in ref.path]


def put(raw: dict[str, Any], path: str, value: object) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        raw = raw.setdefault(parent, {})
    raw[name] = value


@given(st.data(), st.lists(st.sampled_from(PLAIN), max_size=8, unique_by=lambda ref: ref.path))
def test_a_full_encoding_reads_back_the_same(data: st.DataObject, refs: list[SettingRef]) -> None:
    raw: dict[str, Any] = {}
    for ref in refs:
        put(raw, ref.path, data.draw(BY_KIND[ref.setting.kind.name]))
    config = decode(raw)
    assert decode(encode_config(config, full=True), Origin.MERGED) == config


def test_objects_in_lists_read_back_the_same() -> None:
    raw = {
        "registerWithTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
        "reservedMemory": [{"numaNode": 1, "limits": {"memory": "1Gi"}}],
        "shutdownGracePeriodByPodPriority": [{"priority": 5, "shutdownGracePeriodSeconds": 6}],
        "logging": {"vmodule": [{"filePattern": "a", "verbosity": 3}]},
        "staticPodURLHeader": {"a": ["b", "c"]},
    }
    config = decode(raw)
    assert config.node.register_with_taints[0].effect == "NoSchedule"
    wire = encode_config(config)
    for name in raw.keys() - {"logging"}:
        assert wire[name] == raw[name]
    assert decode(wire) == config


def test_secret_headers_stay_out_of_repr() -> None:
    assert "hunter2" not in repr(decode({"staticPodURLHeader": {"Authorization": ["hunter2"]}}))
