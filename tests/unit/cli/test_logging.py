"""The agent's own lines are as the settings want them, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
PROGRAM = """
import logging, sys
from pykubelet.cli.agent import start_logging
from pykubelet.settings.load import load_settings
loaded = load_settings(sys.argv[1:], environ={})
start_logging(loaded.settings.config.process.logging)
logging.getLogger("pykubelet.sync.worker").debug("a step")
logging.getLogger("pykubelet.pleg.pleg").debug("another step")
logging.getLogger("pykubelet.pleg.pleg").info("an information")
logging.getLogger("pykubelet.pleg.pleg").error("an error")
"""


def lines(tmp_path: Path, settings: str, *flags: str) -> tuple[list[str], list[str]]:
    config = tmp_path / "config.yaml"
    config.write_text(HEADER + settings)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"--config={config}", *flags], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


def test_text_to_one_stream(tmp_path: Path) -> None:
    out, err = lines(tmp_path, "")
    assert out == []
    assert [line[0] for line in err] == ["I", "E"]


def test_modules_by_name(tmp_path: Path) -> None:
    _, err = lines(tmp_path, "", "--vmodule=worker=5")
    assert ["a step" in line for line in err] == [True, False, False]


def test_json_split_and_held_back_until_the_end(tmp_path: Path) -> None:
    out, err = lines(
        tmp_path,
        "featureGates: {LoggingAlphaOptions: true}\n"
        "logging: {format: json, flushFrequency: 1h, options: {json: {splitStream: true, infoBufferSize: 1Mi}}}",
    )
    assert [json.loads(line)["msg"] for line in out] == ["an information"]
    assert [json.loads(line)["msg"] for line in err] == ["an error"]


def test_the_options_of_the_other_format_do_not_count(tmp_path: Path) -> None:
    out, err = lines(
        tmp_path, "featureGates: {LoggingAlphaOptions: true}\nlogging: {options: {json: {splitStream: true}}}"
    )
    assert out == [] and len(err) == 2
