"""`pykubelet check`: the lines it prints and the status it gives."""

import io
import os
from pathlib import Path

import pytest

from pykubelet.cli.check import run_check

EXAMPLES = Path(__file__).parents[3] / "examples"
GOOD = "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}\n"
BAD = GOOD.replace("image: i", "image: i, ports: [{containerPort: 70000}, {containerPort: 80, nme: x}]")


def check(*files: object, stdin: bytes = b"") -> tuple[int, list[str]]:
    out = io.StringIO()
    status = run_check([str(file) for file in files], out, stdin=io.BytesIO(stdin))
    return status, out.getvalue().splitlines()


def test_the_examples_are_ok() -> None:
    status, lines = check(EXAMPLES)
    assert status == 0 and len(lines) == 5
    assert all(line.endswith(".yaml: ok") for line in lines)


def test_one_line_a_problem(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text(BAD)
    assert check(bad) == (
        1,
        [
            f"{bad}: spec.containers[0].ports[1].nme: unknown field",
            f"{bad}: spec.containers[0].ports[0].containerPort: must be 1..65535, not 70000",
        ],
    )


def test_every_file_gets_its_say(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.yml"
    good.write_text(GOOD)
    bad.write_text("kind: Pod\n  x: y\n")
    (tmp_path / "notes.txt").write_text("not looked at")
    (tmp_path / "sub.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "lost.yaml").symlink_to(tmp_path / "nowhere")
    status, lines = check(tmp_path, good)
    assert status == 1
    assert lines == [
        f"{bad}: line 2: invalid YAML: mapping values are not allowed in this context",
        f"{good}: ok",
        f"{tmp_path / 'lost.yaml'}: cannot be read: no such file or directory",
        f"{good}: ok",
    ]


def test_several_documents() -> None:
    status, lines = check("-", stdin=f"{GOOD}---\n---\n{BAD}---\n[]\n".encode())
    assert status == 1
    assert lines == [
        "standard input: document 2: spec.containers[0].ports[1].nme: unknown field",
        "standard input: document 2: spec.containers[0].ports[0].containerPort: must be 1..65535, not 70000",
        "standard input: document 3: line 1: expected a Pod, found a list",
    ]


def test_good_documents_are_one_ok() -> None:
    assert check("-", stdin=f"{GOOD}---\n{GOOD}".encode()) == (0, ["standard input: ok"])


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "line 1: nothing here, expected a Pod"),
        (b"\x00\x01", "line 1: control character U+0000 is not allowed (a binary file?)"),
        (b"#" * 11_000_000, "larger than 10485760 bytes"),
    ],
)
def test_hopeless_files(tmp_path: Path, content: bytes, line: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(content)
    assert check(file) == (1, [f"{file}: {line}"])


def test_missing_files_and_empty_folders(tmp_path: Path) -> None:
    status, lines = check(tmp_path, tmp_path / "gone.yaml")
    assert status == 1
    assert lines == [
        f"{tmp_path}: no manifests (*.yaml, *.yml, *.json) in this folder",
        f"{tmp_path / 'gone.yaml'}: cannot be read: no such file or directory",
    ]


def test_odd_names_cannot_break_the_lines(tmp_path: Path) -> None:
    file = tmp_path / "a\nb.yaml"
    file.write_text(GOOD)
    assert check(file) == (0, [f"{tmp_path}/a\\nb.yaml: ok"])
