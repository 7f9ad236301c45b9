"""The process of a private containerd: its folders, its configuration, its start. Nothing here waits for it.

containerd takes a good tenth of a second to come up, and the agent as long to be imported: `up` launches the one before
it imports the other. So there is no asyncio and no gRPC here, and what `containerd --version` says is kept for as
long as the program is the same. Whether it answers is asked by containerd.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

from pykubelet.standalone import config, daemon
from pykubelet.standalone.daemon import Daemon
from pykubelet.standalone.errors import StandaloneError
from pykubelet.standalone.image_names import PAUSE
from pykubelet.standalone.layout import Layout
from pykubelet.standalone.programs import RuntimePrograms, search_path

CAP_SYS_RESOURCE = 24
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
LARGEST_LOG = 16 * 1024 * 1024
VERSION_WITHIN = 60.0


class ContainerdLaunch:
    """One containerd of one state folder, launched or found running."""

    def __init__(self, layout: Layout, programs: RuntimePrograms, *, sandbox_image: str = PAUSE) -> None:
        self.layout = layout
        self.programs = programs
        self.daemon: Daemon | None = None
        self.adopted = False
        """Whether it was running already."""
        self.outdated: Daemon | None = None
        """One that hangs or has another configuration: it must end before another is launched."""
        self.log_begin = 0
        """Where the log of the last launch begins."""
        self._sandbox_image = sandbox_image
        self._digest = ""
        self._lock: int | None = None

    @property
    def is_begun(self) -> bool:
        return self._lock is not None

    def begin(self) -> None:
        """Take the state folder; adopt the containerd that runs there, or launch one."""
        if os.geteuid() != 0:
            raise StandaloneError("running containers needs root: start pykubelet as root or with sudo")
        self._take_folder()
        try:
            self._adopt_or_launch()
        except BaseException:
            self.release()
            raise

    def _adopt_or_launch(self) -> None:
        text = config.render(self.layout, self._facts())
        self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.daemon, self.adopted, self.outdated = None, False, None
        running = daemon.load(self.layout.pid_file)
        if running is not None and running.config_digest == self._digest and self.is_listening():
            self.daemon, self.adopted = running, True
            return
        self.layout.config.write_text(text)
        if running is None:
            self.launch()
        else:
            self.outdated = running

    def launch(self) -> Daemon:
        """Start the program with the configuration written last."""
        _rotate(self.layout.log)
        self.log_begin = self.layout.log.stat().st_size if self.layout.log.exists() else 0
        path = search_path([self.programs.containerd.parent])
        self.daemon = daemon.spawn(
            [self.programs.containerd, "--config", self.layout.config],
            environment={**os.environ, "PATH": path},
            log=self.layout.log,
            config_digest=self._digest,
        )
        self.daemon.save(self.layout.pid_file)
        self.adopted = False
        return self.daemon

    def is_listening(self) -> bool:
        with socket.socket(socket.AF_UNIX) as attempt:
            return attempt.connect_ex(str(self.layout.socket)) == 0

    def release(self) -> None:
        """Let go of the state folder without ending anything."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_folder(self) -> None:
        try:
            self.layout.state_dir.mkdir(parents=True, exist_ok=True)
            self.layout.state_dir.chmod(0o711)
            if self._lock is None:
                self._lock = _take_lock(self.layout.lock)
            forget_last_boot(self.layout, BOOT_ID.read_text().strip())
            for folder in self.layout.folders():
                folder.mkdir(exist_ok=True)
        except OSError as error:
            raise StandaloneError(f"state folder {self.layout.state_dir}: {error.strerror}") from error

    def _facts(self) -> config.ContainerdFacts:
        return config.ContainerdFacts(
            version=parse_version(version_text(self.programs.containerd, self.layout.version_file)),
            sandbox_image=self._sandbox_image,
            runc=self.programs.runc,
            cni_folder=self.programs.cni_folder,
            may_lower_oom_score=has_capability(CAP_SYS_RESOURCE, Path("/proc/self/status").read_text()),
        )


def version_text(program: Path, kept: Path) -> str:
    """What `containerd --version` says; from the file `kept` while the program is the one that said it."""
    found = program.stat()
    identity = [str(program.resolve()), found.st_ino, found.st_size, found.st_mtime_ns]
    try:
        record = json.loads(kept.read_text())
        if record["program"] == identity:
            return str(record["says"])
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the program is asked
    command = [str(program), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_WITHIN, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StandaloneError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise StandaloneError(f"{' '.join(command)}: exit status {done.returncode}: {done.stderr.strip()[-300:]}")
    parse_version(done.stdout)  # what is no version is not kept
    kept.write_text(json.dumps({"program": identity, "says": done.stdout}))
    return done.stdout


def parse_version(output: str) -> tuple[int, int]:
    """Major and minor from `containerd --version`."""
    for word in output.split():
        if found := re.match(r"v?(\d+)\.(\d+)(\.|$)", word):
            return int(found[1]), int(found[2])
    raise StandaloneError(f"containerd --version says {output.strip()!r}: no version in it")


def has_capability(number: int, status: str) -> bool:
    """From the text of /proc/self/status."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> number & 1)


def forget_last_boot(layout: Layout, boot: str) -> None:
    """Remove what describes running containers when the machine was started anew: none of it is true any more."""
    if layout.boot_file.exists() and layout.boot_file.read_text() == boot:
        return
    for folder in (layout.run, layout.ipam_dir):
        shutil.rmtree(folder, ignore_errors=True)
    layout.boot_file.write_text(boot)


def _take_lock(path: Path) -> int:
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise StandaloneError(f"state folder {path.parent}: another pykubelet is using it") from None
    return handle


def _rotate(log: Path) -> None:
    if log.exists() and log.stat().st_size > LARGEST_LOG:
        log.replace(log.with_suffix(".log.1"))
