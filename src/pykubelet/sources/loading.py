"""From the bytes of a manifest to the pods this node runs, as the file and URL sources need it.

Binds the manifest reader to this node and tells unknown fields as warnings in the log: they do not stop a
pod, as in a cluster. Everything else about manifests is in api/manifest.py.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pykubelet.api.manifest import ManifestWarnings, load_static_pods
from pykubelet.api.types import Pod
from pykubelet.sources.manifests import LoadPod
from pykubelet.sources.url import LoadPods

logger = logging.getLogger(__name__)


def file_loader(node_name: str, *, may_refer: bool = False) -> LoadPod:
    """What reads the one pod of a manifest file. `may_refer`: to objects of the API server."""

    def load(data: bytes, origin: str) -> Pod:
        warnings: ManifestWarnings = []
        pods = load_static_pods(
            data, node_name=node_name, source="file", origin=origin, warnings=warnings, may_refer=may_refer
        )
        _tell(warnings, origin)
        return pods[0]

    return load


def url_loader(node_name: str, *, may_refer: bool = False) -> LoadPods:
    """What reads the pods a URL answered with."""

    def load(data: bytes, origin: str) -> Sequence[Pod]:
        warnings: ManifestWarnings = []
        pods = load_static_pods(
            data, node_name=node_name, source="http", origin=origin, warnings=warnings, may_refer=may_refer
        )
        _tell(warnings, origin)
        return pods

    return load


def _tell(warnings: ManifestWarnings, origin: str) -> None:
    if warnings:
        shown = "; ".join(str(warning) for warning in warnings)
        logger.warning("manifest has unknown fields, which are ignored", extra={"path": origin, "fields": shown})
