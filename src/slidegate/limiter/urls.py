"""Stores by address."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from ..core.errors import ConfigurationError, closest
from ..core.protocols import Store
from ..stores.memory import MemoryStore

_NUMBER: Final = re.compile("[0-9]{1,18}")
_MEMORY_OPTIONS: Final = ("max_keys", "max_bans")


def open_store(url: str) -> Store:
    """Make the store that an address names.

    Raises:
        ConfigurationError: The scheme or an option is unknown, or a value cannot be read.
    """
    shown = re.sub(r"//[^/]*@", "//***@", url) if isinstance(url, str) else url  # it may hold a password
    expected = f'store address: expected "memory://", not {shown!r}'
    try:
        parts = urlsplit(url)
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(expected) from None
    if parts.scheme != "memory":
        raise ConfigurationError(f"{expected}{closest(str(parts.scheme), ['memory'])}")
    if parts.netloc or parts.path:
        raise ConfigurationError(f"{expected}: memory has no place")
    options: dict[str, Any] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _MEMORY_OPTIONS:
            raise ConfigurationError(f"{expected}: unknown option {name!r}{closest(name, _MEMORY_OPTIONS)}")
        if not _NUMBER.fullmatch(value):
            raise ConfigurationError(f"{expected}: {name} needs a whole number, not {value!r}")
        options[name] = int(value)
    return MemoryStore(**options)
