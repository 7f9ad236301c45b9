"""The subjects of the CRI contract: tests asking for `subject` run against the fake and two versions of containerd."""

from __future__ import annotations

import pytest

from tests.contracts.cri_subjects import ContainerdSubject, FakeSubject, Subject


@pytest.fixture(
    params=["fake", *(pytest.param(name, marks=pytest.mark.node) for name in ("containerd", "containerd2"))]
)
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return FakeSubject()
    return ContainerdSubject(request.getfixturevalue(request.param).endpoint)
