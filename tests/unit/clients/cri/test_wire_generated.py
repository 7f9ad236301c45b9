"""The committed modules are what the generator makes, and the client knows every call of the API."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pykubelet.clients.cri import calls
from pykubelet.clients.cri.client import GrpcCriClient
from pykubelet.clients.cri.port import CriClient
from pykubelet.wire import cri_pb2
from tests.fakes.fake_cri import FakeCri

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_protos", ROOT / "tools" / "gen_protos.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_generating_again_changes_nothing(generator: ModuleType, tmp_path: Path) -> None:
    made = generator.generate(generator.MODULES, tmp_path)
    wire = ROOT / "src" / "pykubelet" / "wire"
    committed = {
        path.relative_to(wire) for pattern in ("*_pb2*.py", "*.pyi", "protos/*.proto") for path in wire.glob(pattern)
    }
    assert committed == {path.relative_to(tmp_path / "pykubelet" / "wire") for path in made}
    for path in made:
        name = path.relative_to(tmp_path)
        assert path.read_text() == (ROOT / "src" / name).read_text(), f"{name}: run python tools/gen_protos.py"


def test_every_table_is_generated(generator: ModuleType) -> None:
    assert set(generator.MODULES.values()) == {path.name for path in generator.DATA.glob("*.tsv")}


@pytest.mark.parametrize(
    ("row", "why"),
    [("message\tA\t1\tb", "4 columns"), ("thing\tA\t1\tb\tstring\t", "unknown kind 'thing'")],
)
def test_a_bad_row_is_named(generator: ModuleType, tmp_path: Path, row: str, why: str) -> None:
    table = tmp_path / "x.tsv"
    table.write_text(f"# package=x\tservices=\tsource=y\n# head\n{row}\n")
    with pytest.raises(generator.BadTable, match=f"x.tsv:3: .*{why}"):
        generator.read_table(table)


NOT_CALLED = {"ContainerStats", "PodSandboxStats"}
"""Methods of the API that the agent has no use for."""


def test_the_call_table_has_every_method_with_its_answer() -> None:
    ours = {rpc.path: rpc.answer for rpc in vars(calls).values() if isinstance(rpc, calls.Rpc)}
    theirs = {
        f"/{service.full_name}/{method.name}": getattr(cri_pb2, method.output_type.name)
        for service in cri_pb2.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert len(theirs) == 41
    assert ours == {path: answer for path, answer in theirs.items() if path.rpartition("/")[2] not in NOT_CALLED}


def test_every_call_in_the_table_is_used() -> None:
    source = inspect.getsource(sys.modules[GrpcCriClient.__module__])
    unused = [
        name for name, rpc in vars(calls).items() if isinstance(rpc, calls.Rpc) and f"calls.{name}," not in source
    ]
    assert unused == []


@pytest.mark.parametrize("kind", [GrpcCriClient, FakeCri])
def test_implementations_have_the_methods_of_the_port(kind: type) -> None:
    wanted = {name for name in dir(CriClient) if not name.startswith("_")}
    assert len(wanted) == 34
    for name in wanted:
        assert parameters(kind, name) == parameters(CriClient, name), name


def parameters(kind: type, method: str) -> list[tuple[str, object, object]]:
    found = inspect.signature(getattr(kind, method)).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in found]
