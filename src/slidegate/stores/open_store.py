"""Creates a store from its address."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from ..core.errors import ConfigurationError, closest, quoted
from ..core.passwords import AnyAddress, address_in
from ..core.store import Store
from .memory.store import MemoryStore
from .read_only import ReadOnlyStore
from .shared import clean_address, read_options

_SIZES: Final[dict[str, type]] = {"max_keys": int, "max_bans": int}
_OPTIONS: Final[dict[str, dict[str, type]]] = {
    "memory": _SIZES,
    "lmdb": {**_SIZES, "max_map_size": int, "permit_lease": str},
    "redis": {
        "max_bans": int,
        "key_locking": bool,
        "leases": bool,
        "permit_lease": str,
        "prefix": str,
        "readable": bool,
        "timeout": str,
    },
}
_EXAMPLES: Final = {
    "memory": "memory://",
    "lmdb": "lmdb:///var/lib/app/slidegate",
    "redis": "redis://localhost:6379/0",
    "redis+cluster": "redis+cluster://h1:6379,h2:6379",
}
_REDIS: Final = re.compile("(rediss?([+](cluster|sentinel))?|unix)://", re.IGNORECASE)


def open_store(url: AnyAddress, *, read_only: bool = False, create: bool = True) -> Store:
    """Create the store for an address.

    Args:
        url: The address.
        read_only: Whether the store is only read; it must already exist then.
        create: Whether to create what does not exist.

    Raises:
        ConfigurationError: The scheme or an option is unknown, a value is invalid, or the store cannot be opened.
        StoreUnavailable: The store does not exist or cannot be used, and may not be created.
    """
    if read_only:
        return ReadOnlyStore(open_store(url, create=False))
    given = address_in(url)
    text = ""  # of an object that is no text, which the message shows as it is
    if isinstance(given, str):
        given = text = clean_address(given)
    if _REDIS.match(text):
        return _redis(text, create)
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator:
        scheme = ""
    if scheme not in _EXAMPLES:
        examples = " or ".join(f'"{example}"' for example in _EXAMPLES.values())
        hint = closest(scheme, _EXAMPLES)
        raise ConfigurationError(f"store address: expected {examples}, not {quoted(given)}{hint}")
    expected = f'store address: expected "{_EXAMPLES[scheme]}", not {quoted(given)}'
    place, _, query = rest.partition("?")
    if scheme == "lmdb":
        return _lmdb(place, query, expected, create)
    if place:
        raise ConfigurationError(f"{expected}: a memory store has no host or path")
    return MemoryStore(**read_options(query, _OPTIONS["memory"], expected))


def _lmdb(place: str, query: str, expected: str, create: bool) -> Store:
    if not place.startswith("/") or not place.strip("/"):
        raise ConfigurationError(f"{expected}: write the absolute path of the directory after lmdb://")
    options = read_options(query, _OPTIONS["lmdb"], expected)
    try:
        from .lmdb import LmdbStore
    except ImportError as error:
        raise ConfigurationError(f"store address: {error}") from error
    return LmdbStore(unquote(place), create=create, **options)


def _redis(url: str, create: bool) -> Store:
    try:
        from .redis import RedisStore
        from .redis.clients import open_client
    except ImportError as error:
        raise ConfigurationError(f"store address: {error}") from error
    client, options = open_client(url, _OPTIONS["redis"])
    return RedisStore(client, create=create, **options)
