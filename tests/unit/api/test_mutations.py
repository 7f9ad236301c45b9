"""Ten thousand damaged manifests: none may cause anything but named problems.

Seeded, so that a failure can be repeated: it names the seed of the one manifest.
"""

import copy
import json
import random
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from pykubelet.api.manifest import InvalidManifest, document_problems, load_static_pods, read_documents
from pykubelet.api.validation.findings import FieldError
from tests.unit.api.rich_pod import RICH

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
PER_CHUNK = 1000
LINE = re.compile(r"line \d+: ")

WEIRD: list[Any] = [
    None, True, False, 0, -1, 1, 65536, 2**31, 2**63, -(2**63) - 1, 10**40, 1.5, -0.0, 1e300, "", " ", "a" * 300,
    "A_b", "..", "../../etc", "/", "-", "--", "1", "0x10", "yes", "null", "~", "1Gi", "-5m", "1e9999", "10QQ",
    "\x7f", "\u2028", "\udce4", "naïve", "a\nb", "$(X)", "%s%n", "Always", "Never", "TCP", "{}", "[]",
    [], {}, [[]], [None], [{}], {"": ""}, {"name": None}, {"a": {"b": {"c": [1, "2", {}]}}}, ["x", 1, None],
    {"limits": {"hugepages-2Mi": "3"}}, {"fieldRef": {"fieldPath": "metadata.labels['"}}, {"exec": {}, "sleep": {}},
]  # fmt: skip
FIELDS = [
    "name", "kind", "apiVersion", "metadata", "spec", "containers", "initContainers", "ephemeralContainers", "image",
    "ports", "containerPort", "hostPort", "hostNetwork", "hostUsers", "volumes", "volumeMounts", "volumeDevices",
    "emptyDir", "projected", "sources", "items", "path", "csi", "ephemeral", "resources", "limits", "requests", "env",
    "valueFrom", "livenessProbe", "lifecycle", "httpGet", "grpc", "port", "securityContext", "sysctls", "tolerations",
    "affinity", "topologySpreadConstraints", "dnsPolicy", "dnsConfig", "hostAliases", "restartPolicy", "os",
    "restartPolicyRules", "overhead", "resourceClaims", "annotations", "labels", "status", "typo",
    "terminationGracePeriodSeconds",
]  # fmt: skip


@cache
def _texts() -> list[bytes]:
    return [path.read_bytes() for path in EXAMPLES]


@cache
def _trees() -> list[str]:
    # As JSON, because loading that is the fastest deep copy; the rich pod more often, it has most rules to break.
    return [json.dumps(tree) for tree in (*(yaml.safe_load(text) for text in _texts()), RICH, RICH)]


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found: list[tuple[Any, Any]] = []
    open_ = [tree]
    while open_:
        node = open_.pop()
        pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in pairs:
            found.append((node, key))
            open_.append(value)
    return found


def _deep(rng: random.Random) -> Any:
    value: Any = "deep"
    for _ in range(rng.choice((5, 50, 99, 150, 400))):
        value = [value] if rng.random() < 0.5 else {"k": value}
    return value


def _mutate_tree(tree: Any, rng: random.Random) -> Any:
    places = _places(tree)
    if not places:
        return rng.choice(WEIRD)
    node, key = rng.choice(places)
    match rng.randrange(9):
        case 0:
            del node[key]
        case 1:
            same = [value for value in WEIRD if type(value) is type(node[key])] if rng.random() < 0.7 else WEIRD
            node[key] = copy.deepcopy(rng.choice(same or WEIRD))
        case 2 if isinstance(node, list):
            node.insert(key, copy.deepcopy(node[key]))
        case 2:
            node[rng.choice(FIELDS)] = copy.deepcopy(node[key])
        case 3 if isinstance(node[key], list):
            node[key] = {str(i): item for i, item in enumerate(node[key])}
        case 3 if isinstance(node[key], dict):
            node[key] = list(node[key].values())
        case 3:
            node[key] = [node[key]]
        case 4:
            other, other_key = rng.choice(places)
            node[key] = copy.deepcopy(other[other_key])
        case 5:
            node[key] = _deep(rng)
        case 6 if isinstance(node, dict):
            node[rng.choice(FIELDS)] = copy.deepcopy(rng.choice(WEIRD))
        case 7 if isinstance(node, dict):
            node[rng.choice(FIELDS)] = {rng.choice(FIELDS): copy.deepcopy(rng.choice(WEIRD))}
        case _:
            node[key] = str(node[key]) if rng.random() < 0.5 else [copy.deepcopy(node[key])] * 3
    return tree


def _structural(rng: random.Random) -> bytes:
    tree = json.loads(rng.choice(_trees()))
    for _ in range(rng.choice((1, 1, 2, 4))):
        tree = _mutate_tree(tree, rng)
    if rng.random() < 0.1:
        tree = {"apiVersion": "v1", "kind": "PodList", "items": [tree, tree]}
    return json.dumps(tree).encode()


def _bytes(rng: random.Random) -> bytes:
    data = bytearray(rng.choice(_texts()))
    for _ in range(rng.choice((1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                del data[at : at + rng.choice((1, 3, 40, 400))]
            case 1:
                data[at:at] = (
                    rng.randbytes(rng.choice((1, 2, 8))) if rng.random() < 0.2 else bytes([rng.randrange(32, 127)])
                )
            case 2 if at < len(data):
                data[at] ^= 1 << rng.randrange(7)
            case 3:
                data[at:at] = rng.choice((b"---\n", b"&a ", b"*a", b"<<: ", b"!!int ", b"{", b"]", b": ", b"\t", b"- "))
            case 4:
                lines = data.split(b"\n")
                source = rng.randrange(len(lines))
                lines.insert(rng.randrange(len(lines)), lines[source])
                data = bytearray(b"\n".join(lines))
            case _:
                data[at:at] = rng.choice((b"0", b"99999999999999999999", b'"', b"'", b"~", b"\xff", b"\x00", b"|\n"))
        if not data:
            break
    return bytes(data)


def _judge(data: bytes, *, as_static: bool) -> list[FieldError]:
    try:
        problems = [problem for document in read_documents(data) for problem in document_problems(document)]
    except InvalidManifest as error:
        problems = error.problems
    if not as_static:
        return problems
    try:
        load_static_pods(data, node_name="node", source="http", origin="http://x")
    except InvalidManifest as error:
        assert error.problems and str(error)
    return problems


@pytest.mark.parametrize("chunk", range(10))
def test_damaged_manifests_only_ever_have_named_problems(chunk: int) -> None:
    rejected = 0
    for seed in range(chunk * PER_CHUNK, (chunk + 1) * PER_CHUNK):
        rng = random.Random(seed)
        data = _bytes(rng) if seed % 2 else _structural(rng)
        try:
            problems = _judge(data, as_static=seed % 10 < 3)
        except Exception as error:
            pytest.fail(f"seed {seed}: {type(error).__name__}: {error}")
        for problem in problems:
            assert problem.path or LINE.match(problem.message), f"seed {seed}: {problem}"
            assert problem.message and "\n" not in str(problem), f"seed {seed}: {problem!r}"
            str(problem).encode()
        rejected += bool(problems)
    # The damage must bite, and must not always kill: otherwise the test has stopped testing.
    assert PER_CHUNK * 0.5 < rejected < PER_CHUNK
