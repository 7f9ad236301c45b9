"""Image archives: complete, consistent, and the same bytes every time."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile

import pytest

from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.images import PAUSE, build, parse_listing, pause_image, to_import
from pykubelet.standalone.packer import Archive, File, Folder, Image, Link, pack

IMAGE = Image(
    name="example.test/a/b:7",
    entries={"bin/tool": File(b"tool", 0o755), "bin/alias": Link("/bin/tool"), "tmp": Folder(0o1777)},
    entrypoint=["/bin/tool"],
    command=["-v"],
    environment={"A": "1"},
    user="1000",
    labels={"l": "m"},
    exposed_ports=["80/tcp"],
)


def unpack(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.isfile()}
        return {name: content.read() for name, content in members.items() if content is not None}


def test_every_reference_leads_to_a_blob_with_that_digest() -> None:
    files = unpack(pack(IMAGE, "amd64").data)
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (described,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[f"blobs/sha256/{described['digest'][7:]}"])
    for descriptor in (described, manifest["config"], *manifest["layers"]):
        blob = files[f"blobs/sha256/{descriptor['digest'][7:]}"]
        assert hashlib.sha256(blob).hexdigest() == descriptor["digest"][7:]
        assert len(blob) == descriptor["size"]


def test_archive_says_name_platform_and_how_to_run() -> None:
    archive = pack(IMAGE, "arm64")
    files = unpack(archive.data)
    (described,) = json.loads(files["index.json"])["manifests"]
    assert described["digest"] == archive.digest
    assert described["platform"] == {"os": "linux", "architecture": "arm64"}
    assert described["annotations"]["io.containerd.image.name"] == "example.test/a/b:7"
    manifest = json.loads(files[f"blobs/sha256/{archive.digest[7:]}"])
    config = json.loads(files[f"blobs/sha256/{manifest['config']['digest'][7:]}"])
    assert config["architecture"] == "arm64"
    assert config["rootfs"]["diff_ids"] == [manifest["layers"][0]["digest"]]
    assert config["config"] == {
        "WorkingDir": "/",
        "Entrypoint": ["/bin/tool"],
        "Cmd": ["-v"],
        "Env": ["A=1"],
        "User": "1000",
        "Labels": {"l": "m"},
        "ExposedPorts": {"80/tcp": {}},
    }


def test_layer_holds_the_entries_after_their_folders() -> None:
    archive = pack(IMAGE, "amd64")
    files = unpack(archive.data)
    manifest = json.loads(files[f"blobs/sha256/{archive.digest[7:]}"])
    layer = files[f"blobs/sha256/{manifest['layers'][0]['digest'][7:]}"]
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        found = [(member.name, oct(member.mode), member.linkname) for member in tar.getmembers()]
        assert all(member.mtime == 0 and member.uid == 0 for member in tar.getmembers())
    assert found == [
        ("bin", "0o755", ""),
        ("bin/alias", "0o777", "/bin/tool"),
        ("bin/tool", "0o755", ""),
        ("tmp", "0o1777", ""),
    ]


def test_same_files_give_the_same_bytes_whatever_their_order() -> None:
    turned = Image(name=IMAGE.name, entries=dict(reversed(IMAGE.entries.items())))
    straight = Image(name=IMAGE.name, entries=IMAGE.entries)
    assert pack(turned, "amd64") == pack(straight, "amd64")


def test_pause_runs_as_nobody() -> None:
    image = pause_image("amd64")
    assert (image.name, image.entrypoint, image.user) == (PAUSE, ["/pause"], "65535:65535")


def test_only_known_images_can_be_built() -> None:
    with pytest.raises(StandaloneError, match=r"example\.test/x:1 is not one of the offline images"):
        build(["example.test/x:1"])


LISTING = """\
REF                     TYPE            DIGEST      SIZE    PLATFORMS   LABELS
pykubelet.local/pause:1 application/json sha256:aaa 10.8 KiB linux/amd64 io.cri-containerd.image=managed
pykubelet.local/new:1   application/json sha256:bbb 2.0 MiB  linux/amd64 -
"""


def test_listing_is_read() -> None:
    assert parse_listing(LISTING) == {
        "pykubelet.local/pause:1": ("sha256:aaa", True),
        "pykubelet.local/new:1": ("sha256:bbb", False),
    }
    assert parse_listing("REF TYPE DIGEST SIZE PLATFORMS LABELS\n") == {}


@pytest.mark.parametrize(
    ("name", "digest", "wanted"),
    [
        ("pykubelet.local/pause:1", "sha256:aaa", False),
        ("pykubelet.local/pause:1", "sha256:other", True),
        ("pykubelet.local/absent:1", "sha256:aaa", True),
    ],
)
def test_images_that_are_there_are_not_imported_again(name: str, digest: str, wanted: bool) -> None:
    archive = Archive(name=name, digest=digest, data=b"")
    assert to_import([archive], parse_listing(LISTING)) == ([archive] if wanted else [])
