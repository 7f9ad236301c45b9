"""Checkpoint files: checksums that upstream's own tests have, round trips, refusals that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet.cm.errors import ResourceManagerError
from pykubelet.cm.state import CpuState, MemoryBlock, MemoryState, MemoryTable, NodeMemory
from pykubelet.kit.text import fnv1a_32
from tests.unit.cm.machines import cpus

ENTRIES = {"pod": {"container1": "4-6", "container2": "1-3"}}
TABLE = {"total": 2048, "systemReserved": 512, "allocatable": 1536, "reserved": 512, "free": 1024}
BLOCKS = [{"numaAffinity": [0], "type": "memory", "size": 512}]
MEMORY = {
    "policyName": "static",
    "machineState": {"0": {"numberOfAssignments": 0, "memoryMap": {"memory": TABLE}, "cells": []}},
    "entries": {"pod": {"container1": BLOCKS}},
}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (CpuState.text({"policyName": "none", "defaultCpuSet": "4-6"}), 354655845),
        (CpuState.text({"policyName": "none", "defaultCpuSet": "1-3", "entries": ENTRIES}), 3610638499),
        (
            CpuState.text(
                {
                    "policyName": "none",
                    "defaultCpuSet": "1-3",
                    "entries": ENTRIES,
                    "podEntries": {"pod": {"cpuSet": "4-6"}},
                },
                pod_level=True,
            ),
            2649431787,
        ),
        (MemoryState.text(MEMORY), 4215593881),
        (MemoryState.text(MEMORY | {"podEntries": {"pod": {"memoryBlocks": BLOCKS}}}, pod_level=True), 1278640530),
    ],
)
def test_checksums_are_upstreams(text: str, known: int) -> None:
    assert fnv1a_32(text) == known


def cpu_file(folder: Path, policy: str = "static", *, pod_level: bool = False) -> CpuState:
    return CpuState(folder / "cpu_manager_state", policy=policy, pod_level=pod_level)


def memory_file(folder: Path, policy: str = "Static", *, pod_level: bool = False) -> MemoryState:
    return MemoryState(folder / "memory_manager_state", policy=policy, pod_level=pod_level)


def content(folder: Path, name: str) -> dict[str, Any]:
    found = json.loads((folder / name).read_text())
    assert isinstance(found, dict)
    return found


def test_a_first_file_is_written_also_for_no_policy(tmp_path: Path) -> None:
    cpu_file(tmp_path, "none").load()
    memory_file(tmp_path, "None").load()
    assert (tmp_path / "cpu_manager_state").read_text() == (
        '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
    )
    assert content(tmp_path, "memory_manager_state") == {
        "policyName": "None",
        "machineState": {},
        "checksum": 4236770233,
    }
    assert (tmp_path / "cpu_manager_state").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("pod_level", [False, True])
def test_cpus_come_back(tmp_path: Path, pod_level: bool) -> None:
    state = cpu_file(tmp_path, pod_level=pod_level)
    state.set_shared(cpus("0-1"))
    state.own("uid-b", "app", cpus("2-3,7"))
    state.own("uid-a", "app", cpus("4"))
    if pod_level:
        state.own_pod("uid-c", cpus("5-6,10"))
    state.save()
    again = cpu_file(tmp_path, pod_level=pod_level)
    again.load()
    assert (again.shared, again.entries, again.pods) == (state.shared, state.entries, state.pods)


@pytest.mark.parametrize("pod_level", [False, True])
def test_memory_comes_back(tmp_path: Path, pod_level: bool) -> None:
    state = memory_file(tmp_path, pod_level=pod_level)
    table = MemoryTable(total=10, system_reserved=1, allocatable=9, reserved=4, free=5)
    block = MemoryBlock(nodes=(0, 1), type="memory", size=4)
    state.set_machine({node: NodeMemory(assignments=1, tables={"memory": table}, cells=(0, 1)) for node in (0, 1, 10)})
    state.own("uid-a", "app", (block,))
    if pod_level:
        state.own_pod("uid-b", (block,))
    state.save()
    again = memory_file(tmp_path, pod_level=pod_level)
    again.load()
    assert (again.machine, again.entries, again.pods) == (state.machine, state.entries, state.pods)


def test_files_of_both_forms_are_read_with_and_without_the_gate(tmp_path: Path) -> None:
    for written in (False, True):
        for read in (False, True):
            (tmp_path / "cpu_manager_state").unlink(missing_ok=True)
            state = cpu_file(tmp_path, pod_level=written)
            state.set_shared(cpus("0-3"))
            state.save()
            again = cpu_file(tmp_path, pod_level=read)
            again.load()
            assert again.shared == cpus("0-3")


def test_another_policy_is_refused_with_the_file_to_delete(tmp_path: Path) -> None:
    cpu_file(tmp_path, "none").load()
    with pytest.raises(ResourceManagerError) as caught:
        cpu_file(tmp_path, "static").load()
    assert str(caught.value) == (
        'could not restore state from checkpoint: configured policy "static" differs from state checkpoint policy '
        f'"none", please drain this node and delete the CPU manager checkpoint file "{tmp_path}/cpu_manager_state" '
        "before restarting"
    )
    memory_file(tmp_path, "None").load()
    with pytest.raises(ResourceManagerError, match="delete the memory manager checkpoint file"):
        memory_file(tmp_path).load()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}",
        '{"policyName":"static"}',
        '{"policyName":"static","defaultCpuSet":"0-3","checksum":1}',
        '{"policyName":"static","defaultCpuSet":"x","checksum":0}',
        '{"policyName":"static","defaultCpuSet":"0","entries":{"a":3},"checksum":0}',
    ],
)
def test_a_damaged_file_stops_the_agent_with_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu_manager_state").write_text(text)
    with pytest.raises(ResourceManagerError, match="please drain this node and delete the CPU manager checkpoint file"):
        cpu_file(tmp_path).load()
    assert (tmp_path / "cpu_manager_state").read_text() == text, "it is for a person to delete"


def test_a_cpu_set_that_cannot_be_parsed_is_refused_with_the_parser_s_text(tmp_path: Path) -> None:
    (tmp_path / "cpu_manager_state").write_text('{"policyName":"static","defaultCpuSet":"x","checksum":0}')
    with pytest.raises(ResourceManagerError) as caught:
        cpu_file(tmp_path).load()
    why = str(caught.value.__cause__)
    assert str(caught.value).startswith(f"could not restore state from checkpoint: could not parse a cpu set: {why}, ")


@pytest.mark.parametrize("text", ["{", '{"policyName":"Static","machineState":{"0":{}},"checksum":0}', "[1]"])
def test_a_damaged_memory_file_stops_the_agent_with_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "memory_manager_state").write_text(text)
    with pytest.raises(
        ResourceManagerError, match="please drain this node and delete the memory manager checkpoint file"
    ):
        memory_file(tmp_path).load()


def test_nothing_is_written_when_nothing_changed(tmp_path: Path) -> None:
    state = cpu_file(tmp_path)
    state.load()
    (tmp_path / "cpu_manager_state").unlink()
    state.set_shared(state.shared)
    state.save()
    assert not (tmp_path / "cpu_manager_state").exists()
