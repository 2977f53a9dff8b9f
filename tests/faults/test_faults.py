"""No fault of a store lets anybody past a limit or a ban."""

import asyncio

import pytest

from .__main__ import SCENES, played

UNNOTICED = ("LMDB: 20 writers killed", "Redis: cluster: one master stopped")
"""Nobody needs the server that is stopped, and few need a gate just then."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.all if "LMDB" in name else pytest.mark.deep) for name in SCENES]
)
def test_no_decision_amid_faults_is_wrong(name: str) -> None:
    record = asyncio.run(played(name))
    assert record.wrong == 0
    assert record.hits > len(record.undecided_s)
    assert record.undecided_s or name in UNNOTICED, "the fault did nothing, so this shows nothing"
