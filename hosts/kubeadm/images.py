"""The images of a cluster made with kubeadm, packed from programs that tools/build-go.sh built and from this machine's.

Nothing is pulled: the names begin with PREFIX, which is no registry, and are those that `kubeadm config images list`
prints for it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from conformance.images import libraries
from msgspec.structs import replace

from pykubelet.standalone.images import PATH, busybox_image, find_busybox, pause_image
from pykubelet.standalone.packer import Archive, Entry, File, Folder, Image, Link, architecture, pack

PREFIX = "pykubelet.local"
FIRST, UPGRADED = "v1.36.3", "v1.36.4"
"""Tags of Kubernetes' own programs. The second names the same image: an upgrade changes what kubeadm writes, and with
it what runs, but not what the programs do."""
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
COREDNS, ETCD, PAUSE = "v1.14.2", "3.6.8-0", "3.10.2"
PLUGINS = ("bridge", "host-local", "loopback", "portmap")
IPTABLES = (
    *("iptables", "iptables-save", "iptables-restore"),
    *("ip6tables", "ip6tables-save", "ip6tables-restore"),
)
SCRIPT = Path(__file__).parent / "files/node-network.sh"


def node_images(programs: Path, control_plane: Path) -> list[Archive]:
    """What every node runs. `programs` and `control_plane` hold what was built of those targets."""
    tools = dict(busybox_image(find_busybox()).entries)
    curl = _program("curl")
    plugins: dict[str, Entry] = {f"plugins/{name}": _file(programs / name) for name in PLUGINS}
    network: dict[str, Entry] = {
        "node-network.sh": _file(SCRIPT),
        "usr/local/bin/kubectl": _file(control_plane / "kubectl"),
    }
    proxy = _iptables() | {"usr/local/bin/kube-proxy": _file(programs / "kube-proxy")}
    images = [
        replace(pause_image(architecture()), name=f"{PREFIX}/pause:{PAUSE}"),
        Image(
            name=f"{PREFIX}/coredns:{COREDNS}",
            entries={"coredns": _file(programs / "coredns"), "etc": Folder()},
            entrypoint=["/coredns"],
        ),
        _image("node-network:1", tools | plugins | network),
        _image("tools:1", tools | libraries([curl]) | {"usr/bin/curl": _file(curl)}),
        _image(f"kube-proxy:{FIRST}", proxy),
    ]
    return [pack(image, architecture()) for image in images]


def control_plane_images(programs: Path, control_plane: Path) -> list[Archive]:
    """What the static pods of the control plane run."""
    images = [_image(f"etcd:{ETCD}", {"usr/local/bin/etcd": _file(programs / "etcd")})]
    images += [
        _image(f"{name}:{FIRST}", {f"usr/local/bin/{name}": _file(control_plane / name)}) for name in CONTROL_PLANE
    ]
    return [pack(image, architecture()) for image in images]


def _image(name: str, entries: Mapping[str, Entry]) -> Image:
    return Image(name=f"{PREFIX}/{name}", entries=entries, environment=PATH)


def _iptables() -> dict[str, Entry]:
    """iptables over nf_tables, with the extensions that it loads by name."""
    program = _program("xtables-nft-multi")
    extensions = _extensions()
    entries: dict[str, Entry] = {f"usr/sbin/{name}": Link("xtables-nft-multi") for name in IPTABLES}
    entries |= {str(path).lstrip("/"): _file(path) for path in extensions}
    return entries | libraries([program, *extensions]) | {"usr/sbin/xtables-nft-multi": _file(program)}


def _extensions() -> list[Path]:
    folders = [folder for folder in Path("/usr/lib").glob("*/xtables") if folder.is_dir()]
    if len(folders) != 1:
        raise RuntimeError(f"the extensions of iptables are in {len(folders)} folders below /usr/lib, not in 1")
    return sorted(folders[0].glob("*.so"))


def _program(name: str) -> Path:
    found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        raise RuntimeError(f"{name} is missing: tools/setup.sh hosts installs it")
    return Path(found).resolve()


def _file(path: Path) -> File:
    return File(path.read_bytes(), 0o755)
