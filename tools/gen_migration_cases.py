"""Writes tests/unit/volumes/migration_cases.json: what upstream's own tests give to its translation, and its answers.

The library's source is copied from where Go keeps modules, every translation is made to write down its input and its
answer, and the library's tests and some more volumes below are run:

    tools/gen_migration_cases.py "$(go env GOMODCACHE)"
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

VERSION = "v0.36.4"
PAGE = Path(__file__).resolve().parent.parent / "tests" / "unit" / "volumes" / "migration_cases.json"

METHOD = re.compile(
    r"^func \((\w+) (\*?\w+)\) (TranslateInTreeInlineVolumeToCSI|TranslateInTreePVToCSI)\((.*)\) (\(.*\)) \{$", re.M
)
CHANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
RECORDER = """package plugins
import ("encoding/json"; "os"; v1 "k8s.io/api/core/v1"; "k8s.io/klog/v2")
type recorded struct {
    Namespace string `json:"namespace,omitempty"`
    Volume *v1.Volume `json:"volume,omitempty"`
    PV *v1.PersistentVolume `json:"pv,omitempty"`
    Answer *v1.PersistentVolume `json:"answer,omitempty"`
    Error string `json:"error,omitempty"`
}
func write(entry recorded, answer *v1.PersistentVolume, err error) {
    if entry.Volume == nil && entry.PV == nil { return }
    entry.Answer = answer
    if err != nil { entry.Error = err.Error() }
    file, problem := os.OpenFile(os.Getenv("CASES"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
    if problem != nil { panic(problem) }
    defer file.Close()
    if problem := json.NewEncoder(file).Encode(entry); problem != nil { panic(problem) }
}
"""
INLINE = """func (t %s) TranslateInTreeInlineVolumeToCSI(
    logger klog.Logger, volume *v1.Volume, ns string) (*v1.PersistentVolume, error) {
    entry := recorded{Namespace: ns, Volume: volume.DeepCopy()}
    answer, err := t.plainInline(logger, volume, ns)
    write(entry, answer, err)
    return answer, err
}
"""
PERSISTENT = """func (t %s) TranslateInTreePVToCSI(
    logger klog.Logger, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
    entry := recorded{PV: pv.DeepCopy()}
    answer, err := t.plainPV(logger, pv)
    write(entry, answer, err)
    return answer, err
}
"""
MORE = """package plugins
import ("bufio"; "encoding/json"; "os"; "testing"; "k8s.io/klog/v2/ktesting")
func TestMore(t *testing.T) {
    logger, _ := ktesting.NewTestContext(t)
    all := []InTreePlugin{NewAWSElasticBlockStoreCSITranslator(), NewGCEPersistentDiskCSITranslator(),
        NewOpenStackCinderCSITranslator(), NewAzureDiskCSITranslator(), NewAzureFileCSITranslator(),
        NewvSphereCSITranslator(), NewPortworxCSITranslator()}
    file, err := os.Open(os.Getenv("MORE"))
    if err != nil { t.Skip() }
    lines := bufio.NewScanner(file)
    for lines.Scan() {
        var entry recorded
        if err := json.Unmarshal(lines.Bytes(), &entry); err != nil { t.Fatal(err) }
        for _, plugin := range all {
            if plugin.CanSupportInline(entry.Volume) {
                plugin.TranslateInTreeInlineVolumeToCSI(logger, entry.Volume, entry.Namespace)
            }
            if plugin.CanSupport(entry.PV) { plugin.TranslateInTreePVToCSI(logger, entry.PV) }
        }
    }
}
"""

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
URI = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks/d1"
SECRET = "azure-storage-account-acc-secret"
SOURCES: list[dict[str, Any]] = [
    {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1", "fsType": "xfs", "partition": 2, "readOnly": True}},
    {"awsElasticBlockStore": {"volumeID": "vol-02399794d890f9375"}},
    {"awsElasticBlockStore": {"volumeID": "aws:///vol-1"}},
    {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/disk"}},
    {"gcePersistentDisk": {"pdName": "pd", "fsType": "ext4", "partition": 3, "readOnly": True}},
    {"gcePersistentDisk": {"pdName": "pd"}},
    {"azureDisk": {"diskName": "d1", "diskURI": URI, "kind": "managed", "cachingMode": "None", "fsType": "ext4"}},
    {"azureDisk": {"diskName": "d1", "diskURI": URI, "cachingMode": "", "readOnly": True}},
    {"azureDisk": {"diskName": "d1", "diskURI": URI, "kind": "Dedicated"}},
    {"azureFile": {"secretName": SECRET, "shareName": "share", "readOnly": True}},
    {"azureFile": {"secretName": "own", "shareName": "share"}},
    {"cinder": {"volumeID": "c1", "fsType": "xfs", "readOnly": True}},
    {"cinder": {"volumeID": "c2", "secretRef": {"name": "s"}}},
    {"portworxVolume": {"volumeID": "px1", "fsType": "ext4", "readOnly": True}},
    {"portworxVolume": {"volumeID": "px2"}},
    {"vsphereVolume": {"volumePath": "[ds] kubevols/a.vmdk", "fsType": "ext4", "storagePolicyID": "1"}},
]
PERSISTENT_SOURCES: list[dict[str, Any]] = [
    *SOURCES,
    {"vsphereVolume": {"volumePath": "[ds] b.vmdk", "storagePolicyName": "gold"}},
    {"azureFile": {"secretName": SECRET, "shareName": "share", "secretNamespace": "vault"}},
]
ANNOTATIONS = {
    "kubernetes.io/azure-file-resource-group": "rg",
    "openstorage.io/auth-secret-name": "auth",
    "openstorage.io/auth-secret-namespace": "px",
}
LABELS: list[dict[str, str]] = [
    {},
    {ZONE: "us-central1-b__us-central1-a__ ", REGION: "us-central1"},
    {OLD_ZONE: "us-central1-a", OLD_REGION: "us-central1", ZONE: "us-central1-b"},
    {OLD_ZONE: "us-central1-a", OLD_REGION: "us-central1"},
    {ZONE: "us-central1-a__europe-west1-b"},
    {ZONE: ""},
]
TERMS: list[list[dict[str, list[str]]]] = [
    [],
    [{ZONE: ["a"], REGION: ["r"]}],
    [{OLD_ZONE: ["b", "a"], OLD_REGION: ["r"]}, {"disk": ["ssd"]}],
    [{"disk": ["ssd"]}, {"disk": ["hdd"]}],
]
MODES = (
    None,
    ["ReadWriteMany"],
    ["ReadWriteOnce", "ReadOnlyMany"],
    ["ReadOnlyMany"],
    ["ReadWriteMany", "ReadOnlyMany"],
    ["ReadWriteOncePod"],
)


def more() -> list[dict[str, Any]]:
    """Volumes beside those of upstream's tests: every source with every way to name a place, and odd fields."""
    found: list[dict[str, Any]] = [
        {"namespace": namespace, "volume": {"name": "v", **source}} for source in SOURCES for namespace in ("", "team")
    ]
    places = [(labels, terms) for labels in LABELS for terms in TERMS]
    for number, source in enumerate(PERSISTENT_SOURCES):
        chosen = places if number in (1, 5, 11, 15) else places[:: 7 + number % 2]
        found += [{"pv": _persistent(source, labels, terms)} for labels, terms in chosen]
        found.append({"pv": _persistent(source, {}, [], annotations=ANNOTATIONS)})
        found.append({"pv": _persistent(source, {}, [], claimRef=None)})
    found += [{"pv": _persistent(SOURCES[5], {}, [], accessModes=modes)} for modes in MODES]
    return found


def _persistent(
    source: dict[str, Any], labels: dict[str, str], terms: list[dict[str, list[str]]], **fields: Any
) -> dict[str, Any]:
    made = [[{"key": key, "operator": "In", "values": values} for key, values in term.items()] for term in terms]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": term} for term in made]}} if terms else None
    metadata = {"name": "pv", "labels": labels, "annotations": fields.pop("annotations", {})}
    spec = {
        "claimRef": {"namespace": "team", "name": "claim", "uid": "u"},
        "nodeAffinity": affinity,
        **source,
        **fields,
    }
    return {"metadata": metadata, "spec": {key: value for key, value in spec.items() if value is not None}}


def recorded(modules: Path, folder: Path) -> list[dict[str, Any]]:
    library = folder / "library"
    shutil.copytree(modules / f"k8s.io/csi-translation-lib@{VERSION}", library)
    subprocess.run(["chmod", "-R", "u+w", str(library)], check=True)
    text = RECORDER
    for file in sorted((library / "plugins").glob("*.go")):
        source = file.read_text()
        for _, owner, method, _, _ in METHOD.findall(source):
            inline = method == "TranslateInTreeInlineVolumeToCSI"
            text += (INLINE if inline else PERSISTENT) % owner
            source = source.replace(f") {method}(", f") {'plainInline' if inline else 'plainPV'}(")
        if file.name != "in_tree_volume.go":
            file.write_text(source)
    # The tests call the methods by their names, which are the recording ones now.
    for file in (library / "plugins").glob("*_test.go"):
        file.write_text(file.read_text().replace(".plainInline(", ".TranslateInTreeInlineVolumeToCSI("))
    (library / "plugins" / "recorder.go").write_text(text)
    (library / "plugins" / "more_test.go").write_text(MORE)
    (folder / "more").write_text("".join(json.dumps(each) + "\n" for each in more()))
    environment = {"CASES": str(folder / "cases"), "MORE": str(folder / "more")}
    subprocess.run(
        ["env", *(f"{key}={value}" for key, value in environment.items()), "go", "test", "-p", "1", "./..."],
        cwd=library,
        check=True,
    )
    lines = sorted(set((folder / "cases").read_text().splitlines()))
    # Some tests make names by chance, and some have no source to translate.
    return [json.loads(line) for line in lines if not CHANCE.search(line) and " not defined on " not in line]


def main(modules: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cases = recorded(modules, Path(folder))
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    PAGE.write_text(f'{{\n "version": "{VERSION}",\n "cases": [\n{lines}\n ]\n}}\n')
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
