"""The contracts that our fakes keep, asked of the real parts that only a guest has: cgroup v2, mounts under systemd,
systemd as the owner of cgroups, logind.

The tests are those of tests/contracts, run in the guest by the guest's Python; here is only how many passed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from tests.contracts.guests import VARIABLE

from hosts.image import PAYLOAD, VENV
from hosts.machine import Kind, Machine, booted
from hosts.payload import SITE, Payload

MARKS = {"cgroups": "node", "mounts": "node", "systemd": "guest", "logind": "guest"}
"""Contract -> how its tests of the real part are marked."""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with booted(Kind(name="contracts"), Payload(tests=True)) as running:
        yield running


@pytest.mark.parametrize("contract", MARKS)
def test_the_real_part_keeps_the_contract(
    machine: Machine, contract: str, record_property: Callable[[str, object], None]
) -> None:
    pytest_words = f"-q -p no:cacheprovider --tb=short -m {MARKS[contract]} tests/contracts/test_{contract}_contract.py"
    printed = machine.run(
        f"cd {PAYLOAD} && {VARIABLE}=1 PYTHONPATH={PAYLOAD}/src:{PAYLOAD}:{PAYLOAD}/{SITE} "
        f"/{VENV}/bin/python -m pytest {pytest_words}; true",
        within=1200,
    )
    found = re.search(r"^(\d+) passed(, \d+ deselected)? in ", printed, re.MULTILINE)
    assert found is not None, printed
    record_property("passed", int(found.group(1)))
