"""The layout of an LMDB environment: its databases, and the version of its rows.

A row of a window begins with a version of its own, and a row of another version is no window: two versions may write to
one file for a second, while workers are replaced. The file as a whole has the layout version, which stands in `meta`.
It goes up whenever the bytes or the meaning of any row change. A file of another version is refused and left alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple

from ...core.errors import ConfigurationError, StoreUnavailable
from .checking import Damaged
from .host_clock import boot_id, boot_us, offset_us, wall_us, written

SCHEMA_VERSION: Final = 6
SCHEMA: Final = b"schema"
CLOCK: Final = b"clock"
WRITTEN_SCHEMA: Final = bytes([SCHEMA_VERSION, 255 - SCHEMA_VERSION])

_OURS: Final = 5  # another program does not have more of these names by chance
CELL_KEY: Final = b"cell_key"
RESET: Final = b"reset"
"""Under it stands the moment at which all windows were forgotten last."""
CENSUS: Final = b"bans"
"""Under it stands how many bans of each kind there are; nothing where nobody is banned."""
BAN_NUMBER: Final = b"ban_number"
"""Under it stands the number of the last change of bans, or strike."""

WINDOW: Final = b"w"
CELL: Final = b"c"
PLACE: Final = b"p"
"""What a row is of that has an entry in `ends`."""
DUE: Final = Struct(">q")


class Databases(NamedTuple):
    """The databases of an environment, and the random number by which shared cells are chosen."""

    meta: Any
    bans: Any
    networks: Any
    ban_ends: Any
    history: Any
    windows: Any
    cells: Any
    ends: Any
    standings: Any
    struck: Any
    policies: Any
    places: Any
    figures: Any
    cell_key: bytes


NAMES: Final = Databases._fields[:-1]


def due_row(due_us: int, row: bytes) -> bytes:
    """Return the entry of a row in `ends`, the index of when to look at rows again."""
    return DUE.pack(due_us) + row


def load(path: Path, environment: Any) -> tuple[Databases, int]:
    """Open the databases, and read or write `meta`; return the databases and the clock's offset.

    Args:
        path: The directory.
        environment: LMDB's environment.

    Raises:
        ConfigurationError: The environment belongs to something else, or to another version.
        Damaged: It is ours, and its version cannot be read.
    """
    with environment.begin(write=True) as txn:
        _check_version(path, environment, txn)
        meta = environment.open_db(b"meta", txn)
        dbs = {name: environment.open_db(name.encode(), txn) for name in NAMES}
        txn.put(SCHEMA, WRITTEN_SCHEMA, db=meta)
        cell_key = txn.get(CELL_KEY, None, meta)
        if cell_key is None:
            cell_key = os.urandom(32)
            txn.put(CELL_KEY, cell_key, db=meta)
        record, boot = txn.get(CLOCK, None, meta), boot_id()
        offset = offset_us(record, boot, boot_us(), wall_us())
        txn.put(CLOCK, written(record, boot, offset, boot_us(), wall_us()), db=meta)
    return Databases(**dbs, cell_key=cell_key), offset


def load_to_read(path: Path, environment: Any) -> tuple[Databases, int]:
    """Open the databases of an environment in which nothing can be written; return what `load` does.

    Raises:
        StoreUnavailable: There are none, or not all yet.
        ConfigurationError: The environment belongs to something else, or to another version.
        Damaged: It is ours, and its version cannot be read.
    """
    if environment.stat()["entries"] == 0:
        raise StoreUnavailable(f"lmdb: there is no store at {path}: its file holds nothing")
    with environment.begin() as txn:
        _check_version(path, environment, txn)
    # In transactions of their own: a handle goes with the one that it was opened in, unless that is committed.
    dbs = {name: environment.open_db(name.encode(), create=False) for name in NAMES}
    with environment.begin() as txn:
        cell_key, record = txn.get(CELL_KEY, None, dbs["meta"]), txn.get(CLOCK, None, dbs["meta"])
    if cell_key is None:
        raise StoreUnavailable(f"lmdb: {path} is not made yet; is another process at it?")
    return Databases(**dbs, cell_key=bytes(cell_key)), offset_us(record, boot_id(), boot_us(), wall_us())


def _check_version(path: Path, environment: Any, txn: Any) -> None:
    with txn.cursor() as cursor:
        names = {bytes(name) for name in cursor.iternext(values=False)}
    if not names:
        return
    version = None
    if b"meta" in names:
        version = txn.get(SCHEMA, None, environment.open_db(b"meta", txn))
    if not version:
        if len(names.intersection(name.encode() for name in NAMES)) > _OURS:
            raise Damaged("it has no layout version")
        raise ConfigurationError(f"lmdb: {path} holds other data; choose a directory for slidegate alone")
    if sum(version) != 255 and len(version) > 1:
        raise Damaged(f"its layout version is {version.hex()}")
    if version[0] != SCHEMA_VERSION:
        way_out = (
            "upgrade slidegate, or choose another path"
            if version[0] > SCHEMA_VERSION
            else "choose another path; to take its bans along, run `slidegate bans export` of the version that wrote "
            "it, and `slidegate bans import` of this one"
        )
        raise ConfigurationError(
            f"lmdb: {path} was written with layout version {version[0]}, and this slidegate reads {SCHEMA_VERSION}; "
            f"{way_out}"
        )
