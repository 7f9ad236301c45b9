"""Reading a command line."""

from __future__ import annotations

from typing import Any

import pytest

from pykubelet.settings.errors import SettingsError
from pykubelet.settings.flag_forms import MemoryReservation, NodeTaint, VModuleItem
from pykubelet.settings.flags import all_flags, parse_flags


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("--port=1234", "port", 1234),
        ("--port 1234", "port", 1234),
        ("--port=0x10", "port", 16),
        ("--port=010", "port", 8),
        ("--max-pods=-5", "max-pods", -5),
        ("--max-pods -5", "max-pods", -5),
        ("--max_pods=7", "max-pods", 7),
        ("--max-pods=7 --max-pods=8", "max-pods", 8),
        ("--runonce", "runonce", True),
        ("--runonce=false", "runonce", False),
        ("--fail-swap-on=F", "fail-swap-on", False),
        ("--sync-frequency=1m30s", "sync-frequency", 90.0),
        ("--sync-frequency=0", "sync-frequency", 0.0),
        ("--cluster-dns=10.0.0.1,10.0.0.2", "cluster-dns", ("10.0.0.1", "10.0.0.2")),
        ("--cluster-dns=10.0.0.1 --cluster-dns=10.0.0.2", "cluster-dns", ("10.0.0.1", "10.0.0.2")),
        ('--cluster-dns="a,b",c', "cluster-dns", ("a,b", "c")),
        ("--cluster-dns=", "cluster-dns", ()),
        ("--node-labels=a=b,c= --node-labels=d", "node-labels", {"a": "b", "c": "", "d": ""}),
        ("--system-reserved=cpu=200m,memory=1Gi", "system-reserved", {"cpu": "200m", "memory": "1Gi"}),
        ("--system-reserved=cpu=1 --system-reserved=cpu=2,", "system-reserved", {"cpu": "2"}),
        (
            "--eviction-hard=memory.available<1Gi,nodefs.available<10%",
            "eviction-hard",
            {"memory.available": "1Gi", "nodefs.available": "10%"},
        ),
        ("--eviction-hard=", "eviction-hard", {}),
        ("--eviction-soft-grace-period=memory.available=1m", "eviction-soft-grace-period", {"memory.available": "1m"}),
        ("--cpu-manager-policy-options=a=b,c", "cpu-manager-policy-options", {"a": "b,c"}),
        ("--feature-gates=A=true,B=0 --feature-gates=C=T", "feature-gates", {"A": True, "B": False, "C": True}),
        ("--manifest-url-header=a:x,b:y,a:z", "manifest-url-header", {"a": ("x", "z"), "b": ("y",)}),
        (
            "--register-with-taints=a=b:NoSchedule,c:NoExecute",
            "register-with-taints",
            (NodeTaint(key="a", value="b", effect="NoSchedule"), NodeTaint(key="c", effect="NoExecute")),
        ),
        ("--register-with-taints=", "register-with-taints", ()),
        (
            "--reserved-memory=0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi",
            "reserved-memory",
            (
                MemoryReservation(numa_node=0, limits={"memory": "1Gi", "hugepages-1M": "2Gi"}),
                MemoryReservation(numa_node=1, limits={"memory": "2Gi"}),
            ),
        ),
        ("-v 3", "v", 3),
        ("-v=3", "v", 3),
        ("-v3", "v", 3),
        ("--v=3", "v", 3),
        (
            "--vmodule=a=1,b*=2",
            "vmodule",
            (VModuleItem(file_pattern="a", verbosity=1), VModuleItem(file_pattern="b*", verbosity=2)),
        ),
        ("--log-flush-frequency=1s", "log-flush-frequency", 1.0),
        ("--address=::", "address", "::"),
        ("-h", "help", True),
        ("--help", "help", True),
        ("--version", "version", "true"),
        ("--version=raw", "version", "raw"),
        ("--version=v1.36.4-lab", "version", "v1.36.4-lab"),
        ("--kubeconfig=a=b", "kubeconfig", "a=b"),
        ("--kubeconfig --port", "kubeconfig", "--port"),
    ],
)
def test_values(line: str, name: str, value: Any) -> None:
    assert parse_flags(line.split(" ")).values[name] == value


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--nope", "unknown flag: --nope"),
        ("--nope=1", "unknown flag: --nope"),
        ("--nope 1", "unknown flag: --nope"),
        ("--max-pod=1", "unknown flag: --max-pod (did you mean --max-pods?)"),
        ("--Port=1", "unknown flag: --Port (did you mean --port?)"),
        ("start", "unknown command start"),
        ("-- --port=1", "unknown command --port=1"),
        ("-", "unknown command -"),
        ("--port", "flag needs an argument: --port"),
        ("-v", "flag needs an argument: 'v' in -v"),
        ("-x", "unknown shorthand flag: 'x' in -x"),
        ("-hx", "unknown shorthand flag: 'x' in -hx"),
        ("--=1", "bad flag syntax: --=1"),
        ("---port=1", "bad flag syntax: ---port=1"),
        ("--port=x", 'invalid argument "x" for "--port" flag: must be an integer'),
        ("--port=1.5", 'invalid argument "1.5" for "--port" flag: must be an integer'),
        ("--port=", 'invalid argument "" for "--port" flag: must be an integer'),
        (
            "--port=9999999999",
            'invalid argument "9999999999" for "--port" flag: must be within -2147483648..2147483647',
        ),
        ("-v=-1", 'invalid argument "-1" for "-v" flag: must be within 0..4294967295'),
        ("--runonce=yes", 'invalid argument "yes" for "--runonce" flag: must be true or false'),
        ("--address=here", 'invalid argument "here" for "--address" flag: must be an IP address'),
        ("--eviction-hard=a=b", "has a malformed pair 'a=b', expected key<value"),
        ("--feature-gates=A", "has a malformed pair 'A', expected key=value"),
        ("--feature-gates=A=maybe", "has A=maybe: the value must be true or false"),
        ("--register-with-taints=a=b", "has a malformed taint 'a=b'"),
        ("--register-with-taints=a:NoExecute,a=b:NoExecute", "has the same key and effect twice"),
        ("--reserved-memory=0:cpu=1", "has the unknown memory type 'cpu'"),
        ("--reserved-memory=x:memory=1", "must be an integer"),
        ("--reserved-memory=0", "expected numaNode:type=quantity"),
        ('--cluster-dns="a', "is not a comma-separated list"),
        ("--sync-frequency=10", "unit is missing"),
        ("--version=v1.2.3", "must be v1.36.4"),
    ],
)
def test_faults(line: str, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_flags(line.split(" "))
    assert len(caught.value.problems) == 1
    assert problem in caught.value.problems[0]


def test_all_faults_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_flags(["--a", "--port=x", "--b=1", "word"])
    assert len(caught.value.problems) == 3


def test_a_secret_is_not_repeated_in_the_fault() -> None:
    with pytest.raises(SettingsError) as caught:
        parse_flags(["--manifest-url-header=Authorization=hunter2"])
    assert "hunter2" not in str(caught.value)
    assert "--manifest-url-header" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "warnings"),
    [
        (
            "--max-pods=5 --max-pods=6",
            ["Flag --max-pods has been deprecated, set maxPods in the --config file instead"],
        ),
        ("-v=2 --vmodule=a=1 --log-flush-frequency=1s --provider-id=x --fail-cgroupv1", []),
        ("--kubeconfig=a --root-dir=b --node-ip=c --seccomp-default", []),
        ("--boot-id-file=x", ["Flag --boot-id-file has been deprecated, it will be removed in a future version"]),
        (
            "--maximum-dead-containers=3",
            ["Flag --maximum-dead-containers has been deprecated, it will be removed in a future version"],
        ),
    ],
)
def test_deprecated_flags_warn(line: str, warnings: list[str]) -> None:
    assert parse_flags(line.split(" ")).warnings == warnings


def test_no_arguments() -> None:
    assert parse_flags([]).values == {}


def test_every_flag_has_a_meaning_and_a_place() -> None:
    for flag in all_flags().values():
        assert flag.name == flag.name.lower().replace("_", "-")
        assert flag.doc or flag.group == "ignored"
        assert flag.attributes or flag.group == "ignored" or flag.name in ("help", "version")
