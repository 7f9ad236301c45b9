from __future__ import annotations

import os
from pathlib import Path

import pytest

from pykubelet.model.pod import name_of
from pykubelet.sources.manifests import (
    MAX_BYTES,
    SETTLE_SECONDS,
    ManifestFiles,
    Problem,
    UnreadableManifest,
    read_manifest,
)
from tests.unit.sources.doubles import FileLoader, manifest

LATER = 1000.0


class ManifestFilesFixture:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.loader = FileLoader()
        self.problems: list[Problem] = []
        self.files = ManifestFiles(path, self.loader.load, self.problems.append)

    def scan(self, now: float = LATER) -> list[str]:
        names = self.files.list_names()
        assert names is not None
        self.files.forget_absent(names)
        for name in names:
            self.look(name, now=now)
        return self.pods(now)

    def look(self, name: str, *, now: float = LATER, force: bool = False) -> None:
        reading = self.files.inspect(name, force=force)
        if reading is not None:
            self.files.apply(name, reading.load(), now)

    def pods(self, now: float = LATER) -> list[str]:
        return [name_of(pod).removesuffix("-node") for pod in self.files.pods(now)]

    @property
    def texts(self) -> list[str]:
        return [problem.text for problem in self.problems]

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text)


@pytest.fixture
def bed(tmp_path: Path) -> ManifestFilesFixture:
    return ManifestFilesFixture(tmp_path)


def test_files_are_read_in_order_of_their_names(bed: ManifestFilesFixture) -> None:
    for name in ("c.yaml", "a.json", "b"):
        bed.write(name, manifest(name[0]))
    assert bed.scan() == ["a", "b", "c"]


def test_only_regular_files_without_a_leading_dot_count(bed: ManifestFilesFixture) -> None:
    bed.write(".hidden.yaml", manifest("hidden"))
    (bed.path / "folder").mkdir()
    bed.write("folder/inner.yaml", manifest("inner"))
    os.mkfifo(bed.path / "pipe")
    (bed.path / "dangling").symlink_to(bed.path / "nowhere")
    bed.write("real.yaml", manifest("real"))
    (bed.path / "link.yaml").symlink_to(bed.path / ".hidden.yaml")
    assert bed.scan() == ["hidden", "real"]
    assert bed.problems == []
    assert bed.files.has_links()


def test_unchanged_files_are_not_read_again(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.write("b.yaml", manifest("b"))
    bed.scan()
    first = bed.files.pods(LATER)
    bed.write("b.yaml", manifest("b", "busybox:22"))
    bed.scan()
    assert bed.loader.names == ["a.yaml", "b.yaml", "b.yaml"]
    assert bed.files.pods(LATER)[0] is first[0]


def test_a_file_written_with_the_same_content_keeps_its_pod(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.scan()
    before = bed.files.pods(LATER)
    bed.write("a.yaml", manifest("a"))
    bed.look("a.yaml", force=True)
    assert bed.files.pods(LATER)[0] is before[0]
    assert bed.loader.names == ["a.yaml"]


def test_a_bad_file_keeps_the_last_good_pod_and_is_told_once(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.scan()
    good = bed.files.pods(LATER)
    bed.write("a.yaml", manifest("a")[:30])
    for _ in range(3):
        assert bed.scan() == ["a"]
    assert len(bed.problems) == 1
    assert bed.problems[0].pod is good[0]
    assert bed.problems[0].path == str(bed.path / "a.yaml")
    assert str(bed.path) not in bed.problems[0].text
    assert list(bed.files.problems()) == [str(bed.path / "a.yaml")]
    bed.write("a.yaml", "other nonsense")
    bed.scan()
    assert len(bed.problems) == 2, "another problem is told anew"
    bed.write("a.yaml", manifest("a", "busybox:2"))
    assert bed.scan() == ["a"]
    assert bed.texts[2:] == [""], "the end of it is told"
    assert bed.files.problems() == {}


def test_a_bad_file_does_not_trouble_others(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", "}")
    bed.write("b.yaml", manifest("b"))
    assert bed.scan() == ["b"]
    assert bed.problems[0].pod is None


def test_all_problems_of_a_manifest_are_in_one_line(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("A_B").replace("image: busybox:1", "image: ''"))
    bed.scan()
    assert "metadata.name" in bed.texts[0]
    assert "spec.containers[0].image" in bed.texts[0]
    assert "\n" not in bed.texts[0]


def test_a_file_that_is_gone_loses_its_pod_even_if_it_was_bad(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.scan()
    bed.write("a.yaml", "}")
    bed.scan()
    (bed.path / "a.yaml").unlink()
    assert bed.scan() == []
    assert bed.texts[-1] == ""


def test_a_file_that_turns_into_something_else_is_gone(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.scan()
    (bed.path / "a.yaml").unlink()
    (bed.path / "a.yaml").mkdir()
    assert bed.scan() == []


def test_a_missing_path_holds_nothing_and_may_appear(tmp_path: Path) -> None:
    bed = ManifestFilesFixture(tmp_path / "later")
    assert bed.scan() == []
    bed.path.mkdir()
    bed.write("a.yaml", manifest("a"))
    assert bed.scan() == ["a"]
    assert bed.problems == []


def test_a_path_that_cannot_be_listed_is_told_once_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    bed = ManifestFilesFixture(tmp_path / "file" / "below")
    assert [bed.files.list_names() for _ in range(2)] == [None, None]
    assert bed.texts == ["cannot read the manifest path: Not a directory"]


def test_the_path_may_be_a_single_file(tmp_path: Path) -> None:
    bed = ManifestFilesFixture(tmp_path / "pod.yaml")
    assert bed.scan() == []
    bed.path.write_text(manifest("a"))
    assert bed.scan() == ["a"]
    bed.path.write_text("}")
    assert bed.scan() == ["a"]
    assert bed.problems[0].path == str(bed.path)
    bed.path.unlink()
    assert bed.scan() == []


def test_of_two_files_with_the_same_pod_the_first_by_name_wins_and_the_other_is_told_once(
    bed: ManifestFilesFixture,
) -> None:
    bed.write("b.yaml", manifest("web", "second"))
    bed.write("a.yaml", manifest("web", "first"))
    for now in (1.0, 1.0 + SETTLE_SECONDS, 50.0):
        bed.scan(now)
        assert [pod.spec.containers[0].image for pod in bed.files.pods(now)] == ["first"]
    assert bed.texts == ['holds the same pod name as "a.yaml", which comes first by file name and wins']
    assert bed.problems[0].path.endswith("b.yaml")
    (bed.path / "a.yaml").unlink()
    bed.scan(60.0)
    assert [pod.spec.containers[0].image for pod in bed.files.pods(60.0)] == ["second"]


def test_a_newcomer_takes_a_pod_over_only_when_it_stays(bed: ManifestFilesFixture) -> None:
    bed.write("web.yaml", manifest("web", "old"))
    bed.scan(1.0)
    bed.write("sedX1", manifest("web", "new"))
    bed.look("sedX1", now=10.0)

    def image(now: float) -> str | None:
        return bed.files.pods(now)[0].spec.containers[0].image

    assert image(10.0) == "old"
    deadline = bed.files.next_deadline(10.0)
    assert deadline == 10.0 + SETTLE_SECONDS
    assert bed.problems == []
    assert image(deadline) == "new"
    assert bed.texts == ['holds the same pod name as "sedX1", which comes first by file name and wins']
    assert bed.files.next_deadline(deadline) is None


def test_a_file_renamed_away_has_a_moment_to_come_back(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    bed.scan(1.0)
    bed.files.leave("a.yaml", 2.0)
    (bed.path / "a.yaml").rename(bed.path / ".backup")
    assert bed.files.next_deadline(2.0) == 2.0 + SETTLE_SECONDS
    assert bed.scan(2.0) == ["a"]
    bed.files.await_return("a.yaml", 5.0)
    assert bed.pods(4.9) == ["a"]
    assert bed.pods(5.0) == []
    assert bed.files.next_deadline(5.0) is None


@pytest.mark.parametrize("how", ["symlink", "hard link"])
def test_links_are_complete_when_they_appear(bed: ManifestFilesFixture, how: str) -> None:
    bed.write(".target", manifest("a"))
    if how == "symlink":
        (bed.path / "a.yaml").symlink_to(".target")
    else:
        (bed.path / "a.yaml").hardlink_to(bed.path / ".target")
    bed.write("b.yaml", "")
    assert bed.files.is_settled_on_creation("a.yaml")
    assert not bed.files.is_settled_on_creation("b.yaml")
    assert bed.files.is_settled_on_creation("gone.yaml")


def test_a_file_that_vanishes_before_it_is_read_is_gone(bed: ManifestFilesFixture) -> None:
    bed.write("a.yaml", manifest("a"))
    reading = bed.files.inspect("a.yaml")
    assert reading is not None
    (bed.path / "a.yaml").unlink()
    bed.files.apply("a.yaml", reading.load(), LATER)
    assert bed.pods() == []
    assert bed.problems == []


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda path: path.write_bytes(b" \n"), "is empty"),
        (lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_RDWR), MAX_BYTES + 1), "larger than 10 MiB"),
        (lambda path: os.mkfifo(path), "not a regular file"),
    ],
    ids=["empty", "too large", "pipe"],
)
def test_what_is_not_even_parsed(tmp_path: Path, make: object, complaint: str) -> None:
    make(tmp_path / "x")  # type: ignore[operator]
    with pytest.raises(UnreadableManifest, match=complaint):
        read_manifest(tmp_path / "x")


def test_the_largest_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"#" * MAX_BYTES)
    assert len(read_manifest(tmp_path / "x")) == MAX_BYTES
