"""The subjects of the CRI contract: tests asking for `subject` run against the fake, the runtime of hollow nodes,
two versions of containerd and CRI-O."""

from __future__ import annotations

import pytest

from tests.contracts.cri_subjects import FakeSubject, HollowSubject, RuntimeSubject, Subject


@pytest.fixture(
    params=[
        "fake",
        "hollow",
        *(pytest.param(name, marks=pytest.mark.node) for name in ("containerd", "containerd2", "crio")),
    ]
)
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return FakeSubject()
    if request.param == "hollow":
        return HollowSubject()
    return RuntimeSubject(request.getfixturevalue(request.param).endpoint)
