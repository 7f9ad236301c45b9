"""Thousands of broken command lines and files: every one is refused with a sentence, none with a traceback."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from typing import Any

from pykubelet.settings.decode import Origin, default_config, encode_config
from pykubelet.settings.errors import SettingsError
from pykubelet.settings.flags import all_flags
from pykubelet.settings.load import LoadedSettings, load_settings
from pykubelet.settings.schema import API_VERSION, KIND, all_settings
from tests.unit.settings.loading import MAIN, load_files

TEXTS = [
    "", "0", "-1", "1", "true", "false", "x", "a=b", "a=b,c", "a<b", "=", ",", ":", ";", "0:memory=1Gi", "a:NoSchedule",
    "10%", "%", "1h", "1Gi", "9" * 400, "-" * 50, "\0", "\udc80", "\n", "é", "٣", '"', '"a",', "::", "0.0.0.0", "1e999",
    "nan", "/", "../..", "v1", "raw", "memory.available<10%", "memory.available=1m", "A=true", "AllAlpha=true",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, 1.5, -0.0, "", "x", "1s", "-1s", "1Gi", "0s", "é", [], [[]],
    [{}], {}, {"": ""}, {"a": None}, {"a": {"a": {}}}, {"memory.available": "5%"}, ["pods", "pods"], "\u2028",
    [None], "9" * 5000,
]  # fmt: skip


def check_refusal(err: SettingsError) -> None:
    assert err.problems
    for problem in err.problems:
        assert problem.strip() and problem.isprintable(), problem
        problem.encode("utf-8")
        assert len(problem) < 2000


def test_command_lines() -> None:
    chance = random.Random(20260401)
    names = list(all_flags())
    refused = 0
    for _ in range(4000):
        arguments = []
        for _ in range(chance.randint(1, 4)):
            name, text = chance.choice(names), chance.choice(TEXTS)
            if chance.random() < 0.1:
                name = name.replace("-", chance.choice("_-. ="), 1)
            shapes = [f"--{name}={text}", f"--{name}", text, f"-{text}", f"-v{text}", f"--{text}"]
            shape = chance.choices(shapes, weights=[10, 1, 1, 1, 1, 1])[0]
            arguments += [shape, text] if chance.random() < 0.1 else [shape]
        try:
            loaded = load_settings(
                arguments,
                environ={},
                folder="/start",
                read=lambda path: b"junk: [",
                list_drop_ins=lambda folder: [f"{folder}/a.conf"],
            )
        except SettingsError as err:
            refused += 1
            check_refusal(err)
        else:
            if isinstance(loaded, LoadedSettings):
                json.dumps(loaded.settings.configz())
    assert 1000 < refused < 4000


GOOD = {"apiVersion": API_VERSION, "kind": KIND, **encode_config(default_config(Origin.MAIN_FILE))}
PATHS = [ref.path for ref in all_settings() if "[]" not in ref.path]


def mutated(chance: random.Random) -> dict[str, Any]:
    document = deepcopy(GOOD)
    for _ in range(chance.randint(1, 4)):
        place: Any = document
        *parents, name = chance.choice(PATHS).split(".")
        for parent in parents:
            below = place.get(parent) if isinstance(place, dict) else None
            if not isinstance(below, dict):
                break
            place = below
        if chance.random() < 0.1:
            name = chance.choice(["nope", "", "kind", "maxpods", "é"])
        place[name] = chance.choice(VALUES)
    return document


def test_files_with_wrong_values() -> None:
    chance = random.Random(20260402)
    refused = 0
    for round_ in range(2500):
        document = json.dumps(mutated(chance), allow_nan=False).encode()
        drop_in = bool(round_ % 3 == 0)
        path = "/d/a.conf" if drop_in else MAIN
        try:
            load_files(["--config-dir=/d" if drop_in else f"--config={MAIN}"], {path: document})
        except SettingsError as err:
            refused += 1
            check_refusal(err)
    assert 500 < refused < 2500


def test_files_with_broken_bytes() -> None:
    chance = random.Random(20260403)
    good = json.dumps(GOOD, indent=1).encode()
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(chance.randint(1, 3)):
            position = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[position] = chance.randrange(256)
                case 1:
                    del data[position : position + chance.randint(1, 40)]
                case 2:
                    data[position:position] = chance.choice(
                        [b"{", b"[", b"&a ", b"*a", b"\x00", b"\n- ", b"? ", b"!!python/x "]
                    )
                case _:
                    del data[position + 1 :]
        try:
            load_files([f"--config={MAIN}"], {MAIN: bytes(data)})
        except SettingsError as err:
            check_refusal(err)
            assert all(problem.startswith((MAIN, "invalid configuration: ")) for problem in err.problems)
