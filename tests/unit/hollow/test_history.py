"""Recorded lives: what is read from a timeline, and who lives which life."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pykubelet.explain.view import Explanation
from pykubelet.hollow.history import Attempt, HistoryError, Run, life_of, load_histories


def recorded(pod: str, *moments: tuple[Any, ...]) -> dict[str, Any]:
    """Moments are (at, step, subject, outcome, seconds, message, last_at)."""
    timeline = []
    for at, step, subject, outcome, seconds, *more in moments:
        message, last_at = [*more, *["", at][len(more) :]]
        timeline.append(
            {
                **{"at": at, "offset": 0.0, "step": step, "subject": subject, "outcome": outcome, "words": ""},
                **{"verdict": "", "reason": "", "message": message, "seconds": seconds, "repeats": 0},
                "last_at": last_at,
            }
        )
    return {
        **{"pod": pod, "state": "healthy", "healthy": True, "summary": "", "causes": [], "at": 100.0},
        "timeline": timeline,
    }


WEB = recorded(
    "default/web",
    (0.0, "seen", "", "noted", None),
    (0.1, "sandbox", "", "failed", 0.5, "no network"),
    (1.0, "sandbox", "", "done", 0.25),
    (1.0, "pull", "nginx:1", "done", 2.0),
    (3.0, "create", "app", "done", 0.1),
    (3.1, "start", "app", "done", 0.2),
    (8.3, "exit", "app", "noted", None, "", 31.0),
    (8.4, "backoff", "app", "noted", None),
    (10.0, "create", "app", "done", 0.1),
    (10.1, "start", "app", "done", 0.4),
    (25.0, "create", "app", "done", 0.1),
    (25.0, "start", "app", "done", 1.0),
    (40.0, "kill", "app", "done", 1.5),
)


def lives(folder: Path, *documents: Any) -> Path:
    for number, document in enumerate(documents):
        (folder / f"{number}.json").write_text(json.dumps(document))
    return folder


def test_a_timeline_becomes_a_life() -> None:
    life = life_of(Explanation.from_json(WEB))
    assert life.sandboxes == (Attempt(0.5, "no network"), Attempt(0.25))
    assert life.pulls == {"docker.io/library/nginx:1": (Attempt(2.0),)}
    assert life.stops == {"app": 1.5}
    first, second, third = life.containers["app"]
    assert first == Run(create=Attempt(0.1), start=Attempt(0.2), seconds=pytest.approx(5.0), exit_code=1)
    assert second.seconds == pytest.approx(5.0), "its end was merged with others: as long as the one before"
    assert third.seconds == pytest.approx(5.0)
    assert life.run("app", 7) is third and life.run("other", 0) is first


def test_a_container_that_never_ended_runs_for_ever() -> None:
    calm = recorded(
        "default/calm", (0.0, "create", "app", "done", 0.1), (0.2, "start", "app", "failed", 0.3, "no such file")
    )
    run = life_of(Explanation.from_json(calm)).run("app", 0)
    assert run == Run(create=Attempt(0.1), start=Attempt(0.3, "no such file"))


def test_a_pod_of_the_same_name_lives_the_same_life(tmp_path: Path) -> None:
    found = load_histories([lives(tmp_path, WEB, recorded("default/db", (0.0, "pull", "pg:1", "done", 9.0)))])
    rng = random.Random(1)
    assert found.life_of("default", "web", rng).pod == "default/web"
    assert {found.life_of("default", "new", rng).pod for _ in range(30)} == {"default/web", "default/db"}
    assert found.pull_of("docker.io/library/pg:1", rng) == Attempt(9.0)
    assert {found.pull_of("docker.io/library/new:1", rng) for _ in range(30)} == {Attempt(9.0), Attempt(2.0)}


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match=r"0\.json: not what"):
        load_histories([lives(tmp_path, {"kind": "Pod"})])
    (tmp_path / "0.json").unlink()
    with pytest.raises(HistoryError, match="no recorded lives"):
        load_histories([tmp_path])
