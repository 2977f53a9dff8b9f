"""Which rules read a key, and so where a ban of it holds: by the kinds and the buckets that workers have published."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from .. import ConfigurationError, Limiter
from ..core.addresses import network_of
from ..limiter import Publication, PublishedRule, inspect_keys
from .kinds import EVERYONE, FUNCTION, beginnings_of, kind_of, named_kind
from .rows import listed, row_of_ban

_KIND: Final = re.compile("[A-Za-z][A-Za-z0-9_-]*[:#].")
_OF_CLIENT: Final = re.compile("peer:.|unknown-peer$|asn:[0-9]")
"""How keys begin that, beside addresses and networks, each request has."""
_EVERYWHERE: Final = "it holds on every request"


async def check_key(limiter: Limiter, key: str) -> None:
    """Check that a typed key is an address, a network, has a kind, or is known to the store.

    Raises:
        ConfigurationError: It is none of these. The message does not contain it, because it may be the secret value of
            a header.
    """
    if _KIND.match(key) or network_of(key) is not None or key == EVERYONE:
        return
    if key:
        if await limiter.banned(key):
            return
        # Counted by this process, or under a published rule.
        counting = [
            (key, {rule.bucket: rule.counted_limit()})
            for publication in await limiter.published()
            for rule in publication.rules
            if rule.bucket and rule.limit
        ]
        views = [await limiter.inspect(key), *await inspect_keys(limiter, counting)]
        if any(window.used for view in views for window in view.windows):
            return
    raise ConfigurationError(
        'expected an address, a network or kind:value, for example "203.0.113.7", "198.51.100.0/24" or "user:42"; a '
        "value that clients send needs its header, cookie or query parameter",
        "key",
    )


async def ban_by_hand(
    limiter: Limiter, key: str, target: Any, duration: str, *, reason: str, by: str
) -> dict[str, Any]:
    """Ban a key that an operator has typed; return the row of the ban, which says where it holds.

    Args:
        key: The key as it was typed.
        target: The key that `key_of` makes of it.

    Raises:
        ConfigurationError: A value is invalid.
        StoreError: The store does not answer.
    """
    await check_key(limiter, key)
    ban = await limiter.ban(target, duration, reason=reason, by=by)
    return {**row_of_ban(ban), "holds": where_banned(await limiter.published(), ban.key)}


def where_banned(published: Sequence[Publication], key: str) -> str:
    """Return where the ban of a key holds, in one sentence; if not everywhere, with what makes it hold there.

    Args:
        published: What workers have published.
        key: The key, in its canonical form.
    """
    if network_of(key) is not None or _OF_CLIENT.match(key):
        return _EVERYWHERE
    rules = list(_rules_that_read(published, key))
    # A policy of bans reads the key of every request, a rule only of those that it concerns.
    if any(rule.action == "ban" for rule in rules):
        return _EVERYWHERE
    remedy = _remedy_of(kind_of(key))
    names = list(dict.fromkeys(repr(rule.rule) for rule in rules))
    if names:
        return f"it holds where {listed(names)} counts by it{remedy}"
    if not published or not all(publication.is_readable for publication in published):
        return f"which rules read {kind_of(key)!r} is not known, as no worker has published that{remedy}"
    return f"no published rule reads {kind_of(key)!r}{remedy}"


def _rules_that_read(published: Sequence[Publication], key: str) -> Iterator[PublishedRule]:
    """Yield the rules that read the kind of a key, and refuse it while it is banned."""
    for publication in published:
        for rule in publication.rules:
            # A rule in shadow never refuses. A policy in shadow never bans, but enforces the bans of others.
            if rule.shadow and rule.action != "ban":
                continue
            if rule.key == FUNCTION or key.startswith(beginnings_of(rule.key)):
                yield rule


def _remedy_of(kind: str) -> str:
    """Return what reads such keys on every request."""
    source, _, name = kind.partition(":")
    if named_kind(kind).named is not None:
        return f'; BanPolicy(key={source}("{name}")) reads it on every request'
    if kind == "user":
        return "; BanPolicy(key=user) reads it on every request"
    return '; Rule("*", "600/minute", key=your_function) above all others reads what the function returns'
