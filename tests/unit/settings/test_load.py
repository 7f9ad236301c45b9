"""From a command line and files to settings: precedence, drop-ins, faults that name the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import LoadedSettings, PrintAndExit, find_drop_ins, load_settings, merge_patch
from tests.unit.settings.loading import DROP_INS, HEADER, MAIN, config_of, load, load_files, problems_of


@pytest.mark.parametrize(
    ("arguments", "main", "drop_ins", "expected"),
    [
        ([], None, None, 110),
        ([], "maxPods: 20\n", None, 20),
        ([], "maxPods: 20\n", {"a.conf": "maxPods: 30\n"}, 30),
        ([], "maxPods: 20\n", {"b.conf": "maxPods: 30\n", "a.conf": "maxPods: 40\n"}, 30),
        ([], "maxPods: 20\n", {"a.conf": "maxPods: null\n"}, 110),
        ([], "maxPods: 20\n", {"a.txt": "maxPods: 30\n"}, 20),
        ([], None, {"a.conf": "maxPods: 30\n"}, 30),
        (["--max-pods=50"], "maxPods: 20\n", {"a.conf": "maxPods: 30\n"}, 50),
        (["--max-pods=50"], None, None, 50),
    ],
)
def test_precedence(arguments: list[str], main: str | None, drop_ins: dict[str, str] | None, expected: int) -> None:
    assert config_of(*arguments, main=main, drop_ins=drop_ins).cgroups.max_pods == expected


def test_the_main_file_replaces_the_defaults_of_flags() -> None:
    assert config_of().server.read_only_port == 10255
    assert config_of(main="").server.read_only_port == 0
    assert config_of("--read-only-port=10255", main="").server.read_only_port == 10255
    assert config_of().eviction.eviction_hard == {}
    assert len(config_of(main="").eviction.eviction_hard) == 5


def test_drop_ins_alone_keep_the_defaults_of_flags() -> None:
    config = config_of(drop_ins={"a.conf": "maxPods: 30\n"})
    assert config.server.authentication.anonymous.enabled
    assert config.eviction.eviction_hard == {}


def test_drop_ins_merge_objects_and_replace_lists() -> None:
    config = config_of(
        main="clusterDNS: [a, b]\nevictionHard: {memory.available: 1Gi, pid.available: 5%}\n"
        "authentication: {webhook: {cacheTTL: 7s}}\n",
        drop_ins={
            "a.conf": "clusterDNS: [c]\nevictionHard: {memory.available: 2Gi, pid.available: null}\n"
            "authentication: {webhook: {enabled: false}}\n"
        },
    )
    assert config.network.cluster_dns == ("c",)
    assert config.eviction.eviction_hard == {"memory.available": "2Gi"}
    assert config.server.authentication.webhook.cache_ttl == 7
    assert not config.server.authentication.webhook.enabled


def test_a_drop_in_does_not_bring_back_default_thresholds() -> None:
    assert config_of(main="", drop_ins={"a.conf": "evictionHard: null\n"}).eviction.eviction_hard == {}


def test_a_drop_in_does_not_change_the_report_frequency() -> None:
    config = config_of(main="", drop_ins={"a.conf": "nodeStatusUpdateFrequency: 20s\n"})
    assert config.node.node_status_report_frequency == 300


def test_an_explicit_zero_of_a_flag_stays() -> None:
    assert config_of("--sync-frequency=0", main="syncFrequency: 5s\n").sources.sync_frequency == 0


def test_feature_gates_are_united_and_the_flag_wins() -> None:
    loaded = load(
        "--feature-gates=EventedPLEG=false,PodsAPI=true",
        main="featureGates: {EventedPLEG: true, MemoryQoS: true}\n",
    )
    assert dict(loaded.settings.gates.chosen) == {"EventedPLEG": False, "PodsAPI": True, "MemoryQoS": True}
    assert loaded.settings.gates.enabled("MemoryQoS")


def test_gates_of_flags_decide_defaults_of_the_file() -> None:
    config = config_of("--feature-gates=KubeletCrashLoopBackOffMax=false", main="")
    assert config.runtime.crash_loop_back_off.max_container_restart_period is None


def test_relative_paths() -> None:
    config = config_of(
        "--tls-cert-file=a.crt", "--tls-private-key-file=/k", "--resolv-conf=", main="staticPodPath: pods\n"
    )
    assert config.sources.static_pod_path == "/etc/node/pods"
    assert config.server.tls_cert_file == "/start/a.crt"
    assert config.network.resolv_conf == ""
    flags = load("--kubeconfig=k", "--root-dir=../r").settings.flags
    assert (flags.kubeconfig, flags.root_dir) == ("/start/k", "/r")
    assert config_of(main="", drop_ins={"a.conf": "staticPodPath: pods\n"}).sources.static_pod_path == "pods"


def test_the_seccomp_flag_is_the_same_as_the_field() -> None:
    assert config_of("--seccomp-default", main="seccompDefault: false\n").runtime.seccomp_default
    assert config_of(main="seccompDefault: true\n").runtime.seccomp_default


def test_json_files_are_read() -> None:
    text = b'{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "maxPods": 7}'
    assert load_files([f"--config={MAIN}"], {MAIN: text}).settings.config.cgroups.max_pods == 7


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty, expected a KubeletConfiguration"),
        (b"# nothing\n", "the file is empty"),
        (b"[1]", "must be an object of kind KubeletConfiguration, not a list"),
        (b"just text", "must be an object of kind KubeletConfiguration, not a string"),
        (b"kind: KubeletConfiguration\n", "apiVersion: must be kubelet.config.k8s.io/v1beta1, not null"),
        (b"apiVersion: v1\nkind: Pod\n", "kind: must be KubeletConfiguration, not 'Pod'"),
        (b"a: [", "invalid YAML"),
        (b"\xff\xfe\x00binary", "not UTF-8 text"),
        (HEADER.encode() + b"maxPods: 1\nmaxPods: 2\n", "maxPods"),
        (HEADER.encode() + b"---\n" + HEADER.encode(), "has 2 documents"),
        (HEADER.encode() + b"nope: 1\n", "nope: unknown field"),
        (b"a" * (5 * 1024 * 1024), "larger than"),
        (b"{" * 100_000, ""),
    ],
)
@pytest.mark.parametrize("as_drop_in", [False, True])
def test_bad_files_are_named(content: bytes, problem: str, as_drop_in: bool) -> None:
    path = f"{DROP_INS}/a.conf" if as_drop_in else MAIN
    arguments = [f"--config-dir={DROP_INS}"] if as_drop_in else [f"--config={MAIN}"]
    with pytest.raises(SettingsError) as caught:
        load_files(arguments, {path: content})
    found = "\n".join(caught.value.problems)
    assert all(text.startswith(path + ": ") for text in caught.value.problems)
    assert problem in found


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SettingsError) as caught:
        load_files(["--config=/nope/config.yaml"], {})
    assert caught.value.problems == ("/nope/config.yaml: No such file or directory",)


def test_faults_of_all_files_and_flags_at_once() -> None:
    problems = problems_of(
        "--cloud-provider=aws",
        main="maxPods: x\nfoo: 1\n",
        drop_ins={"a.conf": "maxPods: many\n", "b.conf": "bar: 1\n"},
    )
    assert problems == (
        "--cloud-provider: 'aws' must be empty or external",
        f"{MAIN}: foo: unknown field",
        f"{MAIN}: maxPods: must be an integer, not a string",
        f"{DROP_INS}/a.conf: maxPods: must be an integer, not a string",
        f"{DROP_INS}/b.conf: bar: unknown field",
    )


@pytest.mark.parametrize("login", ["--kubeconfig=k", "--bootstrap-kubeconfig=b --kubeconfig=k"])
def test_unknown_fields_of_a_clusters_files_are_left_out_with_a_warning(login: str) -> None:
    loaded = load(
        *login.split(),
        main="maxPods: 20\nmaxPod: 5\nauthentication: {later: {on: true}, webhook: {cacheTTL: 7s}}\n",
        drop_ins={"a.conf": "podsPerCore: 3\nnewest: {a: null, b: 1}\n", "b.conf": "swapRules: [1]\n"},
    )
    config = loaded.settings.config
    assert (config.cgroups.max_pods, config.cgroups.pods_per_core) == (20, 3)
    assert config.server.authentication.webhook.cache_ttl == 7
    left_out = "left out, for a kubelet v1.36 does not know them"
    assert list(loaded.warnings) == [
        f"{MAIN}: {left_out}: maxPod (did you mean maxPods?), authentication.later",
        f"{DROP_INS}/a.conf: {left_out}: newest",
        f"{DROP_INS}/b.conf: {left_out}: swapRules",
    ]
    assert "maxPod" not in loaded.settings.configz()


def test_a_file_of_unknown_fields_alone_has_a_short_warning() -> None:
    loaded = load("--kubeconfig=k", main="".join(f"zz{number}: 1\n" for number in range(1000)))
    [warning] = loaded.warnings
    assert warning.endswith("zz19 and 980 more")


@pytest.mark.parametrize(
    ("main", "problem"),
    [
        ("maxPods: x\nlater: 1\n", "maxPods: must be an integer, not a string"),
        ("maxPods: 1\nmaxPods: 2\n", "maxPods"),
        ("maxPods: -1\nlater: 1\n", "maxPods (--max-pods): -1 must not be negative"),
        ("featureGates: {ComesLater: true}\n", "featureGates (--feature-gates): unrecognized feature gate: ComesLater"),
    ],
)
def test_other_faults_of_a_clusters_files_stay_errors(main: str, problem: str) -> None:
    [found] = problems_of("--kubeconfig=k", main=main)
    assert problem in found


def test_unknown_flags_stay_errors_beside_a_cluster() -> None:
    assert problems_of("--kubeconfig=k", "--comes-later=1") == ("unknown flag: --comes-later",)


def test_a_bootstrap_kubeconfig_alone_makes_no_cluster() -> None:
    assert problems_of("--bootstrap-kubeconfig=b", main="later: 1\n") == (f"{MAIN}: later: unknown field",)


def test_warnings() -> None:
    loaded = load(
        "--max-pods=3",
        "--node-ip=10.0.0.1,junk",
        "--bootstrap-kubeconfig=b",
        main="iptablesDropBit: 3\nstreamingConnectionIdleTimeout: 0s\nfeatureGates: {CustomCPUCFSQuotaPeriod: true}\n",
        drop_ins={"README": ""},
    )
    assert [warning.split(",")[0] for warning in loaded.warnings] == [
        "Flag --max-pods has been deprecated",
        "--node-ip: 'junk' is not an IP address and is ignored",
        "--bootstrap-kubeconfig has no effect without --kubeconfig",
        f"{MAIN}: iptablesDropBit is deprecated",
        f"--config-dir: {DROP_INS}/README is skipped",
        "accepted",
        "featureGates: CustomCPUCFSQuotaPeriod is GA and the gate will be removed in a future release",
    ]
    assert [str(address) for address in loaded.settings.node_ips] == ["10.0.0.1"]


def test_help_and_version_come_first() -> None:
    shown = load_settings(["--config=/nope", "--help"], environ={})
    assert isinstance(shown, PrintAndExit)
    assert "--max-pods int32" in shown.text and "[maxPods]" in shown.text
    assert all(len(line) <= 110 for line in shown.text.splitlines())
    assert load_settings(["--version"], environ={}) == PrintAndExit("Kubernetes v1.36.4\n")
    raw = load_settings(["--version=raw"], environ={})
    assert isinstance(raw, PrintAndExit) and 'GitVersion:"v1.36.4"' in raw.text
    assert load("--version=v1.36.4+lab").settings.kubernetes_version == "v1.36.4+lab"


def test_settings_show_their_wire_form_and_name_the_node() -> None:
    settings = load("--max-pods=3").settings
    shown = settings.configz()
    assert (shown["apiVersion"], shown["kind"]) == ("kubelet.config.k8s.io/v1beta1", "KubeletConfiguration")
    assert shown["maxPods"] == 3
    assert settings.node_name(" Worker-1.Example\n") == "worker-1.example"


@pytest.mark.parametrize(
    ("environ", "timeout"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_watchdog(environ: dict[str, str], timeout: float | None) -> None:
    assert load(environ=environ).settings.environment.watchdog_timeout == timeout


@pytest.mark.parametrize("text", ["1000000", "soon", "-5", "9" * 40])
def test_bad_watchdog(text: str) -> None:
    with pytest.raises(SettingsError, match="WATCHDOG_USEC"):
        load(environ={"WATCHDOG_USEC": text})


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a"], {"a": "b"}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ],
)
def test_merge_patch(target: object, patch: object, merged: object) -> None:
    assert merge_patch(target, patch) == merged


def test_drop_ins_on_disk(tmp_path: Path) -> None:
    """Entries by name with sub-folders in place, as a lexical directory walk gives them."""
    for name, pods in (("10-a.conf", 1), ("20-b/5.conf", 2), ("20-b/4.conf", 3), ("15.txt", 4)):
        path = tmp_path / "conf.d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{HEADER}maxPods: {pods}\n")
    found = [os.path.relpath(path, tmp_path / "conf.d") for path in find_drop_ins(str(tmp_path / "conf.d"))]
    assert found == ["10-a.conf", "15.txt", "20-b/4.conf", "20-b/5.conf"]
    main = tmp_path / "config.yaml"
    main.write_text(f"{HEADER}staticPodPath: pods\n")
    loaded = load_settings(["--config", "config.yaml", "--config-dir", "conf.d"], environ={}, folder=str(tmp_path))
    assert isinstance(loaded, LoadedSettings)
    assert loaded.settings.config.cgroups.max_pods == 2
    assert loaded.settings.config.sources.static_pod_path == str(tmp_path / "pods")


@pytest.mark.parametrize("argument", ["--config-dir=/nope/conf.d", "--config=/", "--config=a\0b", "--config-dir=a\0b"])
def test_bad_paths_on_disk(argument: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings([argument], environ={})
    assert len(caught.value.problems) == 1
    assert caught.value.problems[0].isprintable()
