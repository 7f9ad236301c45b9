"""The workload file: what it may say, what is drawn from it, and what it is refused for."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import pytest

from pykubelet.hollow.workload import Spread, Workload, WorkloadError, drawn, load_workload

SAMPLE = Path(__file__).parents[3] / "bench" / "workloads" / "mixed.yaml"


def written(folder: Path, text: str) -> Path:
    path = folder / "workload.yaml"
    path.write_text(text)
    return path


def test_the_sample_is_read() -> None:
    workload = load_workload(SAMPLE)
    assert workload.programs and workload.runtime.sandbox and workload.failures.agent is not None


def test_an_empty_file_is_the_usual_workload(tmp_path: Path) -> None:
    assert load_workload(written(tmp_path, "")) == Workload()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("runtime: {sandbox: {median: 2, p99: 1}}", "$.runtime.sandbox"),
        ("runtime: {sandbox: {}}", "$.runtime.sandbox"),
        ("runtime: {sandbox: {of: [1, -1]}}", "$.runtime.sandbox"),
        ("runtime: {pause: 1}", "`pause`"),
        ("runtime: {startFailures: 1.5}", "runtime.startFailures"),
        ("programs: [{crashes: -1}]", "programs[0].crashes"),
        ("images: {size: many}", "many"),
        ("failures: {agent: {every: 0}}", "failures.agent.every"),
        ("machine: [", "workload.yaml"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(WorkloadError) as error:
        load_workload(written(tmp_path, text))
    assert place in str(error.value) and "workload.yaml" in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"nothing\.yaml: No such file"):
        load_workload(tmp_path / "nothing.yaml")


def test_a_log_normal_spread_has_its_median_and_its_tail() -> None:
    rng, spread = random.Random(1), Spread(median=0.2, p99=1.0, max=3.0)
    values = sorted(spread.draw(rng) for _ in range(20_000))
    assert statistics.median(values) == pytest.approx(0.2, rel=0.05)
    assert values[int(0.99 * len(values))] == pytest.approx(1.0, rel=0.1)
    assert values[-1] <= 3.0


def test_other_spreads_keep_to_what_they_say() -> None:
    rng = random.Random(1)
    assert {Spread(of=(1.0, 2.0)).draw(rng) for _ in range(50)} == {1.0, 2.0}
    assert all(1.0 <= Spread(min=1.0, max=2.0).draw(rng) <= 2.0 for _ in range(50))
    assert drawn(0.5, rng) == 0.5


def test_the_first_program_that_fits_counts(tmp_path: Path) -> None:
    text = "programs: [{pods: 'job-*', runs: 5}, {images: '*nginx*', readyAfter: 2}, {pods: 'job-1', runs: 9}]"
    workload = load_workload(written(tmp_path, text))
    assert workload.program_of("default", "job-1", "app", "busybox").runs == 5
    assert workload.program_of("default", "web", "app", "docker.io/nginx:1").ready_after == 2
    assert workload.program_of("default", "web", "app", "busybox").runs is None


def test_a_pull_takes_its_latency_and_its_bytes(tmp_path: Path) -> None:
    text = "images: {latency: 0.5, bytesPerSecond: 10Mi, size: 20Mi, sizes: {'*/nginx:*': 50Mi}}"
    images = load_workload(written(tmp_path, text)).images
    assert images.pull_takes(images.size_of("docker.io/library/nginx:1"), random.Random(1)) == 5.5
    assert images.pull_takes(images.size_of("docker.io/library/busybox:1"), random.Random(1)) == 2.5
