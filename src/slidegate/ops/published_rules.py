"""The rules that workers have published, where workers differ, and where a ban holds; and the limits of this process.

Workers differ during a rolling upgrade, or if two services share a store. A ban of a key holds where a rule reads it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from .. import ConfigurationError, Limiter
from ..core.addresses import network_of
from ..limiter import Publication, PublishedRule, inspect_keys
from .kinds import EVERYONE, PEERS, beginnings_of, is_operator, kind_of, named_kind
from .rows import as_json, listed, named

Row = TypeVar("Row", bound=Any)

EVERY: Final = "every request"
CALLS: Final = "calls of functions and blocks"
"""In place of its middleware, what a limit of `Limiter.limited` concerns."""
BY_FUNCTION: Final = "by a function"
_KIND: Final = re.compile("[A-Za-z][A-Za-z0-9_-]*[:#].")


class RuleRow(NamedTuple):
    """A rule, as some workers enforce it.

    Attributes:
        middleware: The name of its middleware.
        rule: Its label.
        name: The name of its limit; empty without one.
        does: What it does, in words.
        workers: How many workers have it; empty if all have.
    """

    middleware: str
    rule: str
    name: str
    does: str
    workers: str = ""


def rules_of(published: Iterable[Publication]) -> list[PublishedRule]:
    """Return the rules of all workers."""
    return [rule for publication in published for rule in publication.rules]


def rule_rows(published: Sequence[Publication]) -> list[RuleRow]:
    """Return the rules of all workers, those first that only some of them have."""
    workers = sum(publication.workers for publication in published if publication.is_readable)
    rows = [row._replace(workers=some) for row, some in of_workers(published, workers, _rows_in)]
    differing = sorted(row for row in rows if row.workers)
    # How clients are determined is no rule.
    return differing + [row for row in rows if not row.workers and row.rule != "client"]


def _rows_in(rules: Iterable[PublishedRule]) -> Iterator[RuleRow]:
    for rule in rules:
        yield RuleRow(rule.middleware, rule.rule, rule.name, text_of(rule))


def of_workers(
    published: Iterable[Publication], workers: int, rows_of: Callable[[Any], Iterable[Row]]
) -> Iterator[tuple[Row, str]]:
    """Yield what workers have, each once, and which of them have it, in words; empty for all.

    Args:
        workers: How many workers there are.
        rows_of: Returns what a worker with some rules has; each has the label of its `rule`.
    """
    having = Counter[Row]()
    # A limit of a route, by `default_limits`, or an endpoint is known from its first request on: only these workers can
    # have it.
    met = Counter[str]()
    for publication in published:
        having.update(dict.fromkeys(rows_of(publication.rules), publication.workers))
        late = {rule.rule for rule in publication.rules if rule.at_endpoint or rule.rule.startswith("per-route ")}
        met.update(dict.fromkeys(late, publication.workers))
    for row, number in having.items():
        of = met.get(row.rule, workers)
        some = ""
        if number != of:
            some = f"in {number} of {of} workers"
        yield row, some


def text_of(rule: PublishedRule) -> str:
    """Return what a published rule does, in words: ``5/1m by address, POST /login``."""
    words = rule.limit or rule.action
    if rule.by_function:
        words = "limits of a function"
    elif rule.zone:
        words += f" from {rule.starts} in {rule.zone}"
    if rule.key:
        words += f" by {rule.key}"
    if (rule.ipv4_prefix, rule.ipv6_prefix) != (32, 64):
        words += f" /{rule.ipv4_prefix} and /{rule.ipv6_prefix}"
    if rule.size:
        words += f", ranges: {rule.size:,}"
    if rule.requests and rule.requests not in rule.rule:
        words += f", {rule.requests}"
    if rule.conditional:
        words += ", if a condition holds"
    if rule.shadow:
        words += ", in shadow"
    return words


# -- the limits of this process ----------------------------------------------------------------------------------------


def limit_rows(limits: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the rows of the limits of this process, as JSON shows them.

    A row has the name of the limit in header fields, the label of its rule, whether that reports only, the limit in
    force and that in code, in words, and the amount in force; None if a function returns it. Of equal names, one limit
    can be changed.
    """
    by_name = changeable_limits(limits)
    rows = []
    for limit in limits:
        row = {**named(limit, "name", "rule", "shadow"), "changeable": by_name.get(limit.name) is limit}
        row |= {"limit": BY_FUNCTION, "configured": BY_FUNCTION, "amount": None}
        if limit.changeable:
            row |= {"limit": str(limit.limit), "configured": str(limit.configured), "amount": limit.limit.amount}
        rows.append(row)
    return rows


def changeable_limits(limits: Iterable[Any]) -> dict[str, Any]:
    """Return the limits that can be changed, by name: of equal names the last one, which workers publish."""
    return {limit.name: limit for limit in limits if limit.changeable}


# -- where a ban holds -------------------------------------------------------------------------------------------------


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
            for rule in rules_of(await limiter.published())
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
    return {**as_json(ban), "holds": where_banned(await limiter.published(), ban.key)}


def where_banned(published: Sequence[Publication], key: str) -> str:
    """Return where the ban of a key holds, in one sentence; if not everywhere, with what makes it hold there.

    Args:
        published: What workers have published.
        key: The key, in its canonical form.
    """
    requests = where_read(rule for rule in rules_of(published) if key.startswith(beginnings_of(rule.key)))
    if network_of(key) is not None or is_operator(key) or key.startswith(PEERS):
        requests = EVERY
    if requests == EVERY:
        return f"it holds on {EVERY}"
    remedy = _remedy_of(kind_of(key))
    if requests:
        return f"it holds {requests}{remedy}"
    if not published or not all(publication.is_readable for publication in published):
        return f"which rules read {kind_of(key)!r} is not known, as no worker has published that{remedy}"
    return f"no published rule reads {kind_of(key)!r}{remedy}"


def where_read(rules: Iterable[PublishedRule]) -> str:
    """Return which requests some rules refuse that read a key while it is banned; empty for none."""
    names: dict[str, None] = {}
    for rule in rules:
        # A middleware reads the key of its client, and a policy its own, on every request: one in shadow never bans,
        # but enforces the bans of others.
        if rule.action in ("client", "ban"):
            return EVERY
        if rule.bucket and not rule.shadow:
            names[repr(rule.rule)] = None
    if not names:
        return ""
    return f"where {listed(names)} counts by it"


def _remedy_of(kind: str) -> str:
    """Return what reads such keys on every request."""
    source, _, name = kind.partition(":")
    if named_kind(kind).named is not None:
        return f'; BanPolicy(key={source}("{name}")) reads it on every request'
    if kind == "user":
        return "; BanPolicy(key=user) reads it on every request"
    return '; Rule("*", "600/minute", key=your_function) above all others reads what the function returns'
