from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pykubelet.cli.host_setup import set_up_host
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.settings import Settings
from tests.unit.clients.host.test_kernel import a_kernel


def settings(*flags: str) -> Settings:
    # As many files as this process may have at most already: a limit that is lowered cannot be raised again.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    loaded = load_settings([f"--max-open-files={hard}", *flags], environ={})
    assert isinstance(loaded, LoadedSettings)
    return loaded.settings


def test_kernel_settings_are_set(tmp_path: Path) -> None:
    set_up_host(settings(), proc_sys=a_kernel(tmp_path, panic="0"))
    assert (tmp_path / "kernel/panic").read_text() == "10\n"


def test_protected_kernel_settings_end_the_start_and_stay(tmp_path: Path) -> None:
    a_kernel(tmp_path, panic="0", panic_on_oops="0")
    with pytest.raises(SettingsError) as refused:
        set_up_host(settings("--protect-kernel-defaults"), proc_sys=tmp_path)
    assert refused.value.problems == (
        "protectKernelDefaults: kernel/panic is 0, expected 10",
        "protectKernelDefaults: kernel/panic_on_oops is 0, expected 1",
    )
    assert (tmp_path / "kernel/panic").read_text() == "0\n"


def test_a_host_that_refuses_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_up_host(settings(), proc_sys=tmp_path / "missing")
    assert len([record for record in caplog.records if "kernel settings" in record.message]) == 1


def test_open_files_follow_the_setting_as_far_as_the_host_allows(tmp_path: Path) -> None:
    a_kernel(tmp_path)
    script = (
        "import resource, sys\n"
        "from pykubelet.clients.host.process import allow_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 2000))\n"
        "print(allow_open_files(1500), resource.getrlimit(resource.RLIMIT_NOFILE)[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1500 1500\n"


def test_the_lock_file_is_held_from_the_start(tmp_path: Path) -> None:
    a_kernel(tmp_path / "sys")
    lock = set_up_host(settings(f"--lock-file={tmp_path / 'lock'}"), proc_sys=tmp_path / "sys")
    assert lock is not None
    done = subprocess.run(["flock", "-n", str(tmp_path / "lock"), "true"], check=False)
    assert done.returncode == 1
