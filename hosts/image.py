"""The disk that guests boot from: Debian from Debian's packages, with the Python packages of pykubelet already in it.

Built once into the cache that tools/build-go.sh uses, named by a hash of everything that goes in. pykubelet itself is
not in it: it comes on a second disk (payload.py), so that a change of the source does not build Debian anew. Needs root
for chroot, as set-up does; nothing is mounted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RELEASE = "trixie"
PYTHON = "3.13"
"""The Python of that release: wheels are fetched for it, not for the Python of this machine."""
PACKAGES = """
    linux-image-amd64 systemd systemd-sysv dbus udev kmod libpam-systemd openssh-server sudo
    python3 python3-venv ca-certificates curl procps psmisc iproute2 iputils-ping
    iptables nftables conntrack ethtool socat
    containerd runc crun conmon containernetworking-plugins busybox-static libseccomp2 etcd-server
    apparmor nfs-kernel-server nfs-common targetcli-fb open-iscsi e2fsprogs xfsprogs numactl
"""
DISABLED = """
    containerd etcd nfs-server nfs-blkmap rpcbind.service rpcbind.socket iscsid.service iscsid.socket open-iscsi
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
"""
"""Units that Debian enables; each check starts what it needs."""
SIZE = "12G"
VENV = "opt/pykubelet"
PAYLOAD = "/opt/payload"
FILES = {
    "etc/hostname": "guest\n",
    "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 guest\n::1 localhost ip6-localhost\n",
    "etc/fstab": f"/dev/vda / ext4 defaults 0 0\nLABEL=payload {PAYLOAD} ext4 ro,nofail 0 0\n",
    "etc/resolv.conf": "nameserver 10.0.2.3\n",  # of qemu's user network
    "etc/systemd/network/10-user.network": "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\n",
    "etc/modules-load.d/pods.conf": "overlay\nbr_netfilter\n",
    "etc/sysctl.d/90-pods.conf": "net.ipv4.ip_forward=1\n",
    "etc/ssh/sshd_config.d/guest.conf": "UseDNS no\nMaxStartups 100\nMaxSessions 100\n",
    "etc/systemd/journald.conf.d/guest.conf": "[Journal]\nStorage=persistent\nRateLimitIntervalSec=0\n",
    "usr/local/bin/pykubelet": f'#!/bin/sh\nexec /{VENV}/bin/python -P -m pykubelet "$@"\n',
    f"{VENV}/lib/python{PYTHON}/site-packages/pykubelet.pth": f"{PAYLOAD}/src\n",
}


@dataclass(frozen=True, slots=True)
class BaseImage:
    """What machines boot from; its disk is only ever read."""

    folder: Path

    @property
    def disk(self) -> Path:
        return self.folder / "disk.img"

    @property
    def kernel(self) -> Path:
        return self.folder / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd.img"

    @property
    def key(self) -> Path:
        return self.folder / "ssh-key"

    def python(self) -> list[str]:
        """Command line of the guest's Python, run here at this machine's speed."""
        tree = self.folder / "tree"
        libraries = tree / "usr/lib/x86_64-linux-gnu"
        loader = libraries / "ld-linux-x86-64.so.2"
        return [str(loader), "--library-path", str(libraries), str(tree / f"usr/bin/python{PYTHON}")]

    @property
    def python_home(self) -> Path:
        return self.folder / "tree/usr"


def cache() -> Path:
    """The folder that tools/build-go.sh builds into."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("PYKUBELET_CACHE") or home / "pykubelet")


def base_image() -> BaseImage:
    """The image for the current lists; builds it when it is not there (two to four minutes)."""
    requirements = ROOT / "requirements.txt"
    parts = [
        RELEASE,
        PYTHON,
        SIZE,
        *PACKAGES.split(),
        *DISABLED.split(),
        *map(str, sorted(FILES.items())),
        requirements.read_text(),
    ]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    folder = cache() / f"guest-{RELEASE}-{key}"
    if not folder.exists():
        with _locked(cache() / "guest.lock"):
            if not folder.exists():
                _build(folder, requirements)
    return BaseImage(folder)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build(folder: Path, requirements: Path) -> None:
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    tree = new / "tree"
    print(f"hosts: building a Debian {RELEASE} guest (about 3 minutes)", file=sys.stderr)
    _run("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES.split())}", RELEASE, str(tree))
    _run("chroot", str(tree), "python3", "-m", "venv", "--without-pip", f"/{VENV}")
    packages = tree / f"{VENV}/lib/python{PYTHON}/site-packages"
    wheels = ["--quiet", "--only-binary=:all:", f"--python-version={PYTHON}", f"--target={packages}"]
    _run(sys.executable, "-m", "pip", "install", *wheels, f"--requirement={requirements}")
    for name, text in FILES.items():
        _write(tree / name, text)
    (tree / "usr/local/bin/pykubelet").chmod(0o755)
    _run("chroot", str(tree), "systemctl", "enable", "systemd-networkd", "ssh")
    _run("chroot", str(tree), "systemctl", "disable", *DISABLED.split(), check=False)
    _run("chroot", str(tree), f"/{VENV}/bin/python", "-m", "compileall", "-q", f"/{packages.relative_to(tree)}")
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "guest", "-f", str(new / "ssh-key"))
    keys = tree / "root/.ssh/authorized_keys"
    _write(keys, (new / "ssh-key.pub").read_text())
    keys.parent.chmod(0o700)
    kernel = _only(tree / "boot", "vmlinuz-*")
    shutil.copy(kernel, new / "vmlinuz")
    shutil.copy(_only(tree / "boot", "initrd.img-*"), new / "initrd.img")
    shutil.rmtree(tree / "var/cache/apt", ignore_errors=True)
    _run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", str(tree), str(new / "disk.img"), SIZE)
    new.rename(folder)


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise RuntimeError(f"{folder} has {len(found)} files named {pattern}, not 1")
    return found[0]


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # Debian has links in places
    path.write_text(text)


def _run(*command: str, check: bool = True) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}
    environment["PATH"] = f"{environment.get('PATH', '')}:/usr/sbin:/sbin"
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {done.returncode}:\n{done.stdout}{done.stderr}")
