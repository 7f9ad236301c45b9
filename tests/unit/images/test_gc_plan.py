"""Which images go and which stay. All pure."""

from __future__ import annotations

import pytest

from pykubelet.images.gc import (
    DiskUsage,
    ImageGcPolicy,
    ImageRecord,
    Stays,
    bytes_to_free,
    detected,
    explain,
    old_enough,
    readable_size,
    removable,
    too_old,
    why_they_stay,
)
from pykubelet.model.runtime_status import Image

GIB = 1 << 30
NOW = 10_000.0


def seen(id: str, *, first: float = 0.0, used: float = 0.0, pinned: bool = False, size: int = 1) -> ImageRecord:
    return ImageRecord(id=id, size_bytes=size, pinned=pinned, first_detected=first, last_used=used)


@pytest.mark.parametrize(
    ("available", "expected"),
    [(100, 0), (16, 0), (15, 5), (5, 15), (0, 20), (200, 0)],
)
def test_how_much_to_free(available: int, expected: int) -> None:
    usage = DiskUsage(capacity_bytes=100 * GIB, available_bytes=available * GIB)
    assert bytes_to_free(usage, ImageGcPolicy()) == expected * GIB


@pytest.mark.parametrize(("available", "percent"), [(0, 100), (1, 100), (10, 99), (150, 85), (1000, 0), (2000, 0)])
def test_percent_counts_whole_free_percents(available: int, percent: int) -> None:
    assert DiskUsage(capacity_bytes=1000, available_bytes=available).percent == percent


def test_order_of_removal() -> None:
    images = [
        seen("used-late", used=500),
        seen("in-use", used=NOW),
        seen("never-late", first=20),
        seen("pinned", pinned=True),
        seen("used-early", used=100),
        seen("never-early", first=10),
    ]
    order = [image.id for image in removable(images, NOW)]
    assert order == ["never-early", "never-late", "used-early", "used-late"]


@pytest.mark.parametrize(
    ("image", "started", "goes"),
    [
        (seen("a", used=NOW - 101), 0.0, True),
        (seen("a", used=NOW - 100), 0.0, False),
        (seen("a", first=NOW - 50), 0.0, False),
        (seen("a", first=NOW - 500), 0.0, True),
        (seen("a", used=NOW - 500), NOW - 100, False),
    ],
)
def test_age(image: ImageRecord, started: float, goes: bool) -> None:
    found = too_old([image], ImageGcPolicy(max_age=100), now=NOW, started=started)
    assert bool(found) is goes
    assert too_old([image], ImageGcPolicy(max_age=0), now=NOW, started=started) == []


def test_young_images_are_left_alone() -> None:
    images = [seen("old", first=NOW - 120), seen("young", first=NOW - 119)]
    assert [image.id for image in old_enough(images, ImageGcPolicy(), NOW)] == ["old"]


def test_looking_keeps_what_was_known() -> None:
    known = {"a": seen("a", first=1, used=2), "gone": seen("gone")}
    images = [
        Image(id="a", size_bytes=5),
        Image(id="b", tags=("r.io/b:1",), digests=("r.io/b@sha256:x",), size_bytes=7),
        Image(id="c", tags=("registry.k8s.io/pause:3.9",)),
        Image(id="d", pinned=True),
    ]
    assert detected(known, images, {"r.io/b@sha256:x"}, NOW) == {
        "a": seen("a", first=1, used=2, size=5),
        "b": seen("b", first=NOW, used=NOW, size=7),
        "c": seen("c", first=NOW, pinned=True, size=0),  # sandboxes need it, though older runtimes do not say so
        "d": seen("d", first=NOW, pinned=True, size=0),
    }


def test_why_they_stay() -> None:
    images = [
        seen("a", used=NOW, size=GIB),
        seen("b", used=NOW, pinned=True, size=GIB // 2),
        seen("c", pinned=True, size=512),
        seen("d", first=NOW - 5, size=2048),
        seen("e", size=1),
        seen("f", size=1),
    ]
    left = why_they_stay(images, ImageGcPolicy(), now=NOW, stuck={"e"})
    assert list(left) == list(Stays)
    assert explain(left) == (
        "2 images (1.5 GiB) in use, 1 image (512 B) pinned by the runtime, "
        "1 image (2.0 KiB) seen too recently, 1 image (1 B) refused by the runtime"
    )
    assert explain({}) == "there are no images"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (100 * GIB, "100.0 GiB"),
        (1 << 50, "1024.0 TiB"),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert readable_size(size) == text


@pytest.mark.parametrize(("high", "age", "off"), [(85, 0, False), (100, 0, True), (100, 5, False)])
def test_when_it_is_off(high: int, age: float, off: bool) -> None:
    assert ImageGcPolicy(high_percent=high, max_age=age).is_off is off
