"""A guest: boots, runs commands, takes and gives files, is powered off, cut off or booted again.

No privilege and no route of the host is used: its network is qemu's own, ssh comes through a port of loopback. Hardware
virtualization is tried once and used where a stock kernel boots with it; without it everything is 10 to 20 times
slower, so nothing may be judged by time in a guest.
"""

from __future__ import annotations

import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hosts.image import BaseImage, base_image, cache
from hosts.payload import Payload, make_disk

PATCHING_FAULT = "Oops: int3"
"""qemu's emulation lost a race with a kernel that patches its own code as its CPUs start; the next boot is fine."""
BOOTED_WITHIN = 1800.0
"""A minute on an idle host; ten and more when several guests share two cores without hardware virtualization."""
KVM_WITHIN = 15.0
"""A kernel with hardware virtualization prints its first line within a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One more disk, /dev/disk/by-id/virtio-NAME, empty at first."""

    name: str
    size: str = "4G"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a guest is made of."""

    name: str = "plain"
    cpus: int = 2
    memory: str = "2G"
    numa: bool = False
    """Two NUMA nodes with half of the CPUs and of the memory each."""
    arguments: str = ""
    """More arguments of the kernel."""
    disks: tuple[Disk, ...] = ()
    lan: str = ""
    """"listen:PORT" or "connect:PORT" of loopback: a second card (eth1) on a network of two guests."""
    mac: int = 1
    """Tells the cards of two guests on one network apart."""
    safe_disks: bool = False
    """Written data survive a cut of the power, as far as the guest flushed them; else the host may keep them longer."""


class CommandFailed(Exception):
    """A command in the guest ended with another status than 0."""


class Machine:
    """One guest with its disks; they stay over a boot and go with `booted`."""

    def __init__(self, kind: Kind, base: BaseImage, folder: Path) -> None:
        self.kind = kind
        self._base = base
        self._folder = folder
        self._port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.console = folder / "console.log"

    def make_disks(self, payload: Payload) -> None:
        _image("create", "-q", "-f", "qcow2", "-F", "raw", "-b", str(self._base.disk), str(self._folder / "root.qcow2"))
        for disk in self.kind.disks:
            _image("create", "-q", "-f", "qcow2", str(self._folder / f"{disk.name}.qcow2"), disk.size)
        make_disk(payload, self._base, self._folder)

    def boot(self, within: float = BOOTED_WITHIN) -> None:
        """Start the guest and return when systemd says that it is up."""
        deadline = time.monotonic() + within
        self._process = self._start()
        while not self._up():
            if self._process.poll() is not None:
                if PATCHING_FAULT not in self.tail(200):
                    raise RuntimeError(f"{self.kind.name}: qemu ended with {self._process.returncode}:\n{self.tail()}")
                self.console.unlink()
                self._process = self._start()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind.name} is not up after {within:g} s:\n{self.tail()}")
            time.sleep(1)

    def _start(self) -> subprocess.Popen[bytes]:
        with self.console.open("ab") as console:
            return subprocess.Popen(
                [*_qemu(accelerator(self._base)), *self._options()],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
            )

    def _options(self) -> list[str]:
        kind = self.kind
        cache_mode = "writeback" if kind.safe_disks else "unsafe"
        options = ["-smp", str(kind.cpus), "-m", kind.memory, "-no-reboot", "-display", "none", "-serial", "stdio"]
        options += ["-kernel", str(self._base.kernel), "-initrd", str(self._base.initrd)]
        # A slow host with several guests needs longer than systemd waits for a disk.
        patient = "systemd.default_device_timeout_sec=600 systemd.default_timeout_start_sec=600"
        # The check of the timer fails where a guest gets little of the processor, and then it hangs.
        fixed = f"root=/dev/vda rw console=ttyS0 net.ifnames=0 quiet panic=-1 no_timer_check {patient}"
        options += ["-append", f"{fixed} {kind.arguments}"]
        drives = [("root", "root.qcow2"), *((disk.name, f"{disk.name}.qcow2") for disk in kind.disks)]
        for name, file in drives:
            options += _drive(name, self._folder / file, f"format=qcow2,cache={cache_mode}")
        options += _drive("payload", self._folder / "payload.img", "format=raw,readonly=on")
        options += ["-netdev", f"user,id=user,hostfwd=tcp:127.0.0.1:{self._port}-:22"]
        options += ["-device", f"virtio-net-pci,netdev=user,mac=52:54:00:00:00:{kind.mac:02x}"]
        if kind.lan:
            side, _, port = kind.lan.partition(":")
            options += ["-netdev", f"socket,id=lan,{side}=127.0.0.1:{port}"]
            options += ["-device", f"virtio-net-pci,netdev=lan,mac=52:54:00:00:01:{kind.mac:02x}"]
        if kind.numa:
            options += _numa(kind)
        return [*options, "-device", "virtio-rng-pci", "-device", "i6300esb"]

    def _up(self) -> bool:
        try:
            state = self.run("systemctl is-system-running", check=False, within=30)
        except subprocess.TimeoutExpired:
            return False
        return state.strip() in ("running", "degraded")

    def run(self, command: str, *, check: bool = True, within: float = 300.0, stdin: bytes | None = None) -> str:
        """Run a command with sh as root; returns what it printed. CommandFailed names the command and its words."""
        done = subprocess.run(
            [*self._ssh(), command],
            input=b"" if stdin is None else stdin,
            capture_output=True,
            timeout=within,
            check=False,
        )
        printed = done.stdout.decode(errors="replace")
        if check and done.returncode != 0:
            errors = done.stderr.decode(errors="replace")
            raise CommandFailed(f"{self.kind.name}: `{command}` ended with {done.returncode}:\n{printed}{errors}")
        return printed

    def _ssh(self) -> list[str]:
        options = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "ConnectTimeout": "20",
            # A handshake takes a second in a slow guest: later commands share the first connection.
            "ControlMaster": "auto",
            "ControlPath": f"{self._folder}/ssh",
            "ControlPersist": "600",
        }
        each = [f"-o{name}={value}" for name, value in options.items()]
        return ["ssh", "-T", *each, "-i", str(self._base.key), "-p", str(self._port), "root@127.0.0.1"]

    def put(self, path: str, content: bytes | str, mode: str = "644") -> None:
        """Write a file in the guest; it appears whole."""
        data = content.encode() if isinstance(content, str) else content
        name = shlex.quote(path)
        self.run(
            f"mkdir -p $(dirname {name}) && cat >{name}.new && chmod {mode} {name}.new && mv {name}.new {name}",
            stdin=data,
        )

    def get(self, path: str) -> str:
        return self.run(f"cat {shlex.quote(path)}")

    def power_off(self, command: str = "systemctl poweroff", within: float = 300.0) -> None:
        """Shut the guest down as its administrator would, and wait for the end of qemu (also for `reboot`)."""
        self.run(f"({command}) >/dev/null 2>&1 &", check=False)
        self.ended(within)

    def ended(self, within: float = 300.0) -> None:
        """Wait until the guest has switched itself off."""
        if self._process is not None:
            self._process.wait(within)
        self._forget()

    def cut(self) -> None:
        """Take the power away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        self._process = None
        subprocess.run([*self._ssh(), "-O", "exit"], capture_output=True, check=False)
        (self._folder / "ssh").unlink(missing_ok=True)

    def tail(self, lines: int = 40) -> str:
        """The end of what the guest printed on its console."""
        return "\n".join(self.console.read_text(errors="replace").splitlines()[-lines:])


@contextmanager
def booted(kind: Kind, payload: Payload | None = None) -> Iterator[Machine]:
    """A guest that is up, with fresh disks; its power is cut at the end."""
    base = base_image()
    with tempfile.TemporaryDirectory(prefix="pkl-host-") as name:
        machine = Machine(kind, base, Path(name))
        machine.make_disks(payload or Payload())
        try:
            machine.boot()
            yield machine
        finally:
            machine.cut()


def accelerator(base: BaseImage) -> str:
    """ "kvm" where the guest's kernel boots with it, else "tcg". Tried once for a boot of this host, and remembered."""
    known = cache() / "accelerator"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        tried, name = known.read_text().split()
        if tried == boot:
            return name
    except (FileNotFoundError, ValueError):
        pass
    name = "kvm" if _kvm_boots(base) else "tcg"
    print(f"hosts: guests run with {name}", file=sys.stderr)
    known.write_text(f"{boot} {name}\n")
    return name


def _kvm_boots(base: BaseImage) -> bool:
    if not Path("/dev/kvm").exists():
        return False
    options = ["-m", "1G", "-display", "none", "-serial", "stdio", "-no-reboot", "-kernel", str(base.kernel)]
    command = [*_qemu("kvm"), *options, "-append", "console=ttyS0 panic=-1"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=KVM_WITHIN, check=False)
        printed = done.stdout
    except subprocess.TimeoutExpired as error:
        printed = error.stdout or b""
    return b"Linux version" in printed


def _qemu(name: str) -> list[str]:
    program = shutil.which("qemu-system-x86_64")
    if program is None:
        raise RuntimeError("qemu-system-x86_64 is missing: tools/setup.sh hosts installs it")
    speed = "kvm" if name == "kvm" else "tcg,thread=multi,tb-size=1024"
    return [program, "-nodefaults", "-accel", speed, "-cpu", "host" if name == "kvm" else "max"]


def _drive(name: str, file: Path, options: str) -> list[str]:
    return [
        "-drive",
        f"id={name},file={file},if=none,{options}",
        "-device",
        f"virtio-blk-pci,drive={name},serial={name}",
    ]


def _numa(kind: Kind) -> list[str]:
    size = int(kind.memory.rstrip("G")) * 512
    half = kind.cpus // 2
    options: list[str] = []
    for node in (0, 1):
        options += ["-object", f"memory-backend-ram,id=m{node},size={size}M"]
        cpus = f"cpus={node * half}-{node * half + half - 1}"
        options += ["-numa", f"node,nodeid={node},{cpus},memdev=m{node}"]
    return options


def _image(*arguments: str) -> None:
    subprocess.run(["qemu-img", *arguments], check=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
