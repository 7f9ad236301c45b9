"""Writes tests/unit/settings/upstream.json: every field, flag and feature gate of the kubelet that we stand for.

Fields come from the Go types of KubeletConfiguration, gates from the tables of the packages that a kubelet is made of,
flags from `kubelet --help`. The sources are where Go keeps modules, the program where tools/build-go.sh puts it:

    tools/gen_upstream_settings.py "$(go env GOMODCACHE)" "$(tools/build-go.sh controlplane)/kubelet"
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION = "36.4"
PAGE = Path(__file__).resolve().parent.parent / "tests" / "unit" / "settings" / "upstream.json"

TYPE_FILES = (
    "k8s.io/kubelet@v0.{version}/config/v1beta1/types.go",
    "k8s.io/component-base@v0.{version}/logs/api/v1/types.go",
    "k8s.io/component-base@v0.{version}/tracing/api/v1/types.go",
    "k8s.io/api@v0.{version}/core/v1/types.go",
)
GATE_FILES = (
    f"k8s.io/kubernetes@v1.{VERSION}/pkg/features/kube_features.go",
    f"k8s.io/apiserver@v0.{VERSION}/pkg/features/kube_features.go",
    f"k8s.io/apiextensions-apiserver@v0.{VERSION}/pkg/features/kube_features.go",
    f"k8s.io/client-go@v0.{VERSION}/features/known_features.go",
    f"k8s.io/component-base@v0.{VERSION}/logs/api/v1/kube_features.go",
    f"k8s.io/component-base@v0.{VERSION}/metrics/features/kube_features.go",
    f"k8s.io/component-base@v0.{VERSION}/zpages/features/kube_features.go",
    f"k8s.io/controller-manager@v0.{VERSION}/pkg/features/kube_features.go",
)

STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^\t(?:(\w+)[ \t]+)?([\w.*\[\]]+)[ \t]+`[^`]*json:\"([^\"]*)\"", re.MULTILINE)


def structs(text: str) -> dict[str, list[tuple[str, str]]]:
    """Each struct's fields as (wire name, Go type); an inlined one has an empty name."""
    found = {}
    for name, body in STRUCT.findall(text):
        rows = [(tag.split(",")[0], kind) for _, kind, tag in FIELD.findall(body)]
        found[name] = [(wire, kind) for wire, kind in rows if wire != "-"]
    return found


LEAVES = frozenset({"Quantity", "QuantityValue", "Duration", "Time", "TimeOrMetaDuration", "ResourceList"})
ALIASES = {"LoggingConfiguration.vmodule": "VModuleItem"}


def fields(known: dict[str, list[tuple[str, str]]], owner: str, prefix: str = "") -> Iterator[str]:
    for wire, kind in known[owner]:
        name = ALIASES.get(f"{owner}.{wire}") or kind.rpartition(".")[2].replace("*", "").replace("[]", "")
        if not wire:
            if name != "TypeMeta":
                yield from fields(known, name, prefix)
            continue
        many = "[]" in kind or f"{owner}.{wire}" in ALIASES
        nested = name in known and name not in LEAVES and not kind.startswith("map")
        if many or not nested:
            yield prefix + wire
        if nested:
            yield from fields(known, name, f"{prefix}{wire}{'[]' if many else ''}.")


def config_fields(modules: Path, version: str) -> list[str]:
    """The paths of all fields of KubeletConfiguration; a version is written 36.4."""
    known: dict[str, list[tuple[str, str]]] = {}
    for path in TYPE_FILES:
        known = {**structs((modules / path.format(version=version)).read_text()), **known}
    return sorted(fields(known, "KubeletConfiguration"))


FEATURE = re.compile(
    r"^\t(\w+)(?:\s+(?:featuregate\.)?Feature)?\s*=\s*(?:featuregate\.Feature\()?\"(\w+)\"", re.MULTILINE
)
ENTRY = re.compile(r"^\t+(?:\w+\.)?(\w+): (?:featuregate\.VersionedSpecs)?\{\n(.*?)^\t+\},", re.MULTILINE | re.DOTALL)
VERSIONED = re.compile(r"MustParse\(\"1\.(\d+)\"\)(.*)")


def gates(text: str) -> Iterator[tuple[str, list[object]]]:
    """Gate name to [on by default, stage, locked], as they are in this minor."""
    names = dict(FEATURE.findall(text))
    minor = int(VERSION.partition(".")[0])
    for constant, body in ENTRY.findall(text):
        rows = [text for since, text in VERSIONED.findall(body) if int(since) <= minor]
        if rows and constant in names:
            stage = re.search(r"PreRelease: (?:featuregate\.)?(\w+)", rows[-1])
            locked = "LockToDefault: true" in rows[-1]
            yield (
                names[constant],
                [re.search(r"\bDefault: true", rows[-1]) is not None, stage[1] if stage else "GA", locked],
            )


def main(arguments: list[str]) -> int:
    modules, program = Path(arguments[0]), arguments[1]
    found_gates: dict[str, list[object]] = {}
    for path in GATE_FILES:
        if (modules / path).is_file():
            found_gates.update(gates((modules / path).read_text()))
    shown = subprocess.run([program, "--help"], capture_output=True, text=True, check=True).stdout
    flags = sorted(re.findall(r"^  (?:-\w, |    )--([a-z0-9-]+)", shown, re.MULTILINE))
    switchable = set(re.findall(r"^\s+(\w+)=true\|false \(", shown, re.MULTILINE)) - {"AllAlpha", "AllBeta"}
    unknown = switchable - set(found_gates)
    if unknown:
        print(f"gates of the program that no table has: {sorted(unknown)}", file=sys.stderr)
        return 1
    document = {
        "version": f"v1.{VERSION}",
        "fields": config_fields(modules, VERSION),
        "flags": flags,
        "gates": dict(sorted(found_gates.items())),
    }
    PAGE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {PAGE}: {len(document['fields'])} fields, {len(flags)} flags, {len(found_gates)} gates")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
