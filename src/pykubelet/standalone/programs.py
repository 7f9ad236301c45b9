"""Find and run the programs of other projects that standalone mode needs, and name the packages that bring them.

Covers: containerd, ctr, runc, iptables, busybox and the CNI plugin folder. Does not install anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from pykubelet.standalone.errors import MissingProgram, StandaloneError

# PATH of a service or of `su` often lacks the sbin folders where runc and iptables live.
EXTRA_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")
NEEDED_CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")


class Package(Struct, frozen=True, kw_only=True):
    debian: str
    fedora: str


PACKAGES = {
    "containerd": Package(debian="containerd", fedora="containerd"),
    "ctr": Package(debian="containerd", fedora="containerd"),
    "runc": Package(debian="runc", fedora="runc"),
    "iptables": Package(debian="iptables", fedora="iptables-nft"),
    "busybox": Package(debian="busybox-static", fedora="busybox"),
    "the CNI plugins": Package(debian="containernetworking-plugins", fedora="containernetworking-plugins"),
}


class RuntimePrograms(Struct, frozen=True, kw_only=True):
    """Where the parts of the private runtime are."""

    containerd: Path
    ctr: Path
    runc: Path
    cni_folder: Path
    iptables: Path | None
    """None where pods go without masquerading and host ports."""


def search_path(first: Iterable[Path] = ()) -> str:
    """A PATH value: `first`, then this process's PATH, then the folders it may lack."""
    parts = [str(folder) for folder in first]
    parts += os.environ.get("PATH", "").split(os.pathsep)
    parts += EXTRA_FOLDERS
    return os.pathsep.join(dict.fromkeys(part for part in parts if part))


def find(name: str, *, folder: Path | None = None) -> Path | None:
    """The program of this name, looked for in `folder` first."""
    found = shutil.which(name, path=search_path([folder] if folder else []))
    return Path(found) if found else None


def missing(names: Iterable[str]) -> MissingProgram:
    """The error that names everything missing at once, with the commands that install it."""
    listed = list(dict.fromkeys(names))
    known = [PACKAGES[name] for name in listed if name in PACKAGES]
    text = f"not installed: {', '.join(listed)}"
    if known:
        debian = " ".join(dict.fromkeys(package.debian for package in known))
        fedora = " ".join(dict.fromkeys(package.fedora for package in known))
        text += f"; on Debian or Ubuntu: apt-get install {debian}; on Fedora: dnf install {fedora}"
    return MissingProgram(text)


def find_cni_folder(folders: Iterable[str] = CNI_FOLDERS) -> Path | None:
    """The first folder that has every CNI plugin the pod network uses."""
    for folder in folders:
        if all(os.access(Path(folder, plugin), os.X_OK) for plugin in NEEDED_CNI_PLUGINS):
            return Path(folder)
    return None


def find_runtime(*, folder: Path | None = None) -> RuntimePrograms:
    """Everything the private runtime needs; raises MissingProgram that names all that is not there.

    `folder` is looked in first, so that a containerd of another version can be used.
    """
    found = {name: find(name, folder=folder) for name in ("containerd", "ctr", "runc")}
    cni = find_cni_folder()
    absent = [name for name, path in found.items() if path is None]
    if cni is None:
        absent.append("the CNI plugins")
    containerd, ctr, runc = found["containerd"], found["ctr"], found["runc"]
    if containerd is None or ctr is None or runc is None or cni is None:
        raise missing(absent)
    return RuntimePrograms(containerd=containerd, ctr=ctr, runc=runc, cni_folder=cni, iptables=find("iptables"))


async def run(
    command: Sequence[str | Path],
    *,
    stdin: bytes = b"",
    within: float = 60.0,
    check: bool = True,
) -> tuple[int, str]:
    """Run to the end; give the exit status and stdout. With `check` a failure raises with the program's own words."""
    from pykubelet.kit.programs import run_program  # asyncio with it: finding programs does without

    words = [str(word) for word in command]
    try:
        finished = await run_program(words, stdin=stdin, seconds=within)
    except TimeoutError as error:
        raise StandaloneError(f"{' '.join(words)}: not finished after {within:g} s") from error
    except OSError as error:
        raise StandaloneError(f"{words[0]}: {error.strerror}") from error
    if check and finished.status != 0:
        raise StandaloneError(f"{' '.join(words)}: exit status {finished.status}: {finished.complaint()}")
    return finished.status, finished.out.decode(errors="replace")
