"""The stores that the commands are tested with."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..redis_servers import needs_redis
from .stores_at_hand import fill, touch


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=needs_redis)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an existing, empty store."""
    if request.param == "lmdb":
        made = f"lmdb://{tmp_path}/store"
    else:
        server = request.getfixturevalue("server")
        server.command("FLUSHALL")
        made = server.url
    fill(made, touch)
    return made


@pytest.fixture(autouse=True)
def no_store_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the store of the developer's environment."""
    monkeypatch.delenv("SLIDEGATE_STORE", raising=False)
