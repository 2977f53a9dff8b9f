"""Kinds of keys, as published rules name what they read, and how the keys of each kind begin in stores."""

from __future__ import annotations

import re
from typing import Final

from ..core.addresses import network_of

ADDRESS: Final = "address"
EVERYONE: Final = "everyone"
FUNCTION: Final = "function"
"""The kind of the keys that a function of the application's returns, which may be any."""
_DIGEST: Final = re.compile("(.*)#[0-9a-f]{32}")
_SHOWN: Final = 31
"""How much of a kind stands in front of a digest: keys have at most 64 characters."""
_IN_TEXT: Final = ("user", "mcp_tool")
"""The kinds whose values stand in the keys as text."""


def kind_of(key: str) -> str:
    """Return the kind of a key as far as the key shows it.

    It is ``header:x-api-key`` of a digest, of a long name only the beginning, and ``user`` of ``user:ann``.
    """
    digest = _DIGEST.fullmatch(key)
    if digest is not None:
        return digest[1]
    if network_of(key) is not None:
        return ADDRESS
    return key.partition(":")[0]


def shown(kind: str) -> str:
    """Return how a kind stands in front of a digest."""
    return kind[:_SHOWN]


def beginnings_of(kind: str) -> tuple[str, ...]:
    """Return how the keys of a kind that is neither an address nor a function's begin."""
    if kind == EVERYONE:
        return (kind,)
    name, _, by = kind.partition(":")
    if name == "network":
        return (f"{by}:",)
    # Of a long name there is a digest, as of all long texts.
    if name in _IN_TEXT:
        return f"{name}:", "long#"
    digests = f"{shown(kind)}#"
    # Combined keys have `+` between their kinds, but so may the name of a header.
    if "+" in kind:
        return "combined#", digests
    return (digests,)
