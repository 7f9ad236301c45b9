"""The generated containerd configuration: version 2 for containerd 1.x, version 3 for 2.x.

Pure: facts in, text out. Only what differs from containerd's own defaults is written, each with its reason.
Does not cover registries: those are read by containerd from `Layout.registry_dir` at each pull.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct

from pykubelet.standalone.layout import Layout

Value = str | int | bool | list[str]

# Snapshotters this machine does not use, and services with paths or sockets shared by the whole machine.
DISABLED = [
    "io.containerd.internal.v1.opt",
    "io.containerd.internal.v1.restart",
    "io.containerd.internal.v1.tracing",
    "io.containerd.nri.v1.nri",
    "io.containerd.snapshotter.v1.aufs",
    "io.containerd.snapshotter.v1.blockfile",
    "io.containerd.snapshotter.v1.btrfs",
    "io.containerd.snapshotter.v1.devmapper",
    "io.containerd.snapshotter.v1.erofs",
    "io.containerd.snapshotter.v1.zfs",
    "io.containerd.tracing.processor.v1.otlp",
]


class ContainerdFacts(Struct, frozen=True, kw_only=True):
    """What the configuration depends on besides the paths."""

    version: tuple[int, int]
    """containerd's major and minor version."""
    sandbox_image: str
    runc: Path
    cni_folder: Path
    may_lower_oom_score: bool
    """False without CAP_SYS_RESOURCE: then every sandbox would fail, because runc may not set its score."""
    snapshotter: str = "overlayfs"


def render(layout: Layout, facts: ContainerdFacts) -> str:
    """The text of containerd.toml."""
    tables = _tables_v3(layout, facts) if facts.version[0] >= 2 else _tables_v2(layout, facts)
    top: dict[str, Value] = {
        "version": 3 if facts.version[0] >= 2 else 2,
        "root": str(layout.root),
        "state": str(layout.run),
        "disabled_plugins": DISABLED,
    }
    if facts.may_lower_oom_score:
        top["oom_score"] = -999  # the kernel must not pick the runtime when a container eats the memory
    lines = ["# Written by pykubelet at every start; changes are lost.", *_pairs(top)]
    for name, pairs in tables.items():
        lines += ["", f"[{name}]", *_pairs(pairs)]
    return "\n".join(lines) + "\n"


def _tables_v2(layout: Layout, facts: ContainerdFacts) -> dict[str, dict[str, Value]]:
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return {
        "grpc": {"address": str(layout.socket)},
        cri: {
            "sandbox_image": facts.sandbox_image,
            **_runtime_pairs(facts),
            **_stream_pairs(),
        },
        f"{cri}.cni": {"bin_dir": str(facts.cni_folder), "conf_dir": str(layout.cni_conf_dir)},
        f"{cri}.registry": {"config_path": str(layout.registry_dir)},
        f"{cri}.containerd": {"default_runtime_name": "runc", "snapshotter": facts.snapshotter},
        **_runc_tables(f"{cri}.containerd.runtimes.runc", layout, facts),
    }


def _tables_v3(layout: Layout, facts: ContainerdFacts) -> dict[str, dict[str, Value]]:
    images = 'plugins."io.containerd.cri.v1.images"'
    runtime = 'plugins."io.containerd.cri.v1.runtime"'
    folder = str(facts.cni_folder)
    # 2.1 turned bin_dir into a list and refuses to start when both are there.
    plugin_folders: dict[str, Value] = {"bin_dirs": [folder]} if facts.version >= (2, 1) else {"bin_dir": folder}
    return {
        "grpc": {"address": str(layout.socket)},
        images: {"snapshotter": facts.snapshotter},
        f"{images}.pinned_images": {"sandbox": facts.sandbox_image},
        f"{images}.registry": {"config_path": str(layout.registry_dir)},
        runtime: _runtime_pairs(facts),
        f"{runtime}.cni": {**plugin_folders, "conf_dir": str(layout.cni_conf_dir)},
        f"{runtime}.containerd": {"default_runtime_name": "runc"},
        **_runc_tables(f"{runtime}.containerd.runtimes.runc", layout, facts),
        'plugins."io.containerd.grpc.v1.cri"': _stream_pairs(),
    }


def _runtime_pairs(facts: ContainerdFacts) -> dict[str, Value]:
    return {
        # Network namespaces live under our own folder, so that cleaning up touches no others.
        "netns_mounts_under_state_dir": True,
        "restrict_oom_score_adj": not facts.may_lower_oom_score,
    }


def _stream_pairs() -> dict[str, Value]:
    # Exec and attach streams come through the agent; nothing else needs to reach them.
    return {"disable_tcp_service": True, "stream_server_address": "127.0.0.1", "stream_server_port": "0"}


def _runc_tables(name: str, layout: Layout, facts: ContainerdFacts) -> dict[str, dict[str, Value]]:
    return {
        name: {"runtime_type": "io.containerd.runc.v2"},
        f"{name}.options": {
            "BinaryName": str(facts.runc),
            "Root": str(layout.runc_root),
            "SystemdCgroup": False,
        },
    }


def _pairs(pairs: dict[str, Value]) -> list[str]:
    # JSON's strings, numbers, booleans and lists of strings are TOML's too.
    return [f"{key} = {json.dumps(value)}" for key, value in pairs.items()]
