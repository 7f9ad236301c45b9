"""The subjects of the CRI contract: every test that asks for `subject` runs against the fake and a real containerd."""

from __future__ import annotations

import pytest

from tests.contracts.cri_subjects import ContainerdSubject, FakeSubject, Subject


@pytest.fixture(params=["fake", pytest.param("containerd", marks=pytest.mark.node)])
def subject(request: pytest.FixtureRequest) -> Subject:
    if request.param == "fake":
        return FakeSubject()
    return ContainerdSubject(request.getfixturevalue("containerd").endpoint)
