"""Loading settings from files held in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pykubelet.settings.errors import SettingsError
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.schema import KubeletConfig

HEADER = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
MAIN = "/etc/node/config.yaml"
DROP_INS = "/etc/node/conf.d"


def load(
    *arguments: str,
    main: str | None = None,
    drop_ins: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedSettings:
    """Load with `main` as the --config file and `drop_ins` as the files of --config-dir."""
    files: dict[str, bytes] = {}
    given: list[str] = []
    if main is not None:
        files[MAIN] = (HEADER + main).encode()
        given.append(f"--config={MAIN}")
    if drop_ins is not None:
        files.update({f"{DROP_INS}/{name}": (HEADER + text).encode() for name, text in drop_ins.items()})
        given.append(f"--config-dir={DROP_INS}")
    return load_files([*given, *arguments], files, environ or {})


def load_files(
    arguments: Sequence[str], files: Mapping[str, bytes], environ: Mapping[str, str] | None = None
) -> LoadedSettings:
    def read(path: str) -> bytes:
        if path not in files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return files[path]

    loaded = load_settings(
        arguments,
        environ=environ or {},
        folder="/start",
        read=read,
        list_drop_ins=lambda folder: sorted(path for path in files if path.startswith(folder + "/")),
    )
    assert isinstance(loaded, LoadedSettings)
    return loaded


def config_of(*arguments: str, main: str | None = None, drop_ins: Mapping[str, str] | None = None) -> KubeletConfig:
    return load(*arguments, main=main, drop_ins=drop_ins).settings.config


def problems_of(*arguments: str, main: str | None = None, drop_ins: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(SettingsError) as caught:
        load(*arguments, main=main, drop_ins=drop_ins)
    return caught.value.problems
