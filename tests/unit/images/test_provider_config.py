"""The configuration of credential plugins: what it means, and every fault with its file and field."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from pykubelet.images.provider_config import ProviderSpec, TokenAttributes, config_hash, load_providers
from pykubelet.settings.errors import SettingsError

V1 = "credentialprovider.kubelet.k8s.io/v1"
GOOD = {"name": "one", "apiVersion": V1, "matchImages": ["*.r.io"], "defaultCacheDuration": "10m"}
TOKEN = {"serviceAccountTokenAudience": "aud", "cacheType": "Token", "requireServiceAccount": True}


class Folder:
    """A configuration on disk with programs one and two."""

    def __init__(self, root: Path) -> None:
        self.file = root / "config.yaml"
        self.programs = root / "bin"
        self.programs.mkdir()
        for name in ("one", "two"):
            (self.programs / name).touch(0o755)

    def write(self, *providers: Any, version: str = "v1", file: Path | None = None, **document: Any) -> None:
        content = {"apiVersion": f"kubelet.config.k8s.io/{version}", "kind": "CredentialProviderConfig"}
        (file or self.file).write_text(json.dumps({**content, "providers": list(providers), **document}))

    def faults(self, **options: Any) -> list[str]:
        with pytest.raises(SettingsError) as caught:
            load_providers(self.file, self.programs, **options)
        return [problem.replace(str(self.file.parent), "D") for problem in caught.value.problems]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_the_hash_of_a_folder_is_over_its_files_with_their_lengths(folder: Folder) -> None:
    top = folder.file.parent / "conf.d"
    top.mkdir()
    for name in ("b.yaml", "a.json", "left-out.txt"):
        (top / name).write_text(name)
    told = b"".join(len(name).to_bytes(8, "big") + name.encode() for name in ("a.json", "b.yaml"))
    assert config_hash(top) == f"sha256:{hashlib.sha256(told).hexdigest()}"


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_every_version_of_the_file(folder: Folder, version: str) -> None:
    protocol = f"credentialprovider.kubelet.k8s.io/{version}"
    env = [{"name": "A", "value": "b"}]
    folder.write(GOOD | {"apiVersion": protocol, "args": ["-x"], "env": env}, version=version)
    assert load_providers(folder.file, folder.programs) == [
        ProviderSpec(
            name="one",
            match_images=("*.r.io",),
            default_cache_seconds=600.0,
            api_version=protocol,
            args=("-x",),
            env=(("A", "b"),),
        )
    ]


def test_token_attributes(folder: Folder) -> None:
    keys = {"requiredServiceAccountAnnotationKeys": ["x.io/A"], "optionalServiceAccountAnnotationKeys": ["b"]}
    folder.write(GOOD | {"tokenAttributes": TOKEN | keys})
    [spec] = load_providers(folder.file, folder.programs)
    assert spec.token == TokenAttributes(
        audience="aud",
        cache_type="Token",
        require_account=True,
        required_annotations=("x.io/A",),
        optional_annotations=("b",),
    )
    assert folder.faults(tokens=False) == [
        "D/config.yaml: providers[0].tokenAttributes: "
        "needs the feature gate KubeletServiceAccountTokenForCredentialProviders"
    ]


def test_a_folder_is_read_in_the_order_of_names(folder: Folder, tmp_path: Path) -> None:
    configs = tmp_path / "configs"
    configs.mkdir()
    folder.file = configs
    assert folder.faults() == [
        "--image-credential-provider-config: D/configs: the folder has no .json, .yaml or .yml file"
    ]
    folder.write(GOOD | {"name": "two"}, file=configs / "20.json")
    folder.write(GOOD, file=configs / "10.yml")
    (configs / "note.txt").write_text("no")
    assert [spec.name for spec in load_providers(configs, folder.programs)] == ["one", "two"]
    folder.write(GOOD, file=configs / "30.yaml")
    assert folder.faults() == ["D/configs/30.yaml: providers: the name one is also in D/configs/10.yml"]


NAME = "name"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({NAME: ""}, "name: is required"),
        ({NAME: "a/b"}, "name: cannot contain '/'"),
        ({NAME: "a b"}, "name: cannot contain spaces"),
        ({NAME: "."}, "name: cannot be '.' or '..'"),
        ({NAME: ".."}, "name: cannot be '.' or '..'"),
        ({NAME: 1}, "name: must be a string"),
        ({"apiVersion": "v1"}, f"apiVersion: must be one of {V1}, {V1}alpha1, {V1}beta1, not 'v1'"),
        ({"matchImages": None}, "matchImages: must list at least one pattern"),
        ({"matchImages": ["a b"]}, "matchImages: 'a b' is no host and path"),
        ({"matchImages": "a"}, "matchImages: must be a list"),
        ({"matchImages": [1]}, "matchImages: must be a list of strings"),
        ({"defaultCacheDuration": None}, "defaultCacheDuration: is required and must be a duration such as 12h or 0s"),
        ({"defaultCacheDuration": "1"}, 'defaultCacheDuration: duration "1": unit is missing, must be one of'),
        ({"defaultCacheDuration": "-1s"}, "defaultCacheDuration: -1s: must be 0 or more"),
        ({"env": [{"name": "", "value": "x"}]}, "env[0].name: must be the name of an environment variable"),
        ({"env": [{"nam": "", "value": "x"}]}, "env[0].nam: unknown field (did you mean name?)"),
        ({"env": ["x"]}, "env[0]: must be an object"),
        ({"argz": []}, "argz: unknown field (did you mean args?)"),
        ({"tokenAttributes": []}, "tokenAttributes: must be an object"),
    ],
)
def test_faults_of_a_provider(folder: Folder, changes: dict[str, Any], said: str) -> None:
    folder.write(GOOD | changes)
    faults = folder.faults()
    assert any(fault.startswith(f"D/config.yaml: providers[0].{said}") for fault in faults), faults


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"serviceAccountTokenAudience": ""}, ".serviceAccountTokenAudience: is required"),
        ({"cacheType": None}, ".cacheType: must be one of ServiceAccount, Token, not ''"),
        ({"cacheType": "x"}, ".cacheType: must be one of ServiceAccount, Token, not 'x'"),
        ({"requireServiceAccount": None}, ".requireServiceAccount: is required and must be true or false"),
        (
            {"requireServiceAccount": False, "requiredServiceAccountAnnotationKeys": ["a"]},
            ".requiredServiceAccountAnnotationKeys: cannot be set when requireServiceAccount is false",
        ),
        ({"requiredServiceAccountAnnotationKeys": ["a", "a"]}, ".requiredServiceAccountAnnotationKeys: duplicate: a"),
        ({"optionalServiceAccountAnnotationKeys": ["a b"]}, ".optionalServiceAccountAnnotationKeys: a b: must"),
        (
            {"requiredServiceAccountAnnotationKeys": ["a"], "optionalServiceAccountAnnotationKeys": ["a"]},
            ": annotation keys cannot be both required and optional: a",
        ),
        ({"audience": "x"}, ".audience: unknown field"),
    ],
)
def test_faults_of_token_attributes(folder: Folder, changes: dict[str, Any], said: str) -> None:
    folder.write(GOOD | {"tokenAttributes": TOKEN | changes})
    faults = folder.faults()
    assert any(fault.startswith(f"D/config.yaml: providers[0].tokenAttributes{said}") for fault in faults), faults


def test_token_attributes_need_the_newest_protocol_and_file(folder: Folder) -> None:
    folder.write(GOOD | {"apiVersion": f"{V1}beta1", "tokenAttributes": TOKEN})
    assert folder.faults() == [f"D/config.yaml: providers[0].tokenAttributes: is only supported with apiVersion {V1}"]
    folder.write(GOOD | {"tokenAttributes": TOKEN}, version="v1beta1")
    assert folder.faults() == ["D/config.yaml: providers[0].tokenAttributes: unknown field"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must hold one object of kind CredentialProviderConfig"),
        ("[]", "must hold one object of kind CredentialProviderConfig"),
        ("{}\n---\n{}", "must hold one object of kind CredentialProviderConfig"),
        ("{", "line "),
        ("{}", "apiVersion: must be one of kubelet.config.k8s.io/v1, "),
        ("{apiVersion: kubelet.config.k8s.io/v1, kind: Pod}", "kind: must be CredentialProviderConfig, not 'Pod'"),
        (
            "{apiVersion: kubelet.config.k8s.io/v1, kind: CredentialProviderConfig}",
            "providers: must list at least one provider",
        ),
    ],
)
def test_faults_of_the_file(folder: Folder, text: str, said: str) -> None:
    folder.file.write_text(text)
    assert folder.faults()[0].startswith(f"D/config.yaml: {said}")


def test_all_faults_are_told_at_once(folder: Folder) -> None:
    folder.write(GOOD | {NAME: ""}, GOOD | {"matchImages": []}, GOOD, GOOD)
    assert len(folder.faults()) == 3


def test_programs_must_be_there(folder: Folder, tmp_path: Path) -> None:
    (folder.programs / "two").chmod(0o644)
    folder.write(GOOD | {NAME: "none"}, GOOD | {NAME: "two"})
    assert folder.faults() == [
        "D/config.yaml: providers: none: the plugin's program D/bin/none does not exist",
        "D/config.yaml: providers: two: the plugin's program D/bin/two is not an executable file",
    ]
    folder.programs = tmp_path / "nowhere"
    assert folder.faults() == ["--image-credential-provider-bin-dir: D/nowhere: no such folder"]
    folder.file = tmp_path / "missing.yaml"
    assert folder.faults()[1:] == ["D/missing.yaml: No such file or directory"]
