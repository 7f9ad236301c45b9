"""The node suite on a guest: the machine it was written for, with systemd, cgroup v2, four CPUs, two NUMA nodes, swap.

What a set of namespaces cannot give (node_bed.py) is had here: D-Bus to systemd and logind, memory that may be used up,
CPUs to hand out. Without hardware virtualization it is 10 to 20 times slower, so only the specs that need it run here.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from conformance import node_images
from conformance.images import Named
from conformance.node_bed import base_configuration, ginkgo_command, stoppable
from conformance.report import GO
from hosts.image import PAYLOAD, VENV
from hosts.machine import Disk, Kind, Machine, booted
from hosts.node import MIRRORS, THIS_MACHINE, Node, payload
from hosts.payload import SITE, Payload
from tests.bed.cluster import go_programs
from tests.bed.registry import Registry

KIND = Kind(name="node-suite", cpus=4, memory="6G", numa=True, disks=(Disk(name="swap", size="1G"),))
HOME = "/root/suite"
UNIT = "node-suite"
ENDPOINT = "unix:///run/containerd/containerd.sock"
NODE = "guest"
LOOK_EVERY = 10.0
RELAY = "relay/logind_relay.py"
PATIENT = ("--server-start-timeout=30m",)
"""The suite's own API server needs longer than its two minutes on an emulated machine."""
KEPT = ("ginkgo.json", "ginkgo.log", "report/kubelet.log", "report/services.log")


def run(agent: str, folder: Path, ginkgo: Sequence[str], suite: Sequence[str]) -> int:
    """Boot a guest, run the specs, bring reports and logs into `folder`; gives ginkgo's exit status.

    SIGINT and SIGTERM end it early, with a report of the specs that were over.
    """
    built = node_images.build(
        go_programs("e2e"),
        folder,
        [go_programs("node-e2e") / "nmeter"],
        go_programs("plugins") / "sample-device-plugin",
    )
    with booted(KIND, disk(agent, built)) as machine, node_images.registry_of(built) as registry:
        pull_from(machine, registry)
        Node(machine).start_runtime(newer=True)
        for number, each in enumerate(built):
            machine.run(f"ctr -n k8s.io images import {PAYLOAD}/{archive(number)}", within=1800)
            for name in each.others:
                machine.run(f"ctr -n k8s.io images tag --force {each.archive.name} {name}")
        machine.run("mkswap -q /dev/disk/by-id/virtio-swap && swapon /dev/disk/by-id/virtio-swap")
        put_kubelet(machine, agent)
        if agent != GO:
            relay_logind(machine)
        before, after = ginkgo_command(
            f"{PAYLOAD}/bin/ginkgo", f"{HOME}/e2e_node.test", home=HOME, endpoint=ENDPOINT, node=NODE
        )
        status = supervised(machine, [*before, *ginkgo, *after, *PATIENT, *suite])
        for name in KEPT:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(machine.run(f"cat {HOME}/{name}", check=False))
        return status


def archive(number: int) -> str:
    return f"images/suite-{number}.tar"


def disk(agent: str, built: Sequence[Named]) -> Payload:
    programs = [go_programs("node-e2e") / "e2e_node.test", go_programs("e2e") / "ginkgo"]
    programs += [go_programs("containerd2"), go_programs("runc")]
    if agent == GO:
        programs.append(go_programs("controlplane") / "kubelet")
    basis = payload(*programs)
    more = {archive(number): each.archive.data for number, each in enumerate(built)}
    more[RELAY] = (Path(__file__).with_name("logind_relay.py")).read_bytes()
    return Payload(programs=basis.programs, files={**basis.files, **more}, tests=agent != GO)


def put_kubelet(machine: Machine, agent: str) -> None:
    """The suite's folder: a program called kubelet, its configuration, and the suite, which writes files beside it."""
    configuration = base_configuration() | {"cgroupDriver": "systemd"}
    configuration.pop("maxOpenFiles")
    machine.put(f"{HOME}/kubelet.json", json.dumps(configuration))
    program = f"exec {PAYLOAD}/bin/kubelet"
    if agent != GO:
        # Specs look for a process of that name.
        home = f"{HOME}/python"
        machine.run(
            f"mkdir -p {home}/bin && ln -s /{VENV}/lib {home}/lib && cp /{VENV}/pyvenv.cfg {home}/ && "
            f"ln -s $(readlink -f /{VENV}/bin/python) {home}/bin/kubelet"
        )
        program = f"exec {home}/bin/kubelet -P -m pykubelet"
    machine.put(f"{HOME}/bin/kubelet", f'#!/bin/sh\n{program} "$@"\n', mode="755")
    machine.run(f"mkdir -p {HOME}/report && cp {PAYLOAD}/bin/e2e_node.test {HOME}/")


def pull_from(machine: Machine, registry: Registry) -> None:
    """Some specs pull whatever is there: from a registry beside the guest."""
    port = registry.host.rpartition(":")[2]
    for host in node_images.REGISTRIES:
        machine.put(f"{MIRRORS}/{host}/hosts.toml", node_images.mirror(f"{THIS_MACHINE}:{port}"))


def relay_logind(machine: Machine) -> None:
    """logind_relay.py in logind's place."""
    paths = ":".join(f"{PAYLOAD}/{each}" for each in ("src", "", SITE))
    machine.run(
        "systemctl mask --quiet --runtime --now systemd-logind && "
        f"systemd-run --quiet --unit=logind-relay --setenv=PYTHONPATH={paths} /{VENV}/bin/python {PAYLOAD}/{RELAY}"
    )
    machine.run("timeout 120 sh -c 'until busctl status org.freedesktop.login1 >/dev/null 2>&1; do sleep 1; done'")


def supervised(machine: Machine, words: Sequence[str]) -> int:
    """Run it as a unit of the guest, which outlives a connection, and wait for its end."""
    log = f"StandardOutput=append:{HOME}/ginkgo.log"
    options = [f"--unit={UNIT}", "--remain-after-exit", f"--working-directory={HOME}", "-p", log]
    options += ["-p", f"StandardError=append:{HOME}/ginkgo.log", "-p", "KillMode=process", "--setenv=HOME=/root"]
    told = False
    with stoppable() as stop:
        machine.run(shlex.join(["systemd-run", *options, *words]))
        while machine.run(f"systemctl show --value -p SubState {UNIT}", check=False).strip() == "running":
            if stop.at and not told:
                told = True
                machine.run(f"systemctl kill --kill-whom=all {UNIT}", check=False)
            time.sleep(LOOK_EVERY)
        return int(machine.run(f"systemctl show --value -p ExecMainStatus {UNIT}").strip() or "1")
