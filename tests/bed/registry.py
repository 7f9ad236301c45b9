"""An image registry on loopback, open or with a password, and pushing offline images into it."""

from __future__ import annotations

import base64
import http.client
import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pykubelet.standalone.images import BUSYBOX, build
from pykubelet.standalone.packer import MANIFEST_TYPE, Archive
from tests.bed.parts import free_port, need_program, scratch_folder
from tests.bed.services import Service

USER, PASSWORD = "bed", "bed-password"
PASSWORD_LINE = f"{USER}:$2b$04$pykubeletbedpykubeletu.yMlvZqbw7dWuoHk9KkqvBDB8S1LkDu\n"


class Registry:
    """One registry. `user` and `password` are None when it asks for none."""

    def __init__(self, folder: Path, *, with_password: bool) -> None:
        program = need_program("docker-registry", "docker-registry")
        self.host = f"127.0.0.1:{free_port()}"
        self.user = USER if with_password else None
        self.password = PASSWORD if with_password else None
        config = folder / "config.yml"
        config.write_text(json.dumps(self._config(folder, with_password)))  # JSON is YAML
        self._service = Service("docker-registry", [program, "serve", config], folder)

    def start(self) -> None:
        self._service.start()
        self._service.wait_for("answer", self._answers)

    def stop(self) -> None:
        """Make it unreachable; `start` brings it back with what it had."""
        self._service.stop()

    def log(self) -> str:
        return self._service.log_file.read_text()

    def push(self, name: str, archive: Archive | None = None) -> str:
        """Store an image, busybox unless told otherwise, as `name:tag`; gives the full reference to pull."""
        repository, _, tag = name.partition(":")
        archive = archive or build([BUSYBOX])[0]
        found = blobs(archive)
        manifest = found.pop(archive.digest)
        for digest, blob in found.items():
            status, headers = self._call("POST", f"/v2/{repository}/blobs/uploads/")
            assert status == 202, f"registry refuses an upload: {status}"
            place = headers["Location"].split(self.host, 1)[-1]
            joint = "&" if "?" in place else "?"
            status, _ = self._call("PUT", f"{place}{joint}digest={digest}", blob, "application/octet-stream")
            assert status == 201, f"registry refuses blob {digest}: {status}"
        status, _ = self._call("PUT", f"/v2/{repository}/manifests/{tag or 'latest'}", manifest, MANIFEST_TYPE)
        assert status == 201, f"registry refuses the manifest: {status}"
        return f"{self.host}/{repository}:{tag or 'latest'}"

    def _config(self, folder: Path, with_password: bool) -> dict[str, object]:
        config: dict[str, object] = {
            "version": 0.1,
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}, "delete": {"enabled": True}},
            "http": {"addr": self.host, "secret": "bed"},
        }
        if with_password:
            (folder / "htpasswd").write_text(PASSWORD_LINE)
            config["auth"] = {"htpasswd": {"realm": "bed", "path": str(folder / "htpasswd")}}
        return config

    def _answers(self) -> bool:
        try:
            return self._call("GET", "/v2/")[0] == 200
        except OSError:
            return False

    def _call(
        self, method: str, path: str, body: bytes | None = None, media_type: str = ""
    ) -> tuple[int, http.client.HTTPMessage]:
        headers = {"Content-Type": media_type} if media_type else {}
        if self.user:
            token = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        connection = http.client.HTTPConnection(self.host, timeout=10)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status, answer.headers
        finally:
            connection.close()


def blobs(archive: Archive) -> dict[str, bytes]:
    """Digest -> content of everything an archive holds."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive.data)) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member) if member.name.startswith("blobs/sha256/") else None
            if content is not None:
                found["sha256:" + member.name.rpartition("/")[2]] = content.read()
    return found


@contextmanager
def running_registry(*, with_password: bool) -> Iterator[Registry]:
    """A registry for as long as the block lasts."""
    with scratch_folder("pklreg-") as folder:
        registry = Registry(folder, with_password=with_password)
        try:
            registry.start()
            yield registry
        finally:
            registry.stop()
