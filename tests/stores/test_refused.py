"""Options with which no store can work are refused when it is made, whatever the store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slidegate import ConfigurationError, MemoryStore
from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.redis import RedisStore

STORES: dict[str, Callable[[Path], Callable[..., object]]] = {
    "memory": lambda place: MemoryStore,
    "lmdb": lambda place: lambda path=place / "lmdb", **options: LmdbStore(path, **options),
    "redis": lambda place: partial(RedisStore, "redis://localhost"),
}
EVERY: list[tuple[dict[str, Any], str]] = [
    ({"max_bans": 0}, "max_bans: expected a whole number "),
    ({"max_bans": True}, "not True"),
    ({"clock": 3}, "clock: expected a function that returns microseconds, not 3"),
]
SHARED: list[tuple[dict[str, Any], str]] = [
    ({"permit_lease": "0.5s"}, "permit_lease: expected"),
    ({"permit_lease": "11m"}, "permit_lease: expected"),
    ({"permit_lease": None}, "permit_lease: expected"),
]
OWN: dict[str, list[tuple[dict[str, Any], str]]] = {
    "memory": [
        ({"max_keys": 1.5}, "max_keys: expected a whole number from 1 to"),
        ({"max_keys": -1}, "not -1"),
        ({"wall_clock": "monotonic"}, "wall_clock: expected a function"),
    ],
    "lmdb": [
        *SHARED,
        ({"max_keys": 0}, "max_keys"),
        ({"max_map_size": 1}, "max_map_size: expected a whole number from 1048576"),
        ({"max_map_size": 1 << 41}, "max_map_size"),
        ({"path": 3}, 'path: expected a directory, for example "/var/lib/app/slidegate", not 3'),
        ({"path": ""}, "path: expected a directory"),
        ({"path": "/missing/slidegate"}, "/missing does not exist"),
    ],
    "redis": [
        *SHARED,
        ({"prefix": ""}, "prefix: expected 1 to 64 characters"),
        ({"prefix": "a{b}"}, "for example \"slidegate\", not 'a{b}'"),
        ({"prefix": "x" * 1_000}, "not '" + "x" * 78 + "…"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"timeout": "soon"}, "timeout"),
    ],
}
ROWS = [(kind, *row) for kind in STORES for row in (*EVERY, *OWN[kind])]


@pytest.mark.parametrize(("kind", "options", "named"), ROWS)
def test_what_cannot_work_is_refused_with_what_would(
    kind: str, options: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        STORES[kind](tmp_path)(**options)
    assert named in str(refused.value)


@pytest.mark.parametrize(("client", "named"), [(5, "client: expected an address"), ("http://localhost", "address")])
def test_what_is_no_server_is_refused(client: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        RedisStore(client)
