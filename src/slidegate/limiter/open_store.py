"""Makes a store from its address."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from ..core.errors import ConfigurationError, closest
from ..core.store import Store
from ..stores.memory.store import MemoryStore

_NUMBER: Final = re.compile("[0-9]{1,18}")
_MEMORY_OPTIONS: Final = ("max_keys", "max_bans")
_LMDB_OPTIONS: Final = ("map_size", "max_map_size", "max_keys", "max_bans", "place_lease", "durability")
_TEXTS: Final = ("place_lease", "durability")
_EXAMPLES: Final = {
    "memory": "memory://",
    "lmdb": "lmdb:///var/lib/app/slidegate",
    "redis": "redis://localhost:6379/0",
    "redis+cluster": "redis+cluster://h1:6379,h2:6379",
}
_REDIS: Final = re.compile("(rediss?([+](cluster|sentinel))?|unix)://", re.IGNORECASE)


def open_store(url: str, *, read_only: bool = False) -> Store:
    """Make the store that an address names.

    Args:
        url: The address.
        read_only: Whether the store is only looked at, and has to be there.

    Raises:
        ConfigurationError: The scheme or an option is unknown, a value cannot be read, or the store cannot be opened.
        StoreUnavailable: The store is to be read only, and cannot be.
    """
    if isinstance(url, str) and _REDIS.match(url):
        return _redis(url, read_only)
    shown = re.sub(r"//.*@", "//***@", url) if isinstance(url, str) else url  # the address may hold a password
    examples = " or ".join(f'"{example}"' for example in _EXAMPLES.values())
    try:
        parts = urlsplit(url)
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(f"store address: expected {examples}, not {shown!r}") from None
    if parts.scheme not in _EXAMPLES:
        hint = closest(str(parts.scheme), _EXAMPLES)
        raise ConfigurationError(f"store address: expected {examples}, not {shown!r}{hint}")
    expected = f'store address: expected "{_EXAMPLES[parts.scheme]}", not {shown!r}'
    return _lmdb(parts, expected, read_only) if parts.scheme == "lmdb" else _memory(parts, expected)


def _memory(parts: SplitResult, expected: str) -> Store:
    if parts.netloc or parts.path:
        raise ConfigurationError(f"{expected}: memory has no place")
    return MemoryStore(**_options(parts, _MEMORY_OPTIONS, expected))


def _lmdb(parts: SplitResult, expected: str, read_only: bool) -> Store:
    if parts.netloc or not parts.path.startswith("/") or not parts.path.strip("/"):
        raise ConfigurationError(f"{expected}: write the directory's whole path behind lmdb://")
    options = _options(parts, _LMDB_OPTIONS, expected)
    try:
        from ..stores.lmdb import LmdbStore
    except ImportError as error:
        raise ConfigurationError(f"store address: {error}") from error
    return LmdbStore(unquote(parts.path), read_only=read_only, **options)


def _redis(url: str, read_only: bool) -> Store:
    try:
        from ..stores.redis import RedisStore
    except ImportError as error:
        raise ConfigurationError(f"store address: {error}") from error
    place, _, query = url.partition("?")
    given = parse_qsl(query, keep_blank_values=True)
    options = {name: _REDIS_OPTIONS[name](name, value) for name, value in given if name in _REDIS_OPTIONS}
    rest = urlencode([(name, value) for name, value in given if name not in _REDIS_OPTIONS])
    return RedisStore(f"{place}?{rest}" if rest else place, read_only=read_only, **options)


def _whole(name: str, value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise ConfigurationError(f"store address: {name} needs a whole number, not {value!r}")
    return int(value)


def _truth(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise ConfigurationError(f"store address: {name} needs true or false, not {value!r}")
    return value == "true"


def _text(name: str, value: str) -> str:
    return value


_REDIS_OPTIONS: Final[dict[str, Callable[[str, str], Any]]] = {
    "max_bans": _whole,
    "max_waiting": _whole,
    "place_lease": _text,
    "prefix": _text,
    "readable": _truth,
    "timeout": _text,
}


def _options(parts: SplitResult, known: Sequence[str], expected: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            raise ConfigurationError(f"{expected}: unknown option {name!r}{closest(name, known)}")
        if name not in _TEXTS and not _NUMBER.fullmatch(value):
            raise ConfigurationError(f"{expected}: {name} needs a whole number, not {value!r}")
        options[name] = value if name in _TEXTS else int(value)
    return options
