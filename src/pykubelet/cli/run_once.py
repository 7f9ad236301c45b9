"""`--runonce`: run the manifests once, wait until every pod has ended or runs, and say per pod what came of it."""

from __future__ import annotations

import asyncio
import sys

from pykubelet.kubelet import Kubelet
from pykubelet.model.pod import is_terminal_phase, readable, uid_of
from pykubelet.signals import PodStatusChanged

PATIENCE = 120.0
"""Seconds a pod may take to run or end."""


async def run_once(node: Kubelet) -> int:
    """Status 0 when every pod runs or succeeded, 1 when one failed or did not get there in time."""
    changed = asyncio.Event()
    node.ctx.signals.subscribe(PodStatusChanged, lambda changed_status: changed.set())
    async with node.running():
        try:
            async with asyncio.timeout(PATIENCE):
                while not _settled(node):
                    changed.clear()
                    if not _settled(node):
                        async with asyncio.timeout(None):
                            await _next(changed)
        except TimeoutError:
            pass
        return _report(node)


async def _next(changed: asyncio.Event) -> None:
    """The next change of a status; the first delivery of pods may bring none, so check again now and then."""
    try:
        async with asyncio.timeout(0.5):
            await changed.wait()
    except TimeoutError:
        return


def _settled(node: Kubelet) -> bool:
    if not node.sources.mux.all_ready():
        return False
    for pod in node.table.pods():
        status = node.table.reported_status(uid_of(pod))
        if status is None or status.phase in (None, "", "Pending"):
            return False
        if status.phase == "Running" and pod.spec.restart_policy != "Always":
            return False
    return True


def _report(node: Kubelet) -> int:
    failed = 0
    for pod in node.table.pods():
        status = node.table.reported_status(uid_of(pod))
        phase = status.phase if status is not None else "Unknown"
        good = phase == "Succeeded" or (phase == "Running" and pod.spec.restart_policy == "Always")
        failed += not good
        why = f": {status.reason or ''} {status.message or ''}".rstrip(": ") if status is not None and not good else ""
        ended = "" if is_terminal_phase(phase) or good else " (did not get there in time)"
        print(f"{readable(pod)}: {phase}{ended}{why}", file=sys.stdout, flush=True)
    return 1 if failed else 0
