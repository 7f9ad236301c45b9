"""The committed pause program: that it is made from its source, its file format, its behaviour where it can run."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from pykubelet.standalone.images import is_static, pause_program

ROOT = Path(__file__).resolve().parents[3]
LOAD_ADDRESS = 0x400000
NATIVE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine())

ARM_CODE = """
d2880049 f2a00029 f81f0fe9 d2800000 910003e1 d2800002 d2800103 d28010e8 d4000001 910003e0 d2800001
d2800002 d2800103 d2801128 d4000001 3100101f 54ffff20 7100441f 54000080 d2800000 d2800bc8 d4000001
92800000 d2800001 d2800022 d2800003 d2802088 d4000001 7100001f 54ffff2c 17ffffeb
"""


@pytest.mark.skipif(shutil.which("llvm-mc") is None, reason="no assembler for both architectures (package llvm)")
@pytest.mark.parametrize("architecture", ["amd64", "arm64"])
def test_assembling_again_changes_nothing(architecture: str) -> None:
    spec = importlib.util.spec_from_file_location("build_pause", ROOT / "tools" / "build_pause.py")
    assert spec is not None and spec.loader is not None
    build_pause = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build_pause)
    assert build_pause.assemble(architecture) == pause_program(architecture), "run python tools/build_pause.py"


@pytest.mark.parametrize(("architecture", "machine"), [("amd64", 62), ("arm64", 183)])
def test_is_a_small_static_executable(architecture: str, machine: int) -> None:
    program = pause_program(architecture)
    kind, found, _, entry = struct.unpack_from("<HHIQ", program, 16)
    assert (kind, found) == (2, machine)
    assert entry == LOAD_ADDRESS + 64 + 2 * 56
    assert is_static(program)
    assert len(program) < 512


def test_arm_code_is_the_reviewed_one() -> None:
    """Executed once in an emulator; this machine may not be able to, so the words are pinned."""
    words = struct.unpack("<31I", pause_program("arm64")[64 + 2 * 56 :])
    assert [f"{word:08x}" for word in words] == ARM_CODE.split()


@pytest.fixture
def pause(tmp_path: Path) -> Path:
    if NATIVE is None:
        pytest.fail(f"no pause program for {platform.machine()}")
    path = tmp_path / "pause"
    path.write_bytes(pause_program(NATIVE))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_leaves_with_zero_when_told_to(pause: Path, number: signal.Signals) -> None:
    process = subprocess.Popen([pause])
    try:
        while "State:\tS" not in Path(f"/proc/{process.pid}/status").read_text():
            assert process.poll() is None  # a few microseconds until it waits; before, signals would just kill it
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        os.kill(process.pid, signal.SIGCONT)
        os.kill(process.pid, signal.SIGCHLD)
        process.send_signal(number)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
