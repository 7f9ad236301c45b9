"""The test driver as a process beside an agent, and a stand-in for the part of the control plane that attaches.

Nothing here provisions: persistent volumes are made by the tests. The attacher marks every VolumeAttachment of the
driver as attached, as an external attacher would after asking the storage.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bed.cluster import Cluster
from tests.bed.parts import REPO

DRIVER = "bed.example.com"
Manifest = dict[str, Any]


class BedDriver:
    def __init__(self, folder: Path, root: Path, name: str = DRIVER) -> None:
        self._name = name
        self.data = folder / "csi-data"
        self.log_file = folder / "csi-calls.jsonl"
        self._output = folder / "csi-driver.log"
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, hang: str = "") -> None:
        """`hang`: a call that is never answered."""
        registry = self._root / "plugins_registry"
        registry.mkdir(parents=True, exist_ok=True)
        guard = [shutil.which("setpriv") or "setpriv", "--pdeathsig", "KILL"]
        words = ["--name", self._name, "--socket", str(self._root / "plugins" / self._name / "csi.sock")]
        words += ["--registry", str(registry), "--data", str(self.data), "--log", str(self.log_file)]
        with self._output.open("ab") as log:
            self._process = subprocess.Popen(
                [*guard, sys.executable, "-m", "tests.bed.csi_driver", *words, "--hang", hang],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=REPO,
            )

    def kill9(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def calls(self) -> list[Manifest]:
        try:
            return [json.loads(line) for line in self.log_file.read_text().splitlines()]
        except FileNotFoundError:
            return []

    def loop_devices(self) -> list[str]:
        """Devices that are still attached to volumes of this driver."""
        listed = subprocess.run(
            ["losetup", "--noheadings", "--output", "BACK-FILE"], capture_output=True, text=True, check=True
        )
        return [line for line in listed.stdout.splitlines() if str(self.data) in line]

    def tidy(self) -> None:
        """End it, for good, and what a failed test may have left of it."""
        self.kill9()
        (self._root / "plugins_registry" / f"{self._name}-reg.sock").unlink(missing_ok=True)
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            point = line.split()[4]
            if point.startswith((f"{self._root}/plugins/", f"{self._root}/pods/")) and "csi" in point:
                subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
        for file in self.data.glob("*.img"):
            listed = subprocess.run(
                ["losetup", "--noheadings", "--output", "NAME", "--associated", str(file)],
                capture_output=True,
                text=True,
                check=False,
            )
            for device in listed.stdout.split():
                subprocess.run(["losetup", "--detach", device], check=False)


class Attacher:
    """Says yes to every attachment, from a thread of its own."""

    def __init__(self, cluster: Cluster, driver: str = DRIVER) -> None:
        self._cluster = cluster
        self._driver = driver
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="attacher", daemon=True)
        self.paused = False

    def _work(self) -> None:
        while not self._stop.wait(0.2):
            if self.paused:
                continue
            for each in self._cluster.get("volumeattachments")["items"]:
                if each["spec"]["attacher"] == self._driver and not each.get("status", {}).get("attached"):
                    self._attach(each["metadata"]["name"])

    def _attach(self, name: str) -> None:
        status = {"status": {"attached": True, "attachmentMetadata": {"path": "/from/the/controller"}}}
        self._cluster.kubectl(
            *("patch", "volumeattachment", name, "--subresource=status", "--type=merge", "-p", json.dumps(status)),
            check=False,
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def bed_driver(folder: Path, root: Path, cluster: Cluster, name: str = DRIVER) -> Iterator[tuple[BedDriver, Attacher]]:
    driver, attacher = BedDriver(folder, root, name), Attacher(cluster, name)
    driver.start()
    attacher.start()
    try:
        yield driver, attacher
    finally:
        attacher.stop()
        driver.tidy()


def a_driver(name: str = DRIVER, **spec: Any) -> Manifest:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name},
        "spec": {"attachRequired": True, "volumeLifecycleModes": ["Persistent", "Ephemeral"], **spec},
    }


def a_bound_volume(name: str, handle: str, *, block: bool = False, size: str = "320Mi", **csi: Any) -> list[Manifest]:
    """A persistent volume and the claim it is bound to, both called NAME."""
    mode = "Block" if block else "Filesystem"
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": mode,
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "by-hand",
            "claimRef": {"namespace": "default", "name": name},
            "csi": {"driver": DRIVER, "volumeHandle": handle, **({} if block else {"fsType": "xfs"}), **csi},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "volumeMode": mode,
            "storageClassName": "by-hand",
            "volumeName": name,
            "resources": {"requests": {"storage": size}},
        },
    }
    return [volume, claim]


def wait_until(what: str, holds: Any, within: float = 60.0) -> Any:
    deadline = time.monotonic() + within
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.05)
    return found
