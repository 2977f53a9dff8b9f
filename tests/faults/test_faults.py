"""No fault of a store lets anybody past a limit or a ban."""

import asyncio

import pytest

from .__main__ import SCENES, played


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.all if "LMDB" in name else pytest.mark.deep) for name in SCENES]
)
def test_no_decision_amid_faults_is_wrong(name: str) -> None:
    record = asyncio.run(played(name))
    assert record.wrong == 0
    assert record.hits > len(record.undecided_s)
    assert record.undecided_s or name == "LMDB: 20 writers killed", "the fault did nothing, so this shows nothing"
