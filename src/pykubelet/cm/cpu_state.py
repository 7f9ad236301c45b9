"""Who owns which CPUs, and the file that keeps it across restarts: `cpu_manager_state`, upstream's format both ways.

Changes are made in memory; whoever acts on them waits for `flush` before.
With the gate PodLevelResourceManagers the file also has what pods as a whole own, and another checksum. Files of
kubelets before 1.18, which named containers by their ids, are not understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pykubelet.cm.state_checkpoint import CheckpointedState, CheckpointFile
from pykubelet.kit.go_text import go_map
from pykubelet.model.topology import NO_CPUS, Cpus, format_cpu_list, parse_cpu_list

STATE_FILE: Final = "cpu_manager_state"

Entries = dict[str, dict[str, Cpus]]


class CpuState(CheckpointedState):
    def __init__(self, path: Path, *, policy: str, pod_level: bool) -> None:
        super().__init__(CheckpointFile(path, manager="CPU manager", policy=policy, texts=self._texts))
        self._pod_level = pod_level
        self.shared: Cpus = NO_CPUS
        """The pool of everybody who owns nothing; upstream's default set."""
        self.entries: Entries = {}
        """By pod and container."""
        self.pods: dict[str, Cpus] = {}
        """What pods with amounts of their own have for all their containers."""

    def load(self) -> None:
        """Take over what the file holds, or write a first one. PinningProblem when that cannot be."""
        data = self._file.read()
        if data is None:
            self._changed = True
            self.save()
            return
        try:
            self.shared = parse_cpu_list(data.get("defaultCpuSet", ""))
            self.entries = {
                uid: {name: parse_cpu_list(text) for name, text in each.items()}
                for uid, each in (data.get("entries") or {}).items()
            }
            self.pods = {
                uid: parse_cpu_list(each.get("cpuSet", "")) for uid, each in (data.get("podEntries") or {}).items()
            }
        except (ValueError, TypeError, AttributeError) as error:
            raise self._file.problem(f"could not parse a cpu set: {error}") from error

    def _content(self) -> tuple[dict[str, Any], str]:
        data: dict[str, Any] = {"defaultCpuSet": format_cpu_list(self.shared)}
        if self.entries:
            data["entries"] = {
                uid: {name: format_cpu_list(cpus) for name, cpus in sorted(each.items())}
                for uid, each in sorted(self.entries.items())
            }
        if self.pods and self._pod_level:
            data["podEntries"] = {uid: {"cpuSet": format_cpu_list(cpus)} for uid, cpus in sorted(self.pods.items())}
        form = pod_level_text if self._pod_level else plain_text
        return data, form({"policyName": self._file.policy, **data})

    def problem(self, why: str) -> Exception:
        return self._file.problem(why)

    def _texts(self, data: dict[str, Any]) -> Iterable[str]:
        """With the gate on a file without it is read as well; the other way round only if no pod uses it."""
        yield plain_text(data)
        yield plain_text(data).replace("CPUManagerCheckpoint", "CPUManagerCheckpointV2", 1)
        if self._pod_level or not data.get("podEntries"):
            yield pod_level_text(data)

    # --- reading and changing ---------------------------------------------------------------------------

    def owned(self, uid: str, container: str) -> Cpus | None:
        return self.entries.get(uid, {}).get(container)

    def owned_or_shared(self, uid: str, container: str) -> Cpus:
        own = self.owned(uid, container)
        return self.shared if own is None else own

    def all_owned(self) -> Cpus:
        return frozenset().union(*(cpus for each in self.entries.values() for cpus in each.values()))

    def set_shared(self, cpus: Cpus) -> None:
        self._changed = self._changed or cpus != self.shared
        self.shared = cpus

    def own(self, uid: str, container: str, cpus: Cpus) -> None:
        self.entries.setdefault(uid, {})[container] = cpus
        self._changed = True

    def own_pod(self, uid: str, cpus: Cpus) -> None:
        self.pods[uid] = cpus
        self._changed = True

    def drop(self, uid: str) -> Cpus:
        """Everything the pod owned is nobody's now; what that was."""
        mine = frozenset().union(*self.entries.pop(uid, {}).values(), self.pods.pop(uid, NO_CPUS))
        self._changed = True
        return mine


# --- what the checksum is taken over ------------------------------------------------------------------------


def plain_text(data: dict[str, Any]) -> str:
    return f"(*state.CPUManagerCheckpoint){{{_head(data)} Checksum:(checksum.Checksum)0}}"


def pod_level_text(data: dict[str, Any]) -> str:
    pods = go_map({uid: _pod_entry(each) for uid, each in (data.get("podEntries") or {}).items()})
    own = f"PodEntries:(state.PodCPUAssignments){pods}"
    return f"(*state.CPUManagerCheckpoint){{{_head(data)} {own} Checksum:(checksum.Checksum)0}}"


def _head(data: dict[str, Any]) -> str:
    entries = go_map({uid: go_map(each) for uid, each in (data.get("entries") or {}).items()})
    return (
        f"PolicyName:(string){data['policyName']} DefaultCPUSet:(string){data['defaultCpuSet']} "
        f"Entries:(map[string]map[string]string){entries}"
    )


def _pod_entry(entry: dict[str, Any]) -> str:
    members = go_map({cpu: "{}" for cpu in parse_cpu_list(entry.get("cpuSet", ""))})
    return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}}){members}}}}}"
