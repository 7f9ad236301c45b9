"""Pull intents and records: on disk as the Go kubelet writes them, over restarts, damage, and garbage collection."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from pykubelet.images.keyring import AccountOrigin, Entry, Login, SecretOrigin
from pykubelet.images.record_files import Access, PulledRecord, RecordFiles, file_name
from pykubelet.images.records import Policy, PullRecords, RecordProblem, Verification
from pykubelet.kit.clock import LoopClock
from pykubelet.kit.metrics import Registry
from pykubelet.model.errors import CriError, PykubeletError, RuntimeDown
from tests.fakes.fake_cri import FakeCri
from tests.unit.images.making import secret_login

SECOND = 1_700_000_000


class PullRecordsFixture:
    def __init__(self, folder: Path, *, policy: Policy = Policy.NOT_PRELOADED) -> None:
        self.folder = folder / "image_manager"
        self.clock = LoopClock(start=float(SECOND))
        self.cri = FakeCri(self.clock)
        self.files = RecordFiles(folder)
        self.policy = policy
        self.lookups = 0
        self.restart()

    def restart(self) -> None:
        self.metrics = Registry()
        self.records = PullRecords(
            files=self.files,
            images=self.cri,
            verification=Verification(policy=self.policy),
            clock=self.clock,
            metrics=self.metrics,
        )

    async def may_use(self, image: str, ref: str, *logins: Login) -> bool:
        async def look() -> Sequence[Login]:
            self.lookups += 1
            return logins

        return await self.records.may_use(image, ref, look)

    async def pull(self, image: str, ref: str, login: Login | None = None) -> None:
        await self.records.intend(image)
        await self.records.pulled(image, ref, login)

    def stored(self, kind: str) -> list[dict[str, object]]:
        paths = sorted(path for path in (self.folder / kind).glob("sha256-*") if path.suffix != ".tmp")
        return [json.loads(path.read_text()) for path in paths]

    def damage(self, kind: str, name: str) -> Path:
        path = self.folder / kind / file_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"kind": "Image')
        return path


@pytest.fixture
def bench(tmp_path: Path) -> PullRecordsFixture:
    return PullRecordsFixture(tmp_path)


async def test_preloaded_images_are_everybodys(bench: PullRecordsFixture) -> None:
    assert await bench.may_use("r.io/a:1", "sha256:a")
    assert bench.lookups == 0


async def test_an_intent_while_the_pull_lasts_and_the_record_after_it(bench: PullRecordsFixture) -> None:
    await bench.records.intend("r.io/a:1")
    assert bench.stored("pulling") == [
        {"kind": "ImagePullIntent", "apiVersion": "kubelet.config.k8s.io/v1beta1", "image": "r.io/a:1"}
    ]
    assert not await bench.may_use("r.io/a:1", "sha256:a")  # it may be here by that pull
    login = secret_login("s")
    await bench.records.pulled("r.io/a:1", "sha256:a", login)
    assert bench.stored("pulling") == []
    secret = {"uid": "uid-s", "namespace": "default", "name": "s", "credentialHash": login.fingerprint}
    assert bench.stored("pulled") == [
        {
            "kind": "ImagePulledRecord",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "lastUpdatedTime": "2023-11-14T22:13:20Z",
            "imageRef": "sha256:a",
            "credentialMapping": {"r.io/a": {"kubernetesSecrets": [secret]}},
        }
    ]
    [path] = (bench.folder / "pulled").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o777 == 0o700


async def test_a_secret_opens_the_image_to_those_who_have_it(bench: PullRecordsFixture) -> None:
    await bench.pull("r.io/a:1", "sha256:a", secret_login("s"))
    assert not await bench.may_use("r.io/a:1", "sha256:a")
    assert not await bench.may_use("r.io/a:1", "sha256:a", secret_login("t", "other"))
    assert await bench.may_use("r.io/a:2", "sha256:a", secret_login("s"))
    assert not await bench.may_use("r.io/b:1", "sha256:a", secret_login("s"))  # another name for the same image
    assert await bench.may_use("r.io/a:1", "sha256:a", secret_login("t"))  # same content: learnt
    assert await bench.may_use("r.io/a:1", "sha256:a", secret_login("t", "renewed"))
    bench.restart()
    assert await bench.may_use("r.io/a:1", "sha256:a", secret_login("u", "renewed"))
    assert 'result="credentialRecordFound"} 1' in bench.metrics.expose()


async def test_a_pull_without_or_with_the_nodes_login_opens_it_to_all(bench: PullRecordsFixture) -> None:
    await bench.pull("r.io/a:1", "sha256:a")
    await bench.pull("r.io/b:1", "sha256:b", Login(entry=Entry(username="node")))
    assert await bench.may_use("r.io/a:1", "sha256:a") and await bench.may_use("r.io/b:1", "sha256:b")
    assert bench.lookups == 0


async def test_a_service_account_opens_it_to_its_pods(bench: PullRecordsFixture) -> None:
    login = Login(entry=Entry(), origin=AccountOrigin(namespace="default", name="acc", uid="1"))
    await bench.pull("r.io/a:1", "sha256:a", login)
    assert await bench.may_use("r.io/a:1", "sha256:a", login)
    assert not await bench.may_use("r.io/a:1", "sha256:a", secret_login("s"))


@pytest.mark.parametrize(
    ("policy", "unknown", "pulled"),
    [(Policy.NEVER, True, True), (Policy.NOT_PRELOADED, True, False), (Policy.ALWAYS, False, False)],
)
async def test_policies(tmp_path: Path, policy: Policy, unknown: bool, pulled: bool) -> None:
    bench = PullRecordsFixture(tmp_path, policy=policy)
    await bench.pull("r.io/a:1", "sha256:a", secret_login("s"))
    assert await bench.may_use("r.io/x:1", "sha256:x") is unknown
    assert await bench.may_use("r.io/a:1", "sha256:a") is pulled


async def test_an_intent_lasts_as_long_as_any_pull_of_the_image(bench: PullRecordsFixture) -> None:
    await bench.records.intend("r.io/a:1")
    await bench.records.intend("r.io/a:1")
    await bench.records.failed("r.io/a:1")
    assert len(bench.stored("pulling")) == 1
    await bench.records.failed("r.io/a:1")
    assert bench.stored("pulling") == []
    assert await bench.may_use("r.io/a:1", "sha256:a")


@pytest.mark.real_loop
async def test_a_pull_given_up_while_its_intent_is_written_leaves_none(
    bench: PullRecordsFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.records.intend("r.io/b:1")
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    writing, written = asyncio.Event(), asyncio.Event()
    write = bench.files.write_intent

    def slow(image: str) -> None:
        loop.call_soon_threadsafe(writing.set)
        go_on.wait(10)
        write(image)
        loop.call_soon_threadsafe(written.set)

    monkeypatch.setattr(bench.files, "write_intent", slow)
    pull = asyncio.create_task(bench.records.intend("r.io/a:1"))
    await writing.wait()
    pull.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await pull
    await written.wait()
    assert [each["image"] for each in bench.stored("pulling")] == ["r.io/b:1"]
    monkeypatch.undo()
    await bench.records.intend("r.io/a:1")
    await bench.records.failed("r.io/a:1")
    assert [each["image"] for each in bench.stored("pulling")] == ["r.io/b:1"]


async def test_a_pull_cut_short_by_a_crash(bench: PullRecordsFixture) -> None:
    here = bench.cri.add_image("busybox")
    for image in ("busybox", "r.io/gone:1"):
        await bench.records.intend(image)
    bench.restart()
    assert not await bench.may_use("busybox", here.id, secret_login("s"))
    assert [record["imageRef"] for record in bench.stored("pulled")] == [here.id]
    assert [intent["image"] for intent in bench.stored("pulling")] == ["r.io/gone:1"]
    await bench.pull("r.io/gone:1", "sha256:gone")
    assert bench.stored("pulling") == []


async def test_a_runtime_that_is_down_at_the_start_is_waited_for(bench: PullRecordsFixture) -> None:
    bench.cri.fail_next("list_images", RuntimeDown("gone"))
    with pytest.raises(RuntimeDown):
        await bench.may_use("r.io/a:1", "sha256:a")
    assert await bench.may_use("r.io/a:1", "sha256:a")


async def test_a_runtime_that_cannot_list_keeps_the_intents(bench: PullRecordsFixture) -> None:
    here = bench.cri.add_image("r.io/a:1")
    await bench.records.intend("r.io/a:1")
    bench.restart()
    bench.cri.fail_next("list_images", CriError("broken"))
    assert not await bench.may_use("r.io/a:1", here.id)
    assert len(bench.stored("pulling")) == 1


async def test_a_damaged_record_is_set_aside_and_opens_nothing(
    bench: PullRecordsFixture, caplog: pytest.LogCaptureFixture
) -> None:
    here = bench.cri.add_image("r.io/a:1")
    await bench.pull("r.io/a:1", here.id, secret_login("s"))
    path = bench.damage("pulled", here.id)
    gone = bench.damage("pulled", "sha256:gone")
    intent = bench.damage("pulling", "r.io/x:1")
    bench.restart()
    assert not await bench.may_use("r.io/a:1", here.id, secret_login("s"))
    for each in (path, gone, intent):
        assert each.with_name(f"damaged-{each.name}").read_text() == '{"kind": "Image'
    assert [record["imageRef"] for record in bench.stored("pulled")] == [here.id]
    assert not gone.exists() and not intent.exists()
    assert len([r for r in caplog.records if r.message == "pull record is damaged and was set aside"]) == 3
    caplog.clear()
    await bench.pull("r.io/a:1", here.id, secret_login("s"))
    bench.restart()
    assert await bench.may_use("r.io/a:1", here.id, secret_login("s"))
    assert caplog.records == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"kind": "ImagePulledRecord", "apiVersion": "kubelet.config.k8s.io/v9", "imageRef": "x"}',
        '{"kind": "Pod", "apiVersion": "kubelet.config.k8s.io/v1beta1"}',
        '{"kind": "ImagePulledRecord", "apiVersion": "kubelet.config.k8s.io/v1beta1", "imageRef": "x"}',
        '{"kind": "ImagePulledRecord", "apiVersion": "kubelet.config.k8s.io/v1beta1", "imageRef": 1,'
        ' "lastUpdatedTime": "2023-11-14T22:13:20Z"}',
        '{"kind": "ImagePulledRecord", "apiVersion": "kubelet.config.k8s.io/v1beta1", "imageRef": "x",'
        ' "lastUpdatedTime": "2023-11-14T22:13:20Z", "credentialMapping": {"a": {"kubernetesSecrets": [1]}}}',
    ],
)
async def test_every_kind_of_damage(bench: PullRecordsFixture, text: str) -> None:
    bench.damage("pulled", "x").write_text(text)
    assert await bench.may_use("r.io/a:1", "sha256:a")
    assert bench.stored("pulled") == []


async def test_older_versions_are_migrated(bench: PullRecordsFixture) -> None:
    old = {"apiVersion": "kubelet.config.k8s.io/v1alpha1"}
    bench.files.make_folders()
    (bench.folder / "pulling" / file_name("r.io/x:1")).write_text(
        json.dumps(old | {"kind": "ImagePullIntent", "image": "r.io/x:1"})
    )
    record = {"imageRef": "sha256:a", "lastUpdatedTime": "2023-01-01T00:00:00Z", "credentialMapping": None}
    (bench.folder / "pulled" / file_name("sha256:a")).write_text(
        json.dumps(old | {"kind": "ImagePulledRecord"} | record)
    )
    (bench.folder / "pulled" / "sha256-x.tmp").write_text("half")
    assert not await bench.may_use("r.io/x:1", "sha256:x")
    assert {each["apiVersion"] for kind in ("pulling", "pulled") for each in bench.stored(kind)} == {
        "kubelet.config.k8s.io/v1beta1"
    }


GO_RECORD = (
    '{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",'
    '"lastUpdatedTime":"2023-11-14T22:13:20Z","imageRef":"sha256:go","credentialMapping":{'
    '"r.io/a":{"kubernetesSecrets":[{"uid":"u","namespace":"n","name":"s","credentialHash":"h"}],'
    '"kubernetesServiceAccounts":[{"uid":"au","namespace":"n","name":"acc"}]},'
    '"r.io/b":{"nodePodsAccessible":true},"r.io/c":{}}}\n'
)


def test_the_go_kubelets_own_bytes(tmp_path: Path) -> None:
    """The text and the file name are what v1.36.4 wrote for these values."""
    files = RecordFiles(tmp_path)
    record = PulledRecord(
        image_ref="sha256:go",
        updated=SECOND,
        access={
            "r.io/b": Access(all_pods=True),
            "r.io/a": Access(
                secrets={SecretOrigin(namespace="n", name="s", uid="u"): "h"},
                accounts=frozenset({AccountOrigin(namespace="n", name="acc", uid="au")}),
            ),
            "r.io/c": Access(),
        },
    )
    files.write_record(record)
    [(path, read, current)] = files.records()
    assert path.read_text() == GO_RECORD
    assert path.name == "sha256-8382213238ed00d3e3e4e7985019896c1a1e3e27d98c2de356ba10053f9573ba"
    assert read == record and current


async def test_records_of_images_that_are_gone_are_pruned(bench: PullRecordsFixture) -> None:
    for name in ("kept", "gone", "new"):
        if name == "new":
            await bench.clock.sleep(10)
        await bench.pull(f"r.io/{name}:1", f"sha256:{name}")
    await bench.records.prune(["sha256:kept"], older_than=SECOND + 5.0)
    assert {record["imageRef"] for record in bench.stored("pulled")} == {"sha256:kept", "sha256:new"}
    assert "kubelet_imagemanager_ondisk_pulledrecords 2" in bench.metrics.expose()


class FullDisk(RecordFiles):
    takes_intents = True

    def write_intent(self, image: str) -> None:
        if not self.takes_intents:
            raise OSError(28, "No space left on device")
        super().write_intent(image)

    def write_record(self, record: PulledRecord) -> None:
        raise OSError(28, "No space left on device")


async def test_a_disk_that_takes_nothing(bench: PullRecordsFixture, tmp_path: Path) -> None:
    bench.files = files = FullDisk(tmp_path)
    bench.restart()
    await bench.pull("r.io/a:1", "sha256:a")
    assert len(bench.stored("pulling")) == 1  # so that the image stays closed
    assert not await bench.may_use("r.io/a:1", "sha256:a")
    files.takes_intents = False
    with pytest.raises(RecordProblem) as caught:
        await bench.records.intend("r.io/b:1")
    text = 'Failed to record image pull intent for container image "r.io/b:1": No space left on device'
    assert str(caught.value) == text


async def test_a_lookup_that_fails_is_told(bench: PullRecordsFixture) -> None:
    await bench.pull("r.io/a:1", "sha256:a", secret_login("s"))

    async def broken() -> Sequence[Login]:
        raise PykubeletError("bad secret")

    with pytest.raises(PykubeletError, match="bad secret"):
        await bench.records.may_use("r.io/a:1", "sha256:a", broken)
