"""The layout of an LMDB environment: its databases, the version of its rows, and how an older one is taken over.

A row of a window begins with a version of its own, and a row of another version is no window: two versions may write to
one file for a second, while workers are replaced. The file as a whole has the layout version, which stands in `meta`.
It goes up whenever the bytes of any row change; `_CHANGED` names the version in which each database got its present
form. A process that opens a file of an older version empties the databases that have changed since. Bans, which can be
found again in a damaged file, keep their form.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

from ....core.errors import ConfigurationError, StoreUnavailable
from ....core.protocols import Event
from .data_files import Damaged
from .host_clock import boot_id, boot_us, offset_us, wall_us, written

SCHEMA_VERSION: Final = 2
SCHEMA: Final = b"schema"
CLOCK: Final = b"clock"
WRITTEN_SCHEMA: Final = bytes([SCHEMA_VERSION, 255 - SCHEMA_VERSION])

_KEPT: Final = ("meta", "bans", "changes", "history")
_CHANGED: Final = {
    "windows": 2,
    "cells": 2,
    "ends": 2,
    "standings": 1,
    "struck": 1,
    "policies": 1,
    "places": 2,
    "workers": 2,
    "figures": 2,
}
NAMES: Final = (*_KEPT, *_CHANGED)
_OURS: Final = 5  # another program does not have more of these names by chance
SECRET: Final = b"secret"


class Databases(NamedTuple):
    """The databases of an environment, and its secret."""

    meta: Any
    bans: Any
    changes: Any
    history: Any
    windows: Any
    cells: Any
    ends: Any
    standings: Any
    struck: Any
    policies: Any
    places: Any
    workers: Any
    figures: Any
    secret: bytes


class Older(StoreUnavailable):
    """The file has an older layout, and other processes that may not know the present one have it open."""


def load(path: Path, environment: Any, events: list[Event], *, alone: bool) -> tuple[Databases, int]:
    """Open the databases, and read or write `meta`; return the databases and the clock's offset.

    Args:
        path: The directory.
        environment: LMDB's environment.
        events: Events to tell; a migration is added.
        alone: Whether no other process has the file open.

    Raises:
        ConfigurationError: The environment belongs to something else, or to a newer version.
        Damaged: It is ours, and its version cannot be read.
        Older: It has an older layout, and other processes have it open.
    """
    migrated = []
    with environment.begin(write=True) as txn:
        version = _version(path, environment, txn)
        meta = environment.open_db(b"meta", txn)
        dbs = {name: environment.open_db(name.encode(), txn) for name in NAMES}
        if version < SCHEMA_VERSION:
            if not alone:
                raise Older(f"lmdb: {path} has layout version {version}, and is in use")
            migrated.append(_migrate(path, version, dbs, txn))
        txn.put(SCHEMA, WRITTEN_SCHEMA, db=meta)
        secret = txn.get(SECRET, None, meta)
        if secret is None:
            secret = os.urandom(32)
            txn.put(SECRET, secret, db=meta)
        record, boot = txn.get(CLOCK, None, meta), boot_id()
        offset = offset_us(record, boot, boot_us(), wall_us())
        txn.put(CLOCK, written(record, boot, offset, boot_us(), wall_us()), db=meta)
    events += migrated
    return Databases(**dbs, secret=secret), offset


def _migrate(path: Path, version: int, dbs: dict[str, Any], txn: Any) -> Event:
    """Empty the databases whose rows had another form in an older version; return the event that says so."""
    emptied = [name for name, changed in _CHANGED.items() if version < changed]
    for name in emptied:
        txn.drop(dbs[name], delete=False)
    kept = "bans were taken over" if "standings" in emptied else "bans and strikes were taken over"
    message = f"{path} had layout version {version}: {kept}, and counting starts afresh"
    return Event("store_migrated", message, {"from": version, "to": SCHEMA_VERSION})


def version_to_read(path: Path, environment: Any, txn: Any) -> None:
    """Check that the rows of an environment are in the present form.

    Raises:
        StoreUnavailable: They are in an older one, or there are none.
        ConfigurationError: The environment belongs to something else, or to a newer version.
    """
    if environment.stat()["entries"] == 0:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: its file holds nothing")
    version = _version(path, environment, txn)
    if version < SCHEMA_VERSION:
        raise StoreUnavailable(
            f"lmdb: {path} has layout version {version}, and this slidegate reads {SCHEMA_VERSION}; "
            "a worker of this version that opens it takes it over"
        )


def _version(path: Path, environment: Any, txn: Any) -> int:
    """Return the layout version of an environment; an empty one has the present version.

    Raises:
        ConfigurationError: The environment belongs to something else, or to a newer version.
        Damaged: It is ours, and its version cannot be read.
    """
    with txn.cursor() as cursor:
        names = {bytes(name) for name in cursor.iternext(values=False)}
    if not names:
        return SCHEMA_VERSION
    version = None
    if b"meta" in names:
        version = txn.get(SCHEMA, None, environment.open_db(b"meta", txn))
    if not version:
        if len(names.intersection(name.encode() for name in NAMES)) > _OURS:
            raise Damaged("it has no layout version")
        raise ConfigurationError(f"lmdb: {path} holds other data; choose a directory for slidegate alone")
    if sum(version) != 255 and len(version) > 1:
        raise Damaged(f"its layout version is {version.hex()}")
    if version[0] > SCHEMA_VERSION:
        raise ConfigurationError(
            f"lmdb: {path} was written with layout version {version[0]}, and this slidegate reads {SCHEMA_VERSION}; "
            "upgrade slidegate, or choose another path"
        )
    return int(version[0])
