"""All kinds of clients, for each test that names none."""

import pytest

from .kinds import ASYNC, SYNC, Kind


@pytest.fixture(params=[*ASYNC, *SYNC], ids=str)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    return kind
